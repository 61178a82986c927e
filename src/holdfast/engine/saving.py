"""A save from end to end: lay out, make room, persist, commit. Pruning comes after, and never before, the commit."""

import errno
import logging
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.core.errors import HoldfastError, NoSpaceError, StorageError
from holdfast.core.limits import CHUNK_BYTES
from holdfast.core.names import CheckpointId, shard_name
from holdfast.core.values import Checkpoint
from holdfast.engine.catalog import Catalog
from holdfast.engine.commit import abandon, commit
from holdfast.engine.persist import persist
from holdfast.engine.pruning import Pruned, plan_prune, prune
from holdfast.engine.session import Session
from holdfast.format.dtypes import safetensors_type
from holdfast.format.encode import Encoded
from holdfast.format.head import encode_head
from holdfast.format.manifest import Body, LeafRecord, ShardRecord, encode_manifest
from holdfast.format.shard import Layout, TensorEntry, lay_out
from holdfast.policy.keep import NO_METRIC, Keep, Verdict

__all__ = ["Document", "plan_session", "prune_run", "save_encoded"]

_log = logging.getLogger("holdfast")

_WORLD = 1
_TRIES = 2
# Worth one more try, in a new directory: an error of the medium or the network may not hit the next file.
_TRANSIENT = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.ECONNRESET, errno.EREMOTEIO)
_SPARE_BYTES = 128 << 10
_MANIFEST_BYTES_PER_LEAF = 400
_MANIFEST_BYTES_PER_CHUNK = 105
_INODES = 4  # directory, shard, manifest, a mark


class Document(NamedTuple):
    """What is said of a checkpoint, besides its state."""

    step: int
    epoch: int | None
    metrics: Mapping[str, float]
    note: str
    tags: tuple[str, ...]
    hyperparameters: object
    provenance: dict[str, object]


def save_encoded(session: Session, encoded: Encoded, document: Document, keep: Keep) -> Checkpoint:
    """The checkpoint, durable. HoldfastError where it could not be made; what existed before is untouched."""
    layout = _lay_out(encoded)
    # Only for its limits, before anything is written: what no reader accepts must not be acknowledged (I5).
    encode_head(_describe(session, "", encoded, layout, document), session.run_id)
    _make_room(session, layout, keep)
    for attempt_left in reversed(range(_TRIES)):
        try:
            return _save_once(session, encoded, layout, document)
        except StorageError as error:
            if attempt_left == 0 or error.errno not in _TRANSIENT:
                raise
            # I5: an fsync error is final for that file; everything is written again, elsewhere.
            _log.warning("%s; writing the checkpoint again in a new directory", error.message)
            session.journal.record("retry", step=document.step, error=error.message)
    raise AssertionError("the loop returns or raises")


def plan_session(session: Session, keep: Keep) -> list[Verdict]:
    """What retention would keep and remove now."""
    return _plan(session, session.catalog(), keep)


def prune_run(session: Session, keep: Keep) -> Pruned:
    """Remove what retention gives up, and leftovers of crashes."""
    catalog = session.catalog()
    verdicts = _plan(session, catalog, keep)
    _report_unknown_metric(session, verdicts)
    done = prune(session.store, session.run_id, catalog, verdicts, attempt=session.attempt)
    for checkpoint_id in done.removed:
        session.heads.pop(checkpoint_id, None)
    if done.removed:
        session.journal.record("pruned", removed=done.removed, freed_bytes=done.freed_bytes)
    return done


def _report_unknown_metric(session: Session, verdicts: Sequence[Verdict]) -> None:
    """Say once that a rule waits for a metric that no checkpoint has: misspelt, or not saved yet."""
    reason = next((verdict.reason for verdict in verdicts if NO_METRIC in verdict.reason), None)
    if reason is not None and not session.told_of_metric:
        session.told_of_metric = True
        _log.warning("%s: everything is kept for now: %s", session.store.location, reason)


def _plan(session: Session, catalog: Catalog, keep: Keep) -> list[Verdict]:
    origin, attempt, forks = session.origin, session.attempt, session.forks
    return plan_prune(catalog, keep, session.clock, origin=origin, attempt=attempt, forks=forks)


