"""Persist: write a laid-out state as one shard, copying, digesting and writing each block in one pass."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from holdfast.core.limits import CHUNK_BYTES
from holdfast.engine.blocks import BlockPool, run_in_order
from holdfast.engine.digesting import take_digested
from holdfast.engine.image import Image
from holdfast.format.arrays import Carrier
from holdfast.format.shard import Layout
from holdfast.storage.store import Writer

__all__ = ["Sums", "persist"]


class Sums(NamedTuple):
    """What is known of each chunk of a shard."""

    xxh3: list[str]
    blake3: list[str]


def persist(layout: Layout, carriers: Sequence[Carrier], writer: Writer, *, pool: BlockPool, workers: int) -> Sums:
    """Write the shard and make it durable; the checksums and digests of its chunks."""
    image = Image(layout, carriers)
    size_bytes, block_bytes = layout.size_bytes, pool.size_bytes
    chunks = -(-size_bytes // CHUNK_BYTES)
    sums = Sums([""] * chunks, [""] * chunks)

    def fill(index: int, block: memoryview) -> memoryview:
        begin = index * block_bytes
        data = block[: min(block_bytes, size_bytes - begin)]
        with pool.scratch() as scratch:
            for offset in range(begin, begin + len(data), CHUNK_BYTES):
                part = data[offset - begin : offset - begin + CHUNK_BYTES]
                take = partial(image.take, offset, offset + len(part), kept=True)
                chunk = offset // CHUNK_BYTES
                sums.xxh3[chunk], sums.blake3[chunk] = take_digested(take, part, scratch)
        return data

    def write(index: int, data: memoryview) -> None:
        writer.write_at(data, index * block_bytes)

    run_in_order(fill, write, -(-size_bytes // block_bytes), pool=pool, workers=workers)
    writer.finish(size_bytes)
    return sums
