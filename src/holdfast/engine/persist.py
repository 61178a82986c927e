"""Persist: write a laid-out state as one shard, copying, digesting and writing each block in one pass."""

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.limits import CHUNK_BYTES
from holdfast.engine.blocks import BlockPool, run_in_order
from holdfast.engine.image import Image
from holdfast.format.arrays import Carrier
from holdfast.format.head import digest_hex
from holdfast.format.shard import Layout
from holdfast.storage.store import Writer

__all__ = ["Sums", "persist"]


class Sums(NamedTuple):
    """What is known of each chunk of a shard."""

    xxh3: list[str]
    blake3: list[str]


def persist(
    layout: Layout,
    carriers: Sequence[Carrier],
    writer: Writer,
    *,
    pool: BlockPool,
    workers: int,
    chunk_bytes: int = CHUNK_BYTES,
) -> Sums:
    """Write the shard and make it durable; the checksums and digests of its chunks."""
    image = Image(layout, carriers)
    size_bytes, block_bytes = layout.size_bytes, pool.size_bytes
    chunks_per_block = block_bytes // chunk_bytes
    chunks = -(-size_bytes // chunk_bytes)
    sums = Sums([""] * chunks, [""] * chunks)

    def fill(index: int, block: memoryview) -> memoryview:
        begin = index * block_bytes
        data = block[: min(block_bytes, size_bytes - begin)]
        # The sums are of what is in our own buffer, and exactly that is written (I4).
        for chunk, offset in enumerate(range(0, len(data), chunk_bytes), index * chunks_per_block):
            part = data[offset : offset + chunk_bytes]
            sums.xxh3[chunk] = image.take(begin + offset, begin + offset + len(part), part)
            sums.blake3[chunk] = digest_hex(part)
        return data

    def write(index: int, data: memoryview) -> None:
        writer.write_at(data, index * block_bytes)

    run_in_order(fill, write, -(-size_bytes // block_bytes), pool=pool, workers=workers)
    writer.finish(size_bytes)
    return sums
