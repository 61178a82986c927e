"""Copies of checkpoints: byte-identical files, verified at both ends, manifest last (I2), nothing overwritten."""

from collections.abc import Sequence, Set
from typing import NamedTuple

from holdfast.core.clock import Clock
from holdfast.core.errors import BlobMissingError, FormatError, IntegrityError, RunBusyError, RunError
from holdfast.core.limits import MAX_MANIFEST_BYTES, MAX_SMALL_BLOB_BYTES
from holdfast.core.names import ATTEMPTS_DIR, JOURNAL_NAME, MANIFEST_NAME, MARKER_NAME, attempt_key
from holdfast.core.values import Checkpoint
from holdfast.engine.blocks import BlockPool, run_in_order
from holdfast.engine.commit import LOCK_DEADLINE_S, check_shards
from holdfast.engine.holders import is_being_written, latest_holder
from holdfast.engine.identity import identify
from holdfast.engine.loading import Source
from holdfast.engine.marks import (
    DAMAGED,
    PINNED,
    QUARANTINED,
    SUSPECT,
    VERIFIED,
    clear_mark,
    list_marks,
    read_reason,
    set_mark,
)
from holdfast.engine.pruning import is_complete
from holdfast.engine.reading import Progress, verify_shard
from holdfast.format.head import digest_hex
from holdfast.format.manifest import Body, ShardRecord, decode_manifest
from holdfast.storage.store import Reader, Store, Writer

__all__ = ["Copied", "copy_checkpoints", "copy_journal"]


class Copied(NamedTuple):
    """What a copy did."""

    copied: list[str]
    already_there: list[str]
    gone: list[str]
    """Removed at the source while it was being copied."""
    size_bytes: int


def copy_checkpoints(source: Source, target: Store, checkpoints: Sequence[Checkpoint], clock: Clock) -> Copied:
    """Copy these checkpoints into the target, which must be empty or a copy of the same run.

    May be interrupted and repeated: what is there and complete is skipped, what is half there is written again.
    """
    _found_copy(source, target)
    _copy_attempts(source.store, target, max((checkpoint.attempt for checkpoint in checkpoints), default=0))
    done = Copied([], [], [], 0)
    marks = list_marks(target)
    for checkpoint in checkpoints:
        try:
            size_bytes = _copy_one(source, target, checkpoint, clock, damaged=marks[DAMAGED] | marks[QUARANTINED])
        except BlobMissingError:
            if _has_manifest(source.store, checkpoint.id):
                raise
            done.gone.append(checkpoint.id)
            continue
        (done.already_there if size_bytes is None else done.copied).append(checkpoint.id)
        done = done._replace(size_bytes=done.size_bytes + (size_bytes or 0))
    return done


def copy_journal(source: Store, target: Store) -> None:
    """The journal of the source, where the target has none yet."""
    if not any(entry.name == JOURNAL_NAME for entry in target.list()):
        lines = source.read_tail(JOURNAL_NAME, MAX_MANIFEST_BYTES)
        if lines:
            target.append(JOURNAL_NAME, lines, durable=True)


def _found_copy(source: Source, target: Store) -> None:
    try:
        found = identify(target)
    except RunError:
        foreign = [entry.name for entry in target.list()]
        if foreign:
            raise RunError(
                f"{target.location} is neither empty nor a run: it holds {foreign[0]!r}",
                hint="copy to a new directory",
            ) from None
        target.publish(MARKER_NAME, source.store.read(MARKER_NAME, MAX_SMALL_BLOB_BYTES))
        return
    if found != source.run_id:
        raise RunError(
            f"{target.location} is another run (id {found}, the source is {source.run_id})",
            hint="a copy keeps its identity: copy to a new directory, or export and import the state",
        )


def _copy_attempts(source: Store, target: Store, newest: int) -> None:
    """The attempts up to the newest checkpoint's: a training that goes on from the copy counts from there (I11)."""
    present = {entry.name for entry in target.list(ATTEMPTS_DIR)}
    wanted = {entry.name for entry in source.list(ATTEMPTS_DIR)}
    for number in range(1, newest + 1):
        key = attempt_key(number)
        name = key.partition("/")[2]
        if name not in wanted:
            continue
        data = source.read(key, MAX_SMALL_BLOB_BYTES)
        if name not in present:
            target.publish(key, data)
        elif target.read(key, MAX_SMALL_BLOB_BYTES) != data:
            raise RunError(
                f"{target.location} and {source.location} are copies of one run that went on separately: "
                f"attempt {number} is not the same in both",
                hint="copy to a new directory",
            )


