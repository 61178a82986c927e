"""Writing a checkpoint whose bytes somebody produces: make room, shard, commit; then prune. Knows no arrays.

The training process and its agent both write this way. Pruning comes after, and never before, the commit.
"""

import errno
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from holdfast.core.clock import Clock
from holdfast.core.errors import HoldfastError, NoSpaceError, StorageError
from holdfast.core.names import parse_checkpoint_id, shard_name
from holdfast.core.values import Checkpoint, Fork
from holdfast.engine.catalog import Catalog, HeadCache, read_catalog
from holdfast.engine.commit import abandon, commit
from holdfast.engine.journal import Journal
from holdfast.engine.marks import SUSPECT, clear_mark, set_mark
from holdfast.engine.pruning import Pruned, plan_prune, prune
from holdfast.format.manifest import Body, ShardRecord, encode_manifest
from holdfast.policy.keep import NO_METRIC, Keep, Verdict
from holdfast.storage.store import Store, Writer

__all__ = ["Attempt", "Draft", "plan_run", "prune_run", "renamed", "write_checkpoint"]

_log = logging.getLogger("holdfast")

_TRIES = 2
# Worth one more try, in a new directory: an error of the medium or the network may not hit the next file.
_TRANSIENT = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.ECONNRESET, errno.EREMOTEIO)
# Far from the twins that saves of one step within one second have: the names of a second try are nobody else's (I3).
_SECOND_TRY_TWIN = 500
_SPARE_BYTES = 128 << 10
_MANIFEST_BYTES_PER_LEAF = 400
_MANIFEST_BYTES_PER_CHUNK = 105
_INODES = 4  # directory, shard, manifest, a mark


class Attempt(Protocol):
    """What is known of the attempt that writes."""

    store: Store
    clock: Clock
    run_id: str
    attempt: int
    journal: Journal
    heads: HeadCache
    origin: str | None
    forks: tuple[Fork, ...]
    safe_before: int | None
    """Checkpoints of earlier steps will not be found suspect; None where nobody follows that."""
    told_of_metric: bool
    shares_attempt: bool
    """Whether a process and its agent write for the attempt: then a directory without a manifest may be the other's."""


class Draft(NamedTuple):
    """A checkpoint that does not exist yet: everything but its shard's bytes and their sums."""

    checkpoint: Checkpoint
    body: Body


Produce = Callable[[str, Writer], ShardRecord]
"""Writes the bytes of the shard of that name, makes them durable, and tells their sums."""


def write_checkpoint(
    writer: Attempt, draft: Draft, produce: Produce, keep: Keep, *, begun: Writer | None = None
) -> Checkpoint:
    """The checkpoint, durable. HoldfastError where it could not be made; what existed before is untouched.

    `begun` is its shard in the making, where somebody has begun it in the checkpoint's directory: `produce` gets it
    instead of an empty one.
    """
    try:
        _make_room(writer, draft, keep, is_begun=begun is not None)
    except BaseException:
        if begun is not None:
            begun.abandon()
            _abandon_quietly(writer, draft.checkpoint)
        raise
    for tries_left in reversed(range(_TRIES)):
        try:
            return _write_once(writer, draft, produce, begun)
        except StorageError as error:
            if tries_left == 0 or error.errno not in _TRANSIENT:
                raise
            # I5: an fsync error is final for that file; everything is written again, elsewhere.
            _log.warning("%s; writing the checkpoint again in a new directory", error.message)
            writer.journal.record("retry", step=draft.checkpoint.step, error=error.message)
            draft, begun = draft._replace(checkpoint=renamed(draft.checkpoint)), None
    raise AssertionError("the loop returns or raises")


def plan_run(writer: Attempt, keep: Keep) -> list[Verdict]:
    """What retention would keep and remove now."""
    return _plan(writer, _catalog(writer), keep)


def prune_run(writer: Attempt, keep: Keep) -> Pruned:
    """Remove what retention gives up, and leftovers of crashes."""
    catalog = _catalog(writer)
    verdicts = _plan(writer, catalog, keep)
    _report_unknown_metric(writer, verdicts)
    last_garbage = writer.attempt - 1 if writer.shares_attempt else writer.attempt
    done = prune(writer.store, writer.run_id, catalog, verdicts, attempt=writer.attempt, last_garbage=last_garbage)
    for checkpoint_id in done.removed:
        writer.heads.pop(checkpoint_id, None)
    if done.removed:
        writer.journal.record("pruned", removed=done.removed, freed_bytes=done.freed_bytes)
    return done


