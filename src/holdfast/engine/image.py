"""The bytes of a shard, produced range by range from its layout and the program's arrays."""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, pairwise

from holdfast import native
from holdfast.format.arrays import Carrier, bytes_view, copy_range
from holdfast.format.checksum import checksum_hex
from holdfast.format.moving import gather
from holdfast.format.shard import Layout, Place

__all__ = ["Image"]


class Image:
    """The header, and the arrays in the order of their places; or, with `only`, some of the arrays."""

    def __init__(self, layout: Layout, carriers: Sequence[Carrier], *, only: Collection[int] | None = None) -> None:
        self._header = memoryview(layout.header)
        # In that order the places follow each other; of a few arrays among thousands only these are looked at.
        ordered = layout.order if only is None else sorted(only, key=lambda index: layout.places[index].begin)
        filled = [index for index in ordered if layout.places[index].end > layout.places[index].begin]
        self._places = [layout.places[index] for index in filled]
        # Asked for when their bytes are: some are only made then, and making thousands would keep the disk waiting.
        self._carriers, self._leaves = carriers, filled
        self._ends = [place.end for place in self._places]

    def chunks(self, chunk_bytes: int) -> Iterator[int]:
        """The chunks that have bytes of the header or of these arrays, in order."""
        following = 0
        for place in chain([Place(0, len(self._header))], self._places):
            first = max(following, place.begin // chunk_bytes)
            following = max(following, -(-place.end // chunk_bytes))
            yield from range(first, following)

    def take(self, begin: int, end: int, out: memoryview, *, kept: bool = False) -> str:
        """Put the bytes from begin to end into out, as `copy` does; the checksum of all that is in it then.

        With `kept`, what is in it stays in the caches: somebody looks at it next.
        """
        parts = self._parts(begin, end)
        if parts is not None:
            return gather(out, parts, kept=kept)
        self.copy(begin, end, out)
        # While it is in the cache that it was copied to.
        return checksum_hex(out)

    def take_chunks(self, begin: int, end: int, out: memoryview, *, chunk_bytes: int) -> list[str]:
        """The same for chunks of that size, of which the last may be shorter; the checksum of each."""
        parts = self._parts(begin, end) if native.is_built() else None
        sums = native.gather_chunks(out, parts, chunk_bytes) if parts is not None else None
        if sums is not None:
            return sums
        # One of them is too short for that, or an array is strided: one by one.
        edges = [*range(begin, end, chunk_bytes), end]
        return [self.take(first, last, out[first - begin : last - begin]) for first, last in pairwise(edges)]

    def copy(self, begin: int, end: int, out: memoryview) -> None:
        """Put the bytes from begin to end into out; those of arrays that are left out are not touched."""
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
                self._carrier(position),
                first - place.begin,
                last - place.begin,
                out[first - begin : last - begin],
            )
            position += 1

    def _carrier(self, position: int) -> Carrier:
        return self._carriers[self._leaves[position]]

    def _parts(self, begin: int, end: int) -> list[memoryview] | None:
        """The memory that these bytes lie in; None where an array is strided, or left out."""
        parts = [self._header[begin:end]] if begin < len(self._header) else []
        at = max(begin, min(end, len(self._header)))
        position = bisect_right(self._ends, at)
        while at < end and position < len(self._places):
            place, carrier = self._places[position], self._carrier(position)
            if place.begin > at or not carrier.flags.c_contiguous:
                return None
            last = min(end, place.end)
            parts.append(bytes_view(carrier)[at - place.begin : last - place.begin])
            at = last
            position += 1
        return parts if at == end else None
