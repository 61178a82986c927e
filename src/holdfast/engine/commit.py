"""Commit: the one place where a checkpoint comes to exist (I1), and the one where it ceases to."""

from collections.abc import Sequence

from holdfast.core.clock import Clock
from holdfast.core.errors import BlobMissingError, StorageError
from holdfast.core.limits import MAX_MANIFEST_BYTES
from holdfast.core.names import MANIFEST_NAME
from holdfast.engine.attempts import check_fence
from holdfast.engine.identity import check_run
from holdfast.engine.marks import PINNED, clear_marks, list_marks, set_mark
from holdfast.format.manifest import ShardRecord
from holdfast.storage.store import Store

__all__ = ["abandon", "check_shards", "commit", "pin", "remove_checkpoint", "remove_garbage"]

LOCK_DEADLINE_S = 60.0


def commit(
    store: Store, checkpoint_id: str, manifest: bytes, *, shards: Sequence[ShardRecord], attempt: int, run_id: str
) -> None:
    """Publish the manifest of a checkpoint whose shards are durable (I2). When this returns, it is, too (I5)."""
    with store.exclusive(LOCK_DEADLINE_S):
        # I11: a newer attempt begins under the same lock, so none can start between this check and the rename.
        check_run(store, run_id)
        check_fence(store, attempt)
        # I2: an fsync of a file that somebody has unlinked succeeds, too.
        check_shards(store, checkpoint_id, shards)
        store.publish(f"{checkpoint_id}/{MANIFEST_NAME}", manifest, make_group=False)


def check_shards(store: Store, checkpoint_id: str, shards: Sequence[ShardRecord]) -> None:
    """StorageError where a shard that was written is not there any more, or not with its size."""
    for shard in shards:
        where = f"{store.location}/{checkpoint_id}/{shard.name}"
        try:
            reader = store.open(f"{checkpoint_id}/{shard.name}")
        except BlobMissingError as error:
            raise StorageError(
                f"{where}: somebody removed it while the checkpoint was being written",
                hint="leave directories without a manifest alone while the run is being written",
                errno=error.errno,
            ) from error
        reader.close()
        if reader.size_bytes != shard.size_bytes:
            raise StorageError(f"{where}: has {reader.size_bytes} bytes, {shard.size_bytes} were written")


def abandon(store: Store, checkpoint_id: str, *, attempt: int) -> None:
    """Forget a checkpoint that was not acknowledged; FencedError where a newer attempt may go on from it already."""
    # The manifest may be there all the same, if its rename worked and the fsync after it did not: it goes first (I2).
    if _has_manifest(store, checkpoint_id):
        with store.exclusive(LOCK_DEADLINE_S):
            check_fence(store, attempt)  # I11: for everybody else it is a checkpoint
            store.remove(f"{checkpoint_id}/{MANIFEST_NAME}")
    store.remove_group(checkpoint_id)


def remove_checkpoint(store: Store, checkpoint_id: str, *, attempt: int | None, spares_pinned: bool = True) -> bool:
    """Remove a checkpoint, manifest first (I2): a crash in between leaves garbage, not a broken checkpoint.

    False where it was pinned meanwhile, and stays. `attempt` is the writer's; it is None for a person at the command
    line, who is nobody's older attempt.
    """
    with store.exclusive(LOCK_DEADLINE_S):
        if attempt is not None:
            check_fence(store, attempt)
        if spares_pinned and checkpoint_id in list_marks(store)[PINNED]:
            return False
        store.remove(f"{checkpoint_id}/{MANIFEST_NAME}")
    # Data goes outside of the lock: unlinking gigabytes takes a while, and nobody can miss what has no manifest.
    store.remove_group(checkpoint_id)
    clear_marks(store, checkpoint_id)
    return True


def pin(store: Store, checkpoint_id: str, *, reason: str, clock: Clock) -> None:
    """Keep the checkpoint whatever retention says; nothing where it is pinned already.

    Under the lock: a prune that runs now sees the pin, or came before it.
    """
    with store.exclusive(LOCK_DEADLINE_S):
        store.read(f"{checkpoint_id}/{MANIFEST_NAME}", MAX_MANIFEST_BYTES)  # BlobMissingError where it is gone
        set_mark(store, checkpoint_id, PINNED, reason=reason, clock=clock)


def remove_garbage(store: Store, checkpoint_id: str, *, attempt: int, run_id: str) -> None:
    """Remove a directory without a manifest that an earlier attempt, or a failed save of this one, left behind."""
    with store.exclusive(LOCK_DEADLINE_S):
        check_run(store, run_id)
        check_fence(store, attempt)
        # Only now is it certain that nobody else can be about to commit it: older attempts are fenced off.
        if not _has_manifest(store, checkpoint_id):
            store.remove_group(checkpoint_id)


def _has_manifest(store: Store, checkpoint_id: str) -> bool:
    return any(entry.name == MANIFEST_NAME for entry in store.list(checkpoint_id))
