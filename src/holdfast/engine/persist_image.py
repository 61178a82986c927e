"""Persist a snapshot: memory that holds the exact bytes of a shard, checked, digested and written."""

from collections.abc import Callable, Sequence
from functools import partial

from holdfast.core.errors import IntegrityError
from holdfast.engine.blocks import BlockPool, run_in_order
from holdfast.engine.digesting import ChunkSums, take_digested
from holdfast.format.manifest import ShardRecord
from holdfast.format.moving import gather
from holdfast.storage.store import Writer

__all__ = ["persist_image", "with_digests", "write_image"]

Check = Callable[[int, str], None]
"""Raises where that is not the checksum of the chunk with that number."""


def persist_image(
    image: memoryview,
    staged: ShardRecord,
    writer: Writer,
    *,
    pool: BlockPool,
    workers: int,
    progress: Callable[[int], None] | None = None,
) -> ShardRecord:
    """Write the shard and make it durable; its record, with the digests that the staged one does not have yet.

    Every chunk is compared with the checksum that was taken when it was copied: memory that changed since then is not
    written as if it were the state (I4).
    """

    def check(chunk: int, checksum: str) -> None:
        if checksum != staged.xxh3[chunk]:
            raise IntegrityError(
                f"{staged.name}: chunk {chunk} of the snapshot in memory differs from its checksum",
                hint="something wrote to the memory between capture and writing; the next checkpoint is a new copy",
            )

    sums = write_image(image, staged.chunk_bytes, writer, pool=pool, workers=workers, check=check, progress=progress)
    writer.finish(staged.size_bytes)
    return with_digests(staged, sums)


def with_digests(staged: ShardRecord, sums: Sequence[ChunkSums]) -> ShardRecord:
    """The record of a shard that is durable."""
    return ShardRecord(
        name=staged.name,
        size_bytes=staged.size_bytes,
        chunk_bytes=staged.chunk_bytes,
        xxh3=staged.xxh3,
        blake3=[each.blake3 for each in sums],
    )


def write_image(
    image: memoryview,
    chunk_bytes: int,
    writer: Writer,
    *,
    pool: BlockPool,
    workers: int,
    check: Check | None = None,
    wait_until_filled: Callable[[int], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[ChunkSums]:
    """Write all of it; the sums of exactly what was written.

    It goes to the disk through blocks, although it could be written from where it is: shared memory is in small pages,
    and a disk takes a third longer to write from these than from huge ones. Before the bytes up to some place are read,
    `wait_until_filled` returns.
    """
    size_bytes = len(image)
    if chunk_bytes > pool.chunk_bytes:
        pool = BlockPool(max(chunk_bytes, pool.size_bytes), chunk_bytes=chunk_bytes)
    block_bytes = pool.size_bytes - pool.size_bytes % chunk_bytes
    sums = [ChunkSums("", "")] * -(-size_bytes // chunk_bytes)

    def fill(index: int, block: memoryview) -> memoryview:
        begin = index * block_bytes
        data = block[: min(block_bytes, size_bytes - begin)]
        if wait_until_filled is not None:
            wait_until_filled(begin + len(data))
        with pool.scratch() as scratch:
            for offset in range(begin, begin + len(data), chunk_bytes):
                part = data[offset - begin : offset - begin + chunk_bytes]
                # What is checked is what is written: a copy that nobody else can change.
                take = partial(gather, parts=[image[offset : offset + len(part)]], kept=True)
                chunk = offset // chunk_bytes
                sums[chunk] = take_digested(take, part, scratch)
                if check is not None:
                    check(chunk, sums[chunk].xxh3)
        return data

    def write(index: int, data: memoryview) -> None:
        writer.write_at(data, index * block_bytes)
        if progress is not None:
            progress(len(data))

    run_in_order(fill, write, -(-size_bytes // block_bytes), pool=pool, workers=workers)
    return sums
