"""Collecting the arrays of a state: which leaf each node refers to, and what the leaves are called."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from holdfast.core.errors import StateError
from holdfast.core.limits import MAX_LEAVES
from holdfast.format.aliases import Base, View, share
from holdfast.format.arrays import Leaf
from holdfast.format.carriers import NativeArray, memory_order
from holdfast.format.nodes import Node

__all__ = ["LeafCollector"]


class _Pending(msgspec.Struct, frozen=True):
    """An array whose node still lacks its leaf."""

    node: dict[str, Any]
    path: str
    array: NativeArray


class LeafCollector:
    """Gathers arrays while the tree is built; only then is it known which of them share memory."""

    def __init__(self) -> None:
        self._pending: list[_Pending] = []
        self._leaves: list[Leaf] = []
        self._names: dict[str, dict[str, Any]] = {}

    def add(self, node: dict[str, Any], path: str, array: NativeArray) -> None:
        """Remember the node; its `leaf` is filled in by `finish`."""
        self._pending.append(_Pending(node, path, array))

    def finish(self, trees: Iterable[Node]) -> list[Leaf]:
        """The leaves, in the order of the tree. The trees are for naming places in an error."""
        shared = share([pending.array for pending in self._pending])
        placed: dict[int, int] = {}
        for index, pending in enumerate(self._pending):
            node, path, array = pending.node, pending.path, pending.array
            if index not in shared:
                self._take(path, node, Leaf(path, array.dtype, array.carrier.shape, array.carrier), trees)
                node["leaf"] = len(self._leaves) - 1
                _note_order(node, array)
                continue
            base, view = shared[index]
            if id(base) not in placed:
                placed[id(base)] = len(self._leaves)
                self._take_base(base, trees)
            node["leaf"] = placed[id(base)]
            _note_order(node, array) if view is None else _note_view(node, array, view)
        if len(self._leaves) > MAX_LEAVES:
            raise StateError(f"the state has {len(self._leaves)} arrays, the limit is {MAX_LEAVES}", hint="stack them")
        return self._leaves

    def _take_base(self, base: Base, trees: Iterable[Node]) -> None:
        owner = self._pending[base.owner]
        name = f"{owner.path}~shared" if base.is_buffer else owner.path
        self._take(name, owner.node, Leaf(name, base.dtype, base.carrier.shape, base.carrier), trees)

    def _take(self, name: str, node: dict[str, Any], leaf: Leaf, trees: Iterable[Node]) -> None:
        if self._names.setdefault(name, node) is not node:
            places = [place for tree in trees for place in _spell_out(tree, (self._names[name], node))]
            raise StateError(
                f"two arrays would both be named {name!r}: {' and '.join(places)}", hint="rename one of the keys"
            )
        self._leaves.append(leaf)


def _note_order(node: dict[str, Any], array: NativeArray) -> None:
    if not array.carrier.flags.c_contiguous and (order := memory_order(array.carrier)) is not None:
        node["order"] = order


def _note_view(node: dict[str, Any], array: NativeArray, view: View) -> None:
    node["view"] = {
        "dtype": array.dtype,
        "shape": list(array.carrier.shape),
        "offset": view.offset,
        "strides": list(view.strides),
    }


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