def _copy_one(source: Source, target: Store, checkpoint: Checkpoint, clock: Clock, *, damaged: Set[str]) -> int | None:
    """How many bytes were copied; None where the checkpoint was there already."""
    key = f"{checkpoint.id}/{MANIFEST_NAME}"
    manifest = source.store.read(key, MAX_MANIFEST_BYTES)
    body = decode_manifest(manifest, where=key, checkpoint_id=checkpoint.id, run_id=source.run_id).body
    size_bytes = sum(shard.size_bytes for shard in body.shards)
    if _has_manifest(target, checkpoint.id):
        _check_present(source, target, checkpoint.id, manifest, damaged)
        _advance(source.progress, 2 * size_bytes)
        return None
    present = {entry.name for entry in target.list(checkpoint.id)}
    for shard in body.shards:
        if shard.name in present:
            if _is_intact(source, target, checkpoint.id, shard):
                _advance(source.progress, 2 * shard.size_bytes)
                continue
            # I1: without a manifest nothing there is a checkpoint; an interrupted copy is written again.
            target.remove(f"{checkpoint.id}/{shard.name}")
        _copy_shard(source, target, checkpoint.id, shard)
    with target.exclusive(LOCK_DEADLINE_S):
        _check_undisturbed(target, checkpoint.id, body)
        target.publish(key, manifest, make_group=False)
    for kind in (DAMAGED, QUARANTINED):  # of a copy that was there before, and was removed by hand
        clear_mark(target, checkpoint.id, kind)
    set_mark(target, checkpoint.id, VERIFIED, reason=f"copied from {source.store.location}", clock=clock)
    if checkpoint.pinned:
        set_mark(target, checkpoint.id, PINNED, reason=read_reason(source.store, checkpoint.id, PINNED), clock=clock)
    if checkpoint.suspect:
        set_mark(target, checkpoint.id, SUSPECT, reason=checkpoint.suspect, clock=clock)
    return size_bytes


def _check_undisturbed(target: Store, checkpoint_id: str, body: Body) -> None:
    """A training that began in the target meanwhile would have taken what has no manifest yet for garbage."""
    holder = latest_holder(target)
    if holder is not None and is_being_written(target, holder.attempt):
        raise RunBusyError(
            f"{target.location} is being written by {holder}", hint="copy to a new directory, or wait until it ends"
        )
    check_shards(target, checkpoint_id, body.shards)


def _copy_shard(source: Source, target: Store, checkpoint_id: str, shard: ShardRecord) -> None:
    key = f"{checkpoint_id}/{shard.name}"
    reader = _open_shard(source.store, key)
    try:
        if reader.size_bytes != shard.size_bytes:
            raise IntegrityError(
                f"{source.store.location}/{key} has {reader.size_bytes} bytes, its manifest says {shard.size_bytes}",
                hint=_left_out(source.store),
            )
        writer = target.create(key, shard.size_bytes)
        try:
            _copy_chunks(reader, writer, shard, source, key)
            writer.finish(shard.size_bytes)
        except BaseException:
            writer.abandon()
            raise
    finally:
        reader.close()
    if not _is_intact(source, target, checkpoint_id, shard, progress=source.progress):
        raise IntegrityError(
            f"{target.location}/{key}: what was read back is not what was written",
            hint="the storage there cannot be trusted: holdfast doctor, dmesg",
        )


def _open_shard(store: Store, key: str) -> Reader:
    try:
        return store.open(key)
    except BlobMissingError as error:
        if not _has_manifest(store, key.partition("/")[0]):
            raise  # removed meanwhile, the whole checkpoint
        raise IntegrityError(f"{store.location}/{key} is missing", hint=_left_out(store)) from error


def _copy_chunks(reader: Reader, writer: Writer, shard: ShardRecord, source: Source, key: str) -> None:
    pool = source.pool if shard.chunk_bytes <= source.pool.size_bytes else BlockPool(shard.chunk_bytes)

    def read(index: int, block: memoryview) -> memoryview:
        begin = index * shard.chunk_bytes
        data = block[: min(shard.chunk_bytes, shard.size_bytes - begin)]
        reader.read_at([data], begin)
        if digest_hex(data) != shard.blake3[index]:
            raise IntegrityError(
                f"{source.store.location}/{key}: chunk {index} differs from its digest",
                hint=_left_out(source.store),
            )
        return data

    def write(index: int, data: memoryview) -> None:
        writer.write_at(data, index * shard.chunk_bytes)
        _advance(source.progress, len(data))

    run_in_order(read, write, len(shard.blake3), pool=pool, workers=source.workers)


def _check_present(source: Source, target: Store, checkpoint_id: str, manifest: bytes, damaged: Set[str]) -> None:
    there = target.read(f"{checkpoint_id}/{MANIFEST_NAME}", MAX_MANIFEST_BYTES)
    is_whole = there == manifest and is_complete(target, source.run_id, checkpoint_id)
    if not is_whole or checkpoint_id in damaged:
        found = "was found damaged" if is_whole else "is not a complete copy"
        raise IntegrityError(
            f"{target.location}/{checkpoint_id} is there already, but {found}",
            hint=f"holdfast verify {target.location} {checkpoint_id}; holdfast rm removes it",
        )


def _is_intact(
    source: Source, target: Store, checkpoint_id: str, shard: ShardRecord, *, progress: Progress | None = None
) -> bool:
    try:
        return not verify_shard(
            target, checkpoint_id, shard, pool=source.pool, workers=source.workers, progress=progress
        )
    except FormatError:
        return False


def _left_out(store: Store) -> str:
    return f"`holdfast verify {store.location} --all --quarantine` marks what is damaged; copies leave that out"


def _has_manifest(store: Store, checkpoint_id: str) -> bool:
    return any(entry.name == MANIFEST_NAME for entry in store.list(checkpoint_id))


def _advance(progress: Progress | None, done_bytes: int) -> None:
    if progress is not None:
        progress(done_bytes)
