"""Which leaves may be copied later: those that only change behind the gate, or never."""

from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import cached_property
from operator import attrgetter, is_
from typing import Any, NamedTuple

from holdfast.engine.adapters import is_optimizer
from holdfast.format.arrays import Leaf
from holdfast.format.encode import Encoded
from holdfast.format.footprint import Footprint
from holdfast.format.frameworks import loaded
from holdfast.format.nodes import Node

__all__ = ["Deferral", "Guarded", "Owned", "find_optimizers", "immutable_leaves"]

_MAX_DEPTH = 8


class Deferral:
    """The leaves that are copied later, and what can be seen of writes to them that nothing held back.

    torch counts the writes to a tensor. Not counted are those through `.data`, through numpy views, and those of fused
    optimizers: the gate must hold them back, nobody would see them.
    """

    def __init__(self, leaves: frozenset[int], tensors: Sequence[Any], names: Sequence[Leaf]) -> None:
        self.leaves = leaves
        self._tensors = tensors
        self._versions = list(map(_version_of, tensors))
        self._all = names

    def changed(self) -> list[str]:
        """The names of the leaves that were written to since this was made."""
        now = zip(self._tensors, self._versions, map(_version_of, self._tensors), strict=True)
        written = [tensor.data_ptr() for tensor, before, after in now if before != after]
        if not written:
            return []
        return [
            leaf.name for leaf in self._all if any(leaf.extent.low <= address < leaf.extent.high for address in written)
        ]


_version_of = attrgetter("_version")


def find_optimizers(state: object) -> list[Any]:
    """The torch optimizers in a state, at its top or in containers, whose steps can be hooked."""
    found = {id(value): value for value in _walk(state) if is_optimizer(value) and _calls_hooks(value)}
    return list(found.values())


class Guarded:
    """What the steps of these optimizers write to: parameters, and what goes with them, at this moment."""

    def __init__(self, optimizers: Iterable[Any]) -> None:
        self.found: list[Any] = []
        """All that is there, in its order, whatever it is."""
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                self.found.extend(group["params"])
            for slot in optimizer.state.values():
                self.found.extend(slot.values() if type(slot) is dict else (slot,))

    @cached_property
    def tensors(self) -> list[Any]:
        """The tensors in it the writes to which are counted, and that own all that lies between their ends."""
        torch = loaded("torch")
        if torch is None:
            return []
        nested = [part for part in self.found if isinstance(part, dict | list | tuple)]
        # Written out for the usual case: there are thousands, and the training waits.
        tensor, strided = torch.Tensor, torch.strided
        return [
            part
            for part in (*self.found, *_walk(nested))
            if isinstance(part, tensor)
            and part.layout is strided
            and not part.is_inference()  # the writes to which are not counted
            and (part.is_contiguous() or _is_dense(part))
        ]

    @property
    def addresses(self) -> Container[int]:
        """Of the tensors on an accelerator, looked for when the first one is asked for: there may be none."""
        return _DeviceAddresses(self)


class _DeviceAddresses(Container[int]):
    def __init__(self, guarded: Guarded) -> None:
        self._guarded = guarded

    def __contains__(self, address: object) -> bool:
        return address in self._found

    @cached_property
    def _found(self) -> frozenset[int]:
        return frozenset(tensor.data_ptr() for tensor in self._guarded.tensors if not tensor.is_cpu)


