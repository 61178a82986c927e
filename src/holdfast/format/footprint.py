"""Where the arrays of a state lay when it was encoded: what has not moved since need not be looked at again.

Looking at a tensor costs about nine microseconds, seeing that it has not moved less than one. A footprint holds no
array: between two saves the program may let go of its memory.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from holdfast.format.arrays import Carrier, Extent, Leaf, extent_of
from holdfast.format.carriers import NativeArray, note_order, tensor_carrier

__all__ = [
    "NO_OWNER",
    "Block",
    "Footprint",
    "KnownArrays",
    "Moved",
    "make_footprint",
    "read_block",
    "where_tensors_are",
]

NO_OWNER = -1
"""Of a leaf that is not stored from one array as it is: a buffer that several are views of, a broadcast array."""


class Moved(Exception):  # noqa: N818  not an error: the state is looked at anew
    """The arrays of the state are not where they were."""


class Block(NamedTuple):
    """A dictionary that held nothing but tensors in the host's memory, or such dictionaries: an optimizer's state."""

    first: int
    """The place of its first tensor among all arrays of the state."""
    keys: list[object]
    whereabouts: list[object]
    node: dict[str, Any]

    def check(self, found: Mapping[Any, Any], place: int) -> list[Any]:
        """Its tensors; Moved unless they are where they were, at the same place among the arrays of the state."""
        content = read_block(found)
        if place != self.first or content is None or content.keys != self.keys:
            raise Moved
        try:
            whereabouts = where_tensors_are(content.tensors)
        except (AttributeError, RuntimeError, TypeError):  # not tensors, or not such ones
            raise Moved from None
        if whereabouts != self.whereabouts:
            raise Moved
        return content.tensors


class BlockContent(NamedTuple):
    """What may be a block."""

    keys: list[object]
    tensors: list[Any]


def read_block(found: Mapping[Any, Any]) -> BlockContent | None:
    """What is in a dictionary, or in the dictionaries in it; None where it is neither. All might still be anything."""
    values = list(found.values())
    kinds = set(map(type, values))
    if dict not in kinds:
        return BlockContent(list(found), values)
    if kinds != {dict}:
        return None
    # The types too: 1 and True are equal.
    keys: list[object] = [(type(key), key, *inner) for key, inner in found.items()]
    return BlockContent(keys, [tensor for inner in values for tensor in inner.values()])


class Footprint(NamedTuple):
    """The arrays of a state, in the order in which they are met."""

    paths: list[str]
    blocks: dict[str, Block]
    """By the path of the dictionary."""
    leaves: list[Leaf]
    owners: list[int]
    """The array that each leaf is stored from."""
    known: list[tuple[int, int]]
    """The addresses of the leaves of the blocks, from and to, in order and without overlap."""


def where_tensors_are(tensors: Iterable[Any]) -> list[object]:
    """What is the same only as long as a tensor has the same elements in the same memory."""
    return [
        (type(t), t.data_ptr(), t.dtype, t.shape, t.stride(), t.requires_grad, t.is_cpu, t.is_conj(), t.is_neg())
        for t in tensors
    ]


def make_footprint(
    paths: list[str], blocks: dict[str, Block], leaves: list[Leaf], owners: list[int], leaf_of: Sequence[int]
) -> Footprint | None:
    """None where arrays outside of the blocks share memory, or a leaf is not stored from an array as it is.

    Then all of them have to be compared each time.
    """
    if NO_OWNER in owners:
        return None
    in_block = {block.first + offset for block in blocks.values() for offset in range(len(block.whereabouts))}
    seen: set[int] = set()
    for array, leaf in enumerate(leaf_of):
        if array in in_block:
            continue
        if leaf in seen or owners[leaf] != array:
            return None
        seen.add(leaf)
    if any(leaf in seen for array, leaf in enumerate(leaf_of) if array in in_block):
        return None
    known = _merged(leaf.extent for index, leaf in enumerate(leaves) if index not in seen)
    return Footprint(paths, blocks, leaves, owners, known)


def _merged(extents: Iterable[Extent]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for low, high in sorted((extent.low, extent.high) for extent in extents if extent.high > extent.low):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return merged


class KnownArrays:
    """Gathers the arrays of a state that was encoded before, as LeafCollector does for one that was not."""

    def __init__(self, footprint: Footprint) -> None:
        self._footprint = footprint
        self._leaf_of = {owner: leaf for leaf, owner in enumerate(footprint.owners)}
        self._arrays: list[Any] = []
        self._loose: dict[int, NativeArray] = {}

    def __len__(self) -> int:
        return len(self._arrays)

    def take(self, kind: str, value: Mapping[Any, Any], path: str) -> dict[str, Any] | None:
        """The node of a dictionary that is a block; None where it is none, Moved where it is no longer the same."""
        block = self._footprint.blocks.get(path)
        if block is None:
            return None
        if kind != block.node["kind"]:
            raise Moved
        self._arrays.extend(block.check(value, len(self._arrays)))
        return dict(block.node)

    def add(self, node: dict[str, Any], path: str, array: NativeArray) -> None:
        """Remember an array outside of the blocks, and give its node the leaf that it had."""
        index = len(self._arrays)
        if index >= len(self._footprint.paths) or self._footprint.paths[index] != path:
            raise Moved
        node["leaf"] = self._leaf_of.get(index, NO_OWNER)
        note_order(node, array)
        self._loose[index] = array
        self._arrays.append(array)

    def finish(self) -> dict[int, Leaf]:
        """The leaves of the arrays outside of the blocks; Moved where one no longer fits its place, or shares memory.

        And where an array is missing.
        """
        if len(self._arrays) != len(self._footprint.paths):
            raise Moved
        found: dict[int, Leaf] = {}
        for index, array in self._loose.items():
            leaf, carrier = self._leaf_of.get(index, NO_OWNER), array.carrier
            if leaf == NO_OWNER or not carrier.flags.forc:  # it may repeat elements, or share them with itself
                raise Moved
            before = self._footprint.leaves[leaf]
            if (array.dtype, carrier.shape, carrier.itemsize) != (before.dtype, before.shape, before.itemsize):
                raise Moved
            extent = extent_of(carrier, array.address)
            found[leaf] = Leaf(before.name, before.dtype, before.shape, before.nbytes, before.itemsize, extent)
        _check_apart([leaf.extent for leaf in found.values()], self._footprint.known)
        return found

    def carriers(self) -> Sequence[Carrier]:
        """One for each leaf, each made when it is asked for: by the thread that copies, not by the training's."""
        return _LateCarriers(self._arrays, self._footprint.owners)


def _check_apart(extents: Sequence[Extent], known: Sequence[tuple[int, int]]) -> None:
    filled = sorted((extent.low, extent.high) for extent in extents if extent.high > extent.low)
    if any(low < before for (_, before), (low, _) in pairwise(filled)):
        raise Moved
    for low, high in filled:
        position = bisect_right(known, (low, high))
        neighbours = known[max(0, position - 1) : position + 1]
        if any(other_low < high and low < other_high for other_low, other_high in neighbours):
            raise Moved


class _LateCarriers(Sequence[Carrier]):
    """The carriers of the leaves, each made when it is asked for: by the thread that copies, not by the training's."""

    def __init__(self, arrays: Sequence[Any], owners: Sequence[int]) -> None:
        self._arrays = arrays
        self._owners = owners

    def __len__(self) -> int:
        return len(self._owners)

    def __getitem__(self, leaf: Any) -> Any:
        array = self._arrays[self._owners[leaf]]
        return array.carrier if isinstance(array, NativeArray) else tensor_carrier(array)