def _save_once(session: Session, encoded: Encoded, layout: Layout, document: Document) -> Checkpoint:
    checkpoint_id = _new_id(session, document)
    try:
        shard = _write_shard(session, checkpoint_id, encoded, layout)
        checkpoint = _describe(session, checkpoint_id, encoded, layout, document)
        body = Body(
            tree=encoded.tree,
            random=encoded.random,
            leaves=_leaf_records(encoded, layout),
            shards=[shard],
            pickled=list(encoded.pickled),
            hyperparameters=document.hyperparameters,
            provenance=document.provenance,
        )
        commit(
            session.store,
            checkpoint_id,
            encode_manifest(checkpoint, session.run_id, body),
            attempt=session.attempt,
        )
    except BaseException:
        _abandon_quietly(session, checkpoint_id)
        raise
    session.note_commit(checkpoint)
    return checkpoint


def _lay_out(encoded: Encoded) -> Layout:
    entries = []
    for leaf in encoded.leaves:
        tag, extra = safetensors_type(leaf.dtype)
        alignment = leaf.carrier.itemsize
        entries.append(TensorEntry(leaf.name, tag, (*leaf.shape, *extra), leaf.carrier.nbytes, alignment))
    return lay_out(entries)


def _write_shard(session: Session, checkpoint_id: str, encoded: Encoded, layout: Layout) -> ShardRecord:
    name = shard_name(0)
    writer = session.store.create(f"{checkpoint_id}/{name}", layout.size_bytes)
    try:
        carriers = [leaf.carrier for leaf in encoded.leaves]
        sums = persist(layout, carriers, writer, pool=session.pool, workers=session.workers)
    except BaseException:
        writer.abandon()
        raise
    return ShardRecord(
        name=name, size_bytes=layout.size_bytes, chunk_bytes=CHUNK_BYTES, xxh3=sums.xxh3, blake3=sums.blake3
    )


def _leaf_records(encoded: Encoded, layout: Layout) -> list[LeafRecord]:
    return [
        LeafRecord(name=leaf.name, dtype=leaf.dtype, shape=list(leaf.shape), shard=0, begin=place.begin, end=place.end)
        for leaf, place in zip(encoded.leaves, layout.places, strict=True)
    ]


def _describe(session: Session, checkpoint_id: str, encoded: Encoded, layout: Layout, document: Document) -> Checkpoint:
    return Checkpoint(
        id=checkpoint_id,
        step=document.step,
        epoch=document.epoch,
        attempt=session.attempt,
        seq=session.seq + 1,
        parent=session.parent,
        origin=session.origin,
        utc_s=round(session.clock.utc_s(), 3),
        size_bytes=layout.size_bytes,
        leaves=len(encoded.leaves),
        world=_WORLD,
        metrics=document.metrics,
        note=document.note,
        tags=document.tags,
        pickle=bool(encoded.pickled),
        forks=session.forks,
    )


def _new_id(session: Session, document: Document) -> str:
    """A name that this attempt has not used; the attempt's number makes it unlike those of all others (I3)."""
    utc = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(session.clock.utc_s()))
    twin = 0
    while True:
        name = str(CheckpointId(document.step, document.epoch or 0, utc, session.attempt, twin))
        if name not in session.used_names:
            session.used_names.add(name)
            return name
        twin += 1


def _make_room(session: Session, layout: Layout, keep: Keep) -> None:
    """NoSpaceError where the checkpoint will not fit, even without what retention has given up already (I6)."""
    needed = layout.size_bytes + _SPARE_BYTES
    needed += _MANIFEST_BYTES_PER_LEAF * len(layout.places) + _MANIFEST_BYTES_PER_CHUNK * (layout.size_bytes >> 20)
    if _fits(session, needed):
        return
    prune_run(session, keep)
    if not _fits(session, needed):
        space = session.store.space()
        raise NoSpaceError(
            f"{session.store.location}: a checkpoint needs {needed:,} bytes and {_INODES} inodes, "
            f"free are {space.free_bytes:,} bytes and {space.free_inodes:,} inodes",
            hint="free some space or keep fewer checkpoints; nothing that retention keeps was removed",
        )


def _fits(session: Session, needed_bytes: int) -> bool:
    space = session.store.space()
    return space.free_bytes >= needed_bytes and space.free_inodes >= _INODES


def _abandon_quietly(session: Session, checkpoint_id: str) -> None:
    try:
        abandon(session.store, checkpoint_id)
    except HoldfastError as error:
        # Harmless: without a manifest it is not a checkpoint (I1), and a later prune removes it.
        _log.debug("%s stays behind as garbage: %s", checkpoint_id, error.message)
