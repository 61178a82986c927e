"""Writing a snapshot while it is still being copied. Nothing of it counts before the copy is complete and compared.

How far the image is filled is only a hint: were it wrong, or the copy given up, the checksums of what was written here
would not be those that the copy was made with, and all of it would be written again (I4).
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from holdfast.core.errors import HoldfastError, SaveFailedError
from holdfast.core.limits import CHUNK_BYTES
from holdfast.core.names import shard_name
from holdfast.engine.blocks import BlockPool
from holdfast.engine.commit import abandon
from holdfast.engine.digesting import ChunkSums
from holdfast.engine.persist_image import with_digests, write_image
from holdfast.format.manifest import ShardRecord
from holdfast.storage.store import Store, Writer

__all__ = ["WrittenAhead", "may_write_ahead", "write_ahead"]

_PAUSE_S = 0.001
# A copy that does not move for this long is not waited for: it is written when it is complete. By the pauses that were
# made: the time for which this process was stopped does not count.
_PATIENCE_S = 5.0


class WrittenAhead(NamedTuple):
    """A shard with all its bytes, neither durable nor known to be those of the state."""

    checkpoint_id: str
    size_bytes: int
    writer: Writer
    sums: list[ChunkSums]

    def is_of(self, checkpoint_id: str, staged: ShardRecord) -> bool:
        """Whether it is the shard of that snapshot, byte for byte."""
        written = (self.checkpoint_id, self.size_bytes, CHUNK_BYTES, [each.xxh3 for each in self.sums])
        return written == (checkpoint_id, staged.size_bytes, staged.chunk_bytes, staged.xxh3)

    def finish(self, staged: ShardRecord) -> ShardRecord:
        """Make it durable."""
        self.writer.finish(staged.size_bytes)
        return with_digests(staged, self.sums)

    def abandon(self, store: Store, attempt: int) -> None:
        """Remove it, as far as that is possible: without a manifest it is nothing (I1)."""
        self.writer.abandon()
        _abandon_quietly(store, self.checkpoint_id, attempt)


def may_write_ahead(store: Store, checkpoint_id: str, size_bytes: int) -> bool:
    """Whether the name is free, and there is plenty of room: whether there is enough is asked when it is complete."""
    return store.space().free_bytes >= 3 * size_bytes and not store.list(checkpoint_id)


def write_ahead(
    store: Store,
    checkpoint_id: str,
    image: memoryview,
    *,
    attempt: int,
    filled_bytes: Callable[[], int],
    goes_on: Callable[[], bool],
    pool: BlockPool,
    workers: int,
    progress: Callable[[int], None],
) -> WrittenAhead | None:
    """Write the image as it is filled. None where it does not come to its end, and nothing is left of it."""
    writer: Writer | None = None
    try:
        writer = store.create(f"{checkpoint_id}/{shard_name(0)}", len(image))
        sums = write_image(
            image,
            CHUNK_BYTES,
            writer,
            pool=pool,
            workers=workers,
            wait_until_filled=lambda end: _wait_until_filled(end, filled_bytes, goes_on),
            progress=progress,
        )
    except BaseException as error:
        if writer is not None:
            writer.abandon()
        _abandon_quietly(store, checkpoint_id, attempt)
        if isinstance(error, HoldfastError):
            return None  # a copy that was given up; a storage that fails will say so again
        raise
    return WrittenAhead(checkpoint_id, len(image), writer, sums)


def _wait_until_filled(end: int, filled_bytes: Callable[[], int], goes_on: Callable[[], bool]) -> None:
    before, waited_s = -1, 0.0
    while True:
        # Also where it is filled: what nobody wants any more must not keep those waiting who want something else.
        if not goes_on():
            raise SaveFailedError("another order came first")
        filled = filled_bytes()
        if filled >= end:
            return
        waited_s = waited_s + _PAUSE_S if filled == before else 0.0
        if waited_s > _PATIENCE_S:
            raise SaveFailedError(f"the copy has come to {filled} bytes and does not go on")
        before = filled
        time.sleep(_PAUSE_S)


def _abandon_quietly(store: Store, checkpoint_id: str, attempt: int) -> None:
    try:
        abandon(store, checkpoint_id, attempt=attempt)
    except HoldfastError:
        pass  # a later prune removes it
