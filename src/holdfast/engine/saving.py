"""What a save writes: a state that has its places in a shard, and the draft of its checkpoint."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from holdfast.core.errors import FencedError, HoldfastError
from holdfast.core.limits import CHUNK_BYTES
from holdfast.core.names import CheckpointId
from holdfast.core.values import Checkpoint
from holdfast.engine.laying import Laid
from holdfast.engine.persist import persist
from holdfast.engine.session import Session
from holdfast.engine.writing import Draft, prune_run, write_checkpoint
from holdfast.format.head import encode_head
from holdfast.format.manifest import Body, ShardRecord
from holdfast.policy.keep import Keep
from holdfast.storage.store import Writer

__all__ = ["Document", "draft_checkpoint", "save_in_foreground", "save_laid"]

_log = logging.getLogger("holdfast")

_WORLD = 1


class Document(NamedTuple):
    """What is said of a checkpoint, besides its state."""

    step: int
    epoch: int | None
    metrics: Mapping[str, float]
    note: str
    tags: tuple[str, ...]
    hyperparameters: object
    provenance: dict[str, object]
    suspect: str = ""
    """Why the state may be unhealthy; empty where nothing says so."""
    ledger: list[list[Any]] | None = None
    """Which samples went into which step; None where nobody counts them."""


def save_laid(session: Session, laid: Laid, document: Document, keep: Keep) -> Checkpoint:
    """The checkpoint, durable. HoldfastError where it could not be made; what existed before is untouched."""
    layout = laid.layout

    def produce(name: str, writer: Writer) -> ShardRecord:
        # One that writes, one for each core that copies and digests: more of them only keep the first from its core.
        workers = session.workers // 2 + 1
        sums = persist(layout, laid.encoded.carriers, writer, pool=session.pool, workers=workers)
        return ShardRecord(
            name=name, size_bytes=layout.size_bytes, chunk_bytes=CHUNK_BYTES, xxh3=sums.xxh3, blake3=sums.blake3
        )

    checkpoint = write_checkpoint(session, draft_checkpoint(session, laid, document), produce, keep)
    session.note_commit(checkpoint)
    return checkpoint


def save_in_foreground(
    session: Session, laid: Laid, document: Document, keep: Keep, on_durable: Callable[[Checkpoint], None]
) -> None:
    """Save, tell that it is durable, journal it, prune. That old ones could not be removed is only a warning (I7)."""
    checkpoint = save_laid(session, laid, document, keep)
    on_durable(checkpoint)
    session.journal.record("committed", id=checkpoint.id, step=checkpoint.step, size_bytes=checkpoint.size_bytes)
    try:
        prune_run(session, keep)
    except FencedError:
        raise
    except HoldfastError as error:
        _log.warning("old checkpoints could not be removed: %s", error.message)
        session.journal.record("prune_failed", error=error.message)


def draft_checkpoint(session: Session, laid: Laid, document: Document) -> Draft:
    """The checkpoint to be. UsageError where its head would exceed the limits, before anything is written."""
    encoded = laid.encoded
    checkpoint = _describe(session, _new_id(session, document), laid, document)
    # Only for its limits: what no reader accepts must not be acknowledged (I5).
    encode_head(checkpoint, session.run_id)
    body = Body(
        tree=encoded.tree,
        random=encoded.random,
        leaves=laid.records,
        shards=[],
        pickled=list(encoded.pickled),
        hyperparameters=document.hyperparameters,
        provenance=document.provenance,
        ledger=document.ledger or None,
    )
    return Draft(checkpoint, body)


def _describe(session: Session, checkpoint_id: str, laid: Laid, document: Document) -> Checkpoint:
    return Checkpoint(
        id=checkpoint_id,
        step=document.step,
        epoch=document.epoch,
        attempt=session.attempt,
        seq=session.seq + 1,
        parent=session.parent,
        origin=session.origin,
        utc_s=round(session.clock.utc_s(), 3),
        size_bytes=laid.layout.size_bytes,
        leaves=len(laid.records),
        world=_WORLD,
        metrics=document.metrics,
        note=document.note,
        tags=document.tags,
        pickle=bool(laid.encoded.pickled),
        suspect=document.suspect,
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
