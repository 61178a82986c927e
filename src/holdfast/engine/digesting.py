"""A chunk on its way to the disk: taken by way of a small buffer, digested there, and put into its place in a block.

The small buffer stays in the caches. Digested in the block, which goes past them, every byte would be fetched from
memory once more, while the disk fetches what is written from the same memory (decision 29).
"""

from collections.abc import Callable
from typing import NamedTuple

from holdfast.format.head import digest_hex
from holdfast.format.moving import stream, streams

__all__ = ["ChunkSums", "take_digested"]


class ChunkSums(NamedTuple):
    """What is known of one chunk."""

    xxh3: str
    blake3: str


def take_digested(take: Callable[[memoryview], str], place: memoryview, scratch: memoryview) -> ChunkSums:
    """Have the chunk taken, which gives its checksum, and put into that place; the sums of exactly what is there (I4).

    Where nothing goes past the caches, what is in its place is in them.
    """
    taken = scratch[: len(place)] if streams() else place
    sums = ChunkSums(take(taken), digest_hex(taken))
    if taken is not place:
        stream(taken, place)
    return sums
