"""Persist: write a laid-out state as one shard, copying, digesting and writing each block in one pass."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from holdfast.core.limits import CHUNK_BYTES
from holdfast.engine.blocks import BlockPool, run_in_order
from holdfast.format.arrays import copy_range
from holdfast.format.checksum import checksum_hex
from holdfast.format.head import digest_hex
from holdfast.format.shard import Layout
from holdfast.storage.store import Writer

__all__ = ["Sums", "persist"]

Carrier = np.ndarray


class Sums(NamedTuple):
    """What is known of each chunk of a shard."""

    xxh3: list[str]
    blake3: list[str]


class _Image:
    """The bytes of a shard, produced range by range from the header and the arrays."""

    def __init__(self, layout: Layout, carriers: Sequence[Carrier]) -> None:
        self._header = memoryview(layout.header)
        filled = [index for index in layout.order if layout.places[index].end > layout.places[index].begin]
        self._places = [layout.places[index] for index in filled]
        self._carriers = [carriers[index] for index in filled]
        self._ends = [place.end for place in self._places]

    def copy(self, begin: int, end: int, out: memoryview) -> None:
        """Put the bytes from begin to end into out."""
        if begin < len(self._header):
            part = self._header[begin:end]
            out[: len(part)] = part
        position = bisect_right(self._ends, begin)
        while position < len(self._places):
            place = self._places[position]
            if place.begin >= end:
                break
            first, last = max(begin, place.begin), min(end, place.end)
            copy_range(
                self._carriers[position],
                first - place.begin,
                last - place.begin,
                out[first - begin : last - begin],
            )
            position += 1


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
    image = _Image(layout, carriers)
    size_bytes, block_bytes = layout.size_bytes, pool.size_bytes
    chunks_per_block = block_bytes // chunk_bytes
    chunks = -(-size_bytes // chunk_bytes)
    sums = Sums([""] * chunks, [""] * chunks)

    def fill(index: int, block: memoryview) -> memoryview:
        begin = index * block_bytes
        data = block[: min(block_bytes, size_bytes - begin)]
        # A chunk is digested while it is still in the cache that it was copied to. The sums are of what is in our own
        # buffer, and exactly that is written (I4).
        for chunk, offset in enumerate(range(0, len(data), chunk_bytes), index * chunks_per_block):
            part = data[offset : offset + chunk_bytes]
            image.copy(begin + offset, begin + offset + len(part), part)
            sums.xxh3[chunk] = checksum_hex(part)
            sums.blake3[chunk] = digest_hex(part)
        return data

    def write(index: int, data: memoryview) -> None:
        writer.write_at(data, index * block_bytes)

    run_in_order(fill, write, -(-size_bytes // block_bytes), pool=pool, workers=workers)
    writer.finish(size_bytes)
    return sums