def _catalog(writer: Attempt) -> Catalog:
    return read_catalog(writer.store, writer.run_id, cache=writer.heads)


def _plan(writer: Attempt, catalog: Catalog, keep: Keep) -> list[Verdict]:
    return plan_prune(
        catalog,
        keep,
        writer.clock,
        origin=writer.origin,
        attempt=writer.attempt,
        forks=writer.forks,
        safe_before=writer.safe_before,
    )


def _report_unknown_metric(writer: Attempt, verdicts: Sequence[Verdict]) -> None:
    """Say once that a rule waits for a metric that no checkpoint has: misspelt, or not saved yet."""
    reason = next((verdict.reason for verdict in verdicts if NO_METRIC in verdict.reason), None)
    if reason is not None and not writer.told_of_metric:
        writer.told_of_metric = True
        _log.warning("%s: everything is kept for now: %s", writer.store.location, reason)


def _write_once(writer: Attempt, draft: Draft, produce: Produce, begun: Writer | None) -> Checkpoint:
    checkpoint = draft.checkpoint
    try:
        shard = _write_shard(writer, checkpoint, produce, begun)
        manifest = encode_manifest(checkpoint, writer.run_id, draft.body.with_shards([shard]))
        _mark_suspect(writer, checkpoint)
        commit(writer.store, checkpoint.id, manifest, shards=[shard], attempt=writer.attempt, run_id=writer.run_id)
    except BaseException:
        _abandon_quietly(writer, checkpoint)
        raise
    writer.heads[checkpoint.id] = checkpoint._replace(suspect="")  # a head knows no marks
    return checkpoint


def _mark_suspect(writer: Attempt, checkpoint: Checkpoint) -> None:
    """Before the commit: a prune right after it must know which one is the last healthy one (I6)."""
    if checkpoint.suspect:
        try:
            set_mark(writer.store, checkpoint.id, SUSPECT, reason=checkpoint.suspect, clock=writer.clock)
        except HoldfastError as error:
            _log.warning("%s cannot be marked suspect: %s", checkpoint.id, error.message)


def _write_shard(writer: Attempt, checkpoint: Checkpoint, produce: Produce, begun: Writer | None) -> ShardRecord:
    name = shard_name(0)
    blob = writer.store.create(f"{checkpoint.id}/{name}", checkpoint.size_bytes) if begun is None else begun
    try:
        return produce(name, blob)
    except BaseException:
        blob.abandon()
        raise


def renamed(checkpoint: Checkpoint) -> Checkpoint:
    """The same under another name, for a second try."""
    parsed = parse_checkpoint_id(checkpoint.id)
    assert parsed is not None, checkpoint.id
    return checkpoint._replace(id=str(parsed._replace(twin=parsed.twin + _SECOND_TRY_TWIN)))


def _make_room(writer: Attempt, draft: Draft, keep: Keep, *, is_begun: bool) -> None:
    """NoSpaceError where the checkpoint will not fit, even without what retention has given up already (I6)."""
    size_bytes = draft.checkpoint.size_bytes
    needed = _SPARE_BYTES if is_begun else size_bytes + _SPARE_BYTES  # what is begun is on the disk
    needed += _MANIFEST_BYTES_PER_LEAF * draft.checkpoint.leaves + _MANIFEST_BYTES_PER_CHUNK * (size_bytes >> 20)
    if _fits(writer, needed):
        return
    prune_run(writer, keep)
    if not _fits(writer, needed):
        space = writer.store.space()
        raise NoSpaceError(
            f"{writer.store.location}: a checkpoint needs {needed:,} bytes and {_INODES} inodes, "
            f"free are {space.free_bytes:,} bytes and {space.free_inodes:,} inodes",
            hint="free some space or keep fewer checkpoints; nothing that retention keeps was removed",
        )


def _fits(writer: Attempt, needed_bytes: int) -> bool:
    space = writer.store.space()
    return space.free_bytes >= needed_bytes and space.free_inodes >= _INODES


def _abandon_quietly(writer: Attempt, checkpoint: Checkpoint) -> None:
    try:
        abandon(writer.store, checkpoint.id, attempt=writer.attempt)
        if checkpoint.suspect:
            clear_mark(writer.store, checkpoint.id, SUSPECT)
    except HoldfastError as error:
        # Harmless: without a manifest it is not a checkpoint (I1), and a later prune removes it; with one, it is whole.
        _log.debug("%s stays behind: %s", checkpoint.id, error.message)
