"""The catalogue: which checkpoints a run has, read from their manifests' heads and marks. Reads only."""

from collections.abc import Iterator, Sequence

from holdfast.core.errors import FormatError, FormatVersionError, StorageError
from holdfast.core.light_typing import NamedTuple
from holdfast.core.limits import MAX_HEAD_BYTES
from holdfast.core.names import MANIFEST_NAME, CheckpointId, parse_checkpoint_id
from holdfast.core.values import Checkpoint
from holdfast.engine.marks import DAMAGED, PINNED, QUARANTINED, SUSPECT, VERIFIED, list_marks, read_reason
from holdfast.format.head import decode_head, split_head
from holdfast.storage.store import Store

__all__ = ["Catalog", "HeadCache", "read_catalog"]

# Most heads are a few hundred bytes; one that is longer is read again, whole.
_FIRST_READ_BYTES = 1024
# The next ones go where these were: memory that is new costs more than what is read into it.
_READ_AT_ONCE = 32

HeadCache = dict[str, Checkpoint]
"""Heads read before. A manifest never changes (I3), so a head stays true as long as the checkpoint exists."""


class Catalog(NamedTuple):
    """What is there."""

    checkpoints: list[Checkpoint]
    """Everything that has a manifest (I1), unusable ones included: those bear a reason in `quarantined`."""
    garbage: list[str]
    """Directories without a manifest: a save in progress, or what a crash or a removal left behind."""
    unread: set[str]
    """Those whose manifest could not be read now, and that bear no mark of quarantine: they may be intact."""


def read_catalog(store: Store, run_id: str, *, cache: HeadCache | None = None) -> Catalog:
    """All checkpoints of the run, ordered by name."""
    entries = {entry.name: entry.is_group for entry in store.list() if parse_checkpoint_id(entry.name)}
    marks = list_marks(store)
    marked = set().union(*marks.values())
    known = {} if cache is None else cache
    starts = _read_starts(store, [name for name, is_group in entries.items() if is_group and name not in known])
    checkpoints, garbage, unread = [], [], set()
    for checkpoint_id, is_group in entries.items():
        checkpoint = known.get(checkpoint_id)
        if checkpoint is None:
            start = next(starts) if is_group else None
            if is_group and start is None:
                if not _has_manifest(store, checkpoint_id):
                    garbage.append(checkpoint_id)
                    continue
                start = _read_start(store, checkpoint_id)  # once more: it may have been committed a moment ago
            if not isinstance(start, bytes):
                unread.add(checkpoint_id)
            checkpoint = _read_head(store, checkpoint_id, run_id, start)
        if not checkpoint.quarantined:
            known[checkpoint_id] = checkpoint
        checkpoints.append(_with_marks(store, checkpoint, marks) if checkpoint_id in marked else checkpoint)
    return Catalog(checkpoints, garbage, unread - marks[QUARANTINED])


def _with_marks(store: Store, checkpoint: Checkpoint, marks: dict[str, set[str]]) -> Checkpoint:
    def reason(kind: str) -> str:
        return read_reason(store, checkpoint.id, kind) if checkpoint.id in marks[kind] else ""

    return checkpoint._replace(
        pinned=checkpoint.id in marks[PINNED],
        # Of the two marks, the one that may be wrong without harm counts: a crash can leave both (I6).
        verified=checkpoint.id in marks[VERIFIED] and checkpoint.id not in marks[DAMAGED],
        quarantined=checkpoint.quarantined or reason(QUARANTINED),
        damaged=reason(DAMAGED),
        suspect=reason(SUSPECT),
    )


def _read_starts(store: Store, ids: list[str]) -> Iterator[bytes | StorageError | None]:
    """The start of each manifest, None where there is none, or why it cannot be read now."""
    for begin in range(0, len(ids), _READ_AT_ONCE):
        some = ids[begin : begin + _READ_AT_ONCE]
        starts: Sequence[bytes | StorageError | None]
        try:
            starts = store.list_heads(some, MANIFEST_NAME, _FIRST_READ_BYTES)
        except StorageError:
            # One bad sector must not hide the others (I12): they are asked for one by one.
            starts = [_read_start(store, checkpoint_id) for checkpoint_id in some]
        yield from starts


def _read_start(store: Store, checkpoint_id: str) -> bytes | StorageError | None:
    try:
        return store.list_heads([checkpoint_id], MANIFEST_NAME, _FIRST_READ_BYTES)[0]
    except StorageError as error:
        return error


def _has_manifest(store: Store, checkpoint_id: str) -> bool:
    """Whether something bears the manifest's name: a link or a FIFO in its place is damage, not absence."""
    return any(entry.name == MANIFEST_NAME for entry in store.list(checkpoint_id))


def _read_head(store: Store, checkpoint_id: str, run_id: str, start: bytes | StorageError | None) -> Checkpoint:
    where = f"{checkpoint_id}/{MANIFEST_NAME}"
    if start is None:
        return _damaged(checkpoint_id, f"{where} is not a readable file in a directory")
    if isinstance(start, StorageError):
        return _damaged(checkpoint_id, f"cannot be read now: {start.message}")
    if len(start) == _FIRST_READ_BYTES and start.count(b"\n") < 2:
        start = store.list_heads([checkpoint_id], MANIFEST_NAME, MAX_HEAD_BYTES + _FIRST_READ_BYTES)[0] or start
    try:
        head, _ = split_head(start, where)
        return decode_head(head, where=where, checkpoint_id=checkpoint_id, run_id=run_id)[0]
    except FormatVersionError:
        raise
    except FormatError as error:
        return _damaged(checkpoint_id, error.message)


def _damaged(checkpoint_id: str, reason: str) -> Checkpoint:
    """A checkpoint of which only the directory's name can be read."""
    parsed = parse_checkpoint_id(checkpoint_id) or CheckpointId(0, 0, "", 0)
    return Checkpoint(
        id=checkpoint_id,
        step=parsed.step,
        epoch=parsed.epoch,
        attempt=parsed.attempt,
        seq=0,
        parent=None,
        origin=None,
        utc_s=0.0,
        size_bytes=0,
        leaves=0,
        world=0,
        metrics={},
        note="",
        tags=(),
        pickle=False,
        quarantined=reason,
    )
