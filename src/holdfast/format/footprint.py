"""Where the arrays of a state lay when it was encoded: what has not moved since need not be looked at again.

Looking at a tensor costs about nine microseconds, seeing that it has not moved less than one. A footprint holds no
array: between two saves the program may let go of its memory.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any, NamedTuple

from holdfast.format.arrays import Carrier, Extent, Leaf, extent_of
from holdfast.format.carriers import NativeArray, note_order, tensor_carrier
from holdfast.format.frameworks import loaded
from holdfast.format.modules import read_module

__all__ = [
    "NO_OWNER",
    "Block",
    "Footprint",
    "Keys",
    "KnownArrays",
    "KnownModule",
    "Moved",
    "make_footprint",
    "memory_of_tensors",
    "read_block",
    "where_tensors_are",
]

NO_OWNER = -1
"""Of a leaf that is not stored from one array as it is: a buffer that several are views of, a broadcast array."""


class Moved(Exception):  # noqa: N818  not an error: the state is looked at anew
    """The arrays of the state are not where they were."""


class Keys(NamedTuple):
    """The keys of a dictionary, followed by those of the dictionaries in it."""

    kinds: list[type]
    """The types too: 1 and True are equal."""
    keys: Sequence[object]
    lengths: list[int]
    """Of the dictionaries in it."""

    @property
    def are_exact(self) -> bool:
        """Whether those that are equal to them are the same; (1,) is equal to (True,), and 0.0 to -0.0."""
        return _EXACT_KEYS.issuperset(self.kinds)


_EXACT_KEYS = frozenset((str, int, bool, bytes, type(None)))


class Block(NamedTuple):
    """A dictionary that held nothing but tensors in the host's memory, or such dictionaries: an optimizer's state."""

    first: int
    """The place of its first tensor among all arrays of the state."""
    length: int
    keys: Keys
    whereabouts: list[list[object]]
    node: dict[str, Any]

    def check(self, keys: Keys, tensors: Sequence[Any], place: int) -> None:
        """Moved unless the tensors are where they were, at the same place among the arrays of the state."""
        if place != self.first or keys != self.keys or where_tensors_are(tensors) != self.whereabouts:
            raise Moved


class KnownModule(NamedTuple):
    """A torch module whose state_dict has nothing that `read_module` does not find."""

    names: list[str]
    versions: list[int]
    block: Block
    """Of what is in its state_dict; the node has the versions, too."""


class BlockContent(NamedTuple):
    """What may be a block."""

    keys: Keys
    tensors: list[Any]


def read_block(found: Mapping[Any, Any]) -> BlockContent | None:
    """What is in a dictionary, or in the dictionaries in it; None where it is neither. All might still be anything."""
    keys, values, lengths = list(found), list(found.values()), []
    kinds = set(map(type, values))
    if dict in kinds:
        if len(kinds) > 1:
            return None
        keys.extend(chain.from_iterable(values))
        lengths = list(map(len, values))
        values = list(chain.from_iterable(map(dict.values, values)))
    return BlockContent(Keys(list(map(type, keys)), keys, lengths), values)


class Footprint(NamedTuple):
    """The arrays of a state, in the order in which they are met."""

    paths: list[str]
    blocks: dict[str, Block]
    """By the path of the dictionary."""
    modules: dict[str, KnownModule]
    """By their path. The dictionary at the same path is a block, too."""
    leaves: list[Leaf]
    owners: list[int]
    """The array that each leaf is stored from."""
    leaf_of: dict[int, int]
    """The leaf of each of these."""
    known: list[tuple[int, int]]
    """The addresses of the leaves of the blocks, from and to, in order and without overlap."""


def where_tensors_are(tensors: Sequence[Any]) -> list[list[object]]:
    """What is the same only as long as the tensors have the same elements in the same memory, in columns.

    Moved where they are not plain tensors in memory.
    """
    torch = loaded("torch")
    kinds: list[object] = list(map(type, tensors))
    if torch is None or not {torch.Tensor, torch.nn.Parameter}.issuperset(kinds):
        raise Moved
    needs_grad: list[object] = list(map(attrgetter("requires_grad"), tensors))
    return [kinds, needs_grad, *memory_of_tensors(tensors)]


def memory_of_tensors(tensors: Sequence[Any]) -> list[list[object]]:
    """The same, but for what does not concern their memory; Moved where they have none."""
    torch = loaded("torch")
    try:
        # One question to all tensors after the other: that takes no line of Python for each of them.
        found: list[list[object]] = [list(map(ask, tensors)) for ask in _questions(torch)]
        dtypes: set[Any] = set(found[0])
        if any(dtype.is_complex for dtype in dtypes):  # no others can be conjugated
            found.append(list(map(torch.Tensor.is_conj, tensors)))
    except RuntimeError:  # a sparse tensor has no address
        raise Moved from None
    return found


@lru_cache(maxsize=1)
def _questions(torch: Any) -> list[Callable[[Any], object]]:
    tensor = torch.Tensor
    return [
        attrgetter("dtype"),
        tensor.data_ptr,
        attrgetter("shape"),
        tensor.stride,
        attrgetter("is_cpu"),
        tensor.is_neg,
    ]


def make_footprint(
    paths: list[str],
    blocks: dict[str, Block],
    modules: dict[str, KnownModule],
    *,
    leaves: list[Leaf],
    owners: list[int],
    leaf_of: Sequence[int],
) -> Footprint | None:
    """None where arrays outside of the blocks share memory, or a leaf is not stored from an array as it is.

    Then all of them have to be compared each time.
    """
    if NO_OWNER in owners:
        return None
    in_block = {block.first + offset for block in blocks.values() for offset in range(block.length)}
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
    return Footprint(paths, blocks, modules, leaves, owners, {owner: leaf for leaf, owner in enumerate(owners)}, known)


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
        self.tensors: list[Any] = []
        """The program's own tensors in the blocks, each at its place among the arrays; for other arrays, None."""
        self._footprint = footprint
        self._arrays: list[Any] = []
        self._loose: dict[int, NativeArray] = {}

    def __len__(self) -> int:
        return len(self._arrays)

    def take(self, kind: str, value: Mapping[Any, Any], path: str) -> dict[str, Any] | None:
        """The node of a dictionary that is a block; None where it is none, Moved where it is no longer the same."""
        block = self._footprint.blocks.get(path)
        if block is None:
            return None
        content = read_block(value)
        if content is None or kind != block.node["kind"]:
            raise Moved
        block.check(content.keys, content.tensors, len(self._arrays))
        self._arrays.extend(content.tensors)
        self.tensors.extend(content.tensors)
        return dict(block.node)

    def take_module(self, module: object, path: str) -> dict[str, Any] | None:
        """The node of what a torch module's state_dict would give; None where that has to be called."""
        known = self._footprint.modules.get(path)
        content = None if known is None else read_module(module)
        if known is None or content is None:
            return None
        if content.names != known.names or content.versions != known.versions:
            raise Moved
        keys = Keys(list(map(type, content.keys)), content.keys, [])
        known.block.check(keys, content.tensors, len(self._arrays))
        # As state_dict does: what the program does to its parameters later, their memory stays at hand.
        self._arrays.extend([tensor.detach() for tensor in content.tensors])
        self.tensors.extend(content.tensors)
        return known.block.node

    def add(self, node: dict[str, Any], path: str, array: NativeArray) -> None:
        """Remember an array outside of the blocks, and give its node the leaf that it had."""
        index = len(self._arrays)
        if index >= len(self._footprint.paths) or self._footprint.paths[index] != path:
            raise Moved
        node["leaf"] = self._footprint.leaf_of.get(index, NO_OWNER)
        note_order(node, array)
        self._loose[index] = array
        self._arrays.append(array)
        self.tensors.append(None)

    def finish(self) -> dict[int, Leaf]:
        """The leaves of the arrays outside of the blocks; Moved where one no longer fits its place, or shares memory.

        And where an array is missing.
        """
        if len(self._arrays) != len(self._footprint.paths):
            raise Moved
        found: dict[int, Leaf] = {}
        for index, array in self._loose.items():
            leaf, carrier = self._footprint.leaf_of.get(index, NO_OWNER), array.carrier
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
