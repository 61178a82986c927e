"""Collecting the arrays of a state: which leaf each node refers to, and what the leaves are called."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from holdfast.core.errors import StateError
from holdfast.core.limits import MAX_LEAVES
from holdfast.format.aliases import Base, PartOf, View, share
from holdfast.format.arrays import Carrier, Extent, Leaf, address_of, extent_of
from holdfast.format.carriers import NativeArray, note_order
from holdfast.format.dtypes import DtypeName
from holdfast.format.footprint import NO_OWNER
from holdfast.format.nodes import Node

__all__ = ["LeafCollector"]


# Values, not memory: nobody can see that they share it, and readers want all of their bytes in a leaf.
_NEVER_VIEWS = frozenset(("bytes", "bytearray", "pickle"))


class _Pending(msgspec.Struct, frozen=True):
    """An array whose node still lacks its leaf."""

    node: dict[str, Any]
    path: str
    array: NativeArray


class LeafCollector:
    """Gathers arrays while the tree is built; only then is it known which of them share memory."""

    def __init__(self) -> None:
        self.leaves: list[Leaf] = []
        """Filled by `finish`, in the order of the tree; so are the following."""
        self.carriers: list[Carrier] = []
        self.owners: list[int] = []
        """The array that each leaf is stored from, in the order of `add`; or NO_OWNER."""
        self.leaf_of: list[int] = []
        """The leaf of each array."""
        self._pending: list[_Pending] = []
        self._names: dict[str, dict[str, Any]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def paths(self) -> list[str]:
        """Of the arrays."""
        return [pending.path for pending in self._pending]

    def add(self, node: dict[str, Any], path: str, array: NativeArray) -> None:
        """Remember the node; its `leaf` is filled in by `finish`."""
        self._pending.append(_Pending(node, path, array))

    def are_in_place(self, first: int) -> bool:
        """Whether the arrays from that one on are the program's own memory."""
        return all(pending.array.in_place for pending in self._pending[first:])

    def finish(self, trees: Iterable[Node]) -> None:
        """Make the leaves. The trees are for naming places in an error."""
        extents = [extent_of(pending.array.carrier, pending.array.address) for pending in self._pending]
        shared = share([pending.array for pending in self._pending], extents)
        placed: dict[int, int] = {}
        for index, pending in enumerate(self._pending):
            node, path, array = pending.node, pending.path, pending.array
            found = shared.get(index)
            if found is None or (found.view is not None and node["kind"] in _NEVER_VIEWS):
                self._take(path, node, array.dtype, array.carrier, extents[index], index, trees)
                node["leaf"] = len(self.leaves) - 1
                self.leaf_of.append(len(self.leaves) - 1)
                note_order(node, array)
                continue
            base, view, part_of = found
            if id(base) not in placed:
                placed[id(base)] = len(self.leaves)
                self._take_base(base, trees)
            node["leaf"] = placed[id(base)]
            self.leaf_of.append(placed[id(base)])
            note_order(node, array) if view is None else _note_view(node, array, view)
            if part_of is not None and node["kind"] not in _NEVER_VIEWS:
                _note_part(node, part_of, self.leaf_of[part_of.first])
        if len(self.leaves) > MAX_LEAVES:
            raise StateError(f"the state has {len(self.leaves)} arrays, the limit is {MAX_LEAVES}", hint="stack them")

    def _take_base(self, base: Base, trees: Iterable[Node]) -> None:
        owner = self._pending[base.owner]
        name = f"{owner.path}~shared" if base.is_buffer else owner.path
        extent = extent_of(base.carrier, address_of(base.carrier))
        owner_index = base.owner if base.carrier is owner.array.carrier else NO_OWNER
        self._take(name, owner.node, base.dtype, base.carrier, extent, owner_index, trees)

    def _take(
        self,
        name: str,
        node: dict[str, Any],
        dtype: DtypeName,
        carrier: Carrier,
        extent: Extent,
        owner: int,
        trees: Iterable[Node],
    ) -> None:
        if self._names.setdefault(name, node) is not node:
            places = [place for tree in trees for place in _spell_out(tree, (self._names[name], node))]
            raise StateError(
                f"two arrays would both be named {name!r}: {' and '.join(places)}", hint="rename one of the keys"
            )
        self.leaves.append(Leaf(name, dtype, carrier.shape, carrier.nbytes, carrier.itemsize, extent))
        self.carriers.append(carrier)
        self.owners.append(owner)


def _note_view(node: dict[str, Any], array: NativeArray, view: View) -> None:
    node["view"] = {
        "dtype": array.dtype,
        "shape": list(array.carrier.shape),
        "offset": view.offset,
        "strides": list(view.strides),
    }


def _note_part(node: dict[str, Any], part_of: PartOf, first: int) -> None:
    node["part"] = {"of": first, "offset": part_of.view.offset, "strides": list(part_of.view.strides)}


def _spell_out(tree: Node, wanted: tuple[Node, ...], place: str = "state") -> Iterator[str]:
    """Where the wanted nodes are, written so that no two places look the same."""
    if any(tree is node for node in wanted):
        yield place
    if isinstance(tree, list):
        for index, item in enumerate(tree):
            yield from _spell_out(item, wanted, f"{place}[{index}]")
    elif isinstance(tree, dict):
        for name in ("items", "fields"):
            for key, item in tree.get(name, {}).items():
                yield from _spell_out(item, wanted, f"{place}[{key!r}]")
        for key, item in tree.get("pairs", ()):
            yield from _spell_out(item, wanted, f"{place}[{key!r}]")
        yield from _spell_out(tree.get("of"), wanted, place)
        yield from _spell_out(tree.get("state"), wanted, place)