class Owned:
    """Which leaves belong to the optimizers; remembered as long as neither the leaves nor the tensors have moved."""

    def __init__(self) -> None:
        self._footprint: Footprint | None = None
        self._places: list[int] = []
        self._spans: list[tuple[int, int]] = []
        self._whole: set[tuple[int, int]] = set()
        self._merged = _Intervals([], [])
        self._leaves: frozenset[int] = frozenset()

    def deferral(self, encoded: Encoded, guarded: Guarded, *, besides: frozenset[int]) -> Deferral:
        """Of the leaves all of whose bytes belong to one of the tensors, or to several without a gap; and of others."""
        if self._are_as_before(encoded, guarded):
            return Deferral(self._leaves_of(encoded) | besides, guarded.found, encoded.leaves)
        spans = [(tensor.data_ptr(), tensor.nbytes) for tensor in guarded.tensors if tensor.is_cpu]
        if spans != self._spans:
            self._spans, self._whole, self._merged, self._footprint = spans, set(spans), _merged(spans), None
        if self._footprint is None or encoded.footprint is not self._footprint:
            self._footprint = encoded.footprint
            self._leaves = leaves = frozenset(filter(self._is_owned(encoded.leaves), range(len(encoded.leaves))))
        else:
            leaves = self._leaves_of(encoded)
        self._places = _places_of(encoded, guarded)
        return Deferral(leaves | besides, guarded.tensors, encoded.leaves)

    def _are_as_before(self, encoded: Encoded, guarded: Guarded) -> bool:
        """Whether all that is guarded are tensors that encoding has found where they were: then nothing is asked."""
        if not self._places or encoded.footprint is not self._footprint or len(guarded.found) != len(self._places):
            return False
        if not all(map(is_, guarded.found, map(encoded.tensors.__getitem__, self._places))):
            return False
        return not any(map(loaded("torch").Tensor.is_inference, guarded.found))

    def _leaves_of(self, encoded: Encoded) -> frozenset[int]:
        return (self._leaves - encoded.fresh).union(filter(self._is_owned(encoded.leaves), encoded.fresh))

    def _is_owned(self, leaves: Sequence[Leaf]) -> Callable[[int], bool]:
        whole, (lows, highs) = self._whole, self._merged

        def is_owned(index: int) -> bool:
            low, high = leaves[index].extent.low, leaves[index].extent.high
            if (low, high - low) in whole:  # nearly all: a tensor as it is
                return True
            position = bisect_right(lows, low) - 1
            return position >= 0 and high <= highs[position]

        return is_owned


def _places_of(encoded: Encoded, guarded: Guarded) -> list[int]:
    """Where all that is guarded is among the arrays of the state; nothing where some of it is not, or is no tensor."""
    if encoded.footprint is None or len(guarded.tensors) != len(guarded.found):
        return []
    place_of = {id(tensor): place for place, tensor in enumerate(encoded.tensors) if tensor is not None}
    places = [place_of.get(id(tensor), -1) for tensor in guarded.found]
    return [] if -1 in places else places


def immutable_leaves(encoded: Encoded) -> frozenset[int]:
    """The leaves that nobody can change: JAX arrays. The view that we hold keeps JAX from reusing donated ones."""
    if loaded("jax") is None:
        return frozenset()
    kinds: dict[int, set[str]] = {}
    for tree in (encoded.tree, encoded.random):
        for node in _nodes(tree):
            if "leaf" in node:
                kinds.setdefault(node["leaf"], set()).add(node["kind"])
    return frozenset(leaf for leaf, found in kinds.items() if found == {"jax"})


def _walk(value: object) -> Iterator[object]:
    """What is in containers, and in containers in them."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        inner: list[object] = []
        for part in level:
            if isinstance(part, dict):
                inner.extend(part.values())
            elif isinstance(part, list | tuple):
                inner.extend(part)
            else:
                yield part
        level = inner


def _calls_hooks(optimizer: Any) -> bool:
    # Wrappers that never ran torch's own constructor have no hooks; what they update is copied at once.
    return hasattr(optimizer, "_optimizer_step_pre_hooks") and getattr(type(optimizer).step, "hooked", False)


def _is_dense(tensor: Any) -> bool:
    # A tensor with gaps between its elements does not own all that lies between its ends.
    strides = tensor.stride()
    return bool(tensor.permute(sorted(range(tensor.dim()), key=lambda axis: -strides[axis])).is_contiguous())


class _Intervals(NamedTuple):
    lows: list[int]
    highs: list[int]


def _merged(spans: Iterable[tuple[int, int]]) -> _Intervals:
    merged = _Intervals([], [])
    for low, size_bytes in sorted(spans):
        if merged.highs and low <= merged.highs[-1]:
            merged.highs[-1] = max(merged.highs[-1], low + size_bytes)
        else:
            merged.lows.append(low)
            merged.highs.append(low + size_bytes)
    return merged


def _nodes(tree: Node) -> Iterator[dict[str, Any]]:
    pending: list[Node] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            yield node
            for name, part in node.items():
                # These two map the program's own keys, whatever they are called, to nodes.
                pending.extend(part.values() if name in ("items", "fields") else [part])
        elif isinstance(node, list):
            pending.extend(node)
