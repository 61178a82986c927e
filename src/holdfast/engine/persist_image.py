"""Persist a snapshot: memory that holds the exact bytes of a shard, checked, digested and written."""

from collections.abc import Callable
from functools import partial

from holdfast.core.errors import IntegrityError
from holdfast.engine.blocks import BlockPool, run_in_order
from holdfast.engine.digesting import take_digested
from holdfast.format.manifest import ShardRecord
from holdfast.format.moving import gather
from holdfast.storage.store import Writer

__all__ = ["persist_image"]


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
    written as if it were the state (I4). It goes to the disk through blocks, although it could be written from where
    it is: shared memory is in small pages, and a disk takes a third longer to write from these than from huge ones.
    """
    chunk_bytes, size_bytes = staged.chunk_bytes, staged.size_bytes
    if chunk_bytes > pool.chunk_bytes:
        pool = BlockPool(max(chunk_bytes, pool.size_bytes), chunk_bytes=chunk_bytes)
    block_bytes = pool.size_bytes - pool.size_bytes % chunk_bytes
    digests = [""] * len(staged.xxh3)

    def check(index: int, block: memoryview) -> memoryview:
        begin = index * block_bytes
        data = block[: min(block_bytes, size_bytes - begin)]
        with pool.scratch() as scratch:
            for offset in range(begin, begin + len(data), chunk_bytes):
                part = data[offset - begin : offset - begin + chunk_bytes]
                # What is checked is what is written: a copy that nobody else can change.
                take = partial(gather, parts=[image[offset : offset + len(part)]], kept=True)
                chunk = offset // chunk_bytes
                checksum, digests[chunk] = take_digested(take, part, scratch)
                if checksum != staged.xxh3[chunk]:
                    raise IntegrityError(
                        f"{staged.name}: chunk {chunk} of the snapshot in memory differs from its checksum",
                        hint="something wrote to the memory between capture and writing; "
                        "the next checkpoint is a new copy",
                    )
        return data

    def write(index: int, data: memoryview) -> None:
        writer.write_at(data, index * block_bytes)
        if progress is not None:
            progress(len(data))

    run_in_order(check, write, -(-size_bytes // block_bytes), pool=pool, workers=workers)
    writer.finish(size_bytes)
    return ShardRecord(
        name=staged.name, size_bytes=size_bytes, chunk_bytes=chunk_bytes, xxh3=staged.xxh3, blake3=digests
    )
