"""Which memory each leaf is read into, when the program's own arrays are to receive it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from holdfast.engine.adapters import TargetMemory
from holdfast.format.arrays import Carrier, Destination, address_of, extent_of
from holdfast.format.dtypes import carrier_dtype
from holdfast.format.memory import ArraySpec, LeafMemory, view_carrier

__all__ = ["Filling", "Target", "fill_targets"]


class Target(msgspec.Struct, frozen=True):
    """An array of the program, and what the checkpoint has for it."""

    path: str
    spec: ArraySpec
    memory: TargetMemory


class Filling(NamedTuple):
    """Where to read, and what to do afterwards."""

    destinations: list[Destination]
    steps: list[Callable[[], object]]


def fill_targets(targets: Sequence[Target], memory: LeafMemory) -> Filling:
    """Straight into the program's memory where an array takes the whole leaf, through a buffer where several differ."""
    by_leaf: dict[int, list[Target]] = {}
    for target in targets:
        by_leaf.setdefault(target.spec.leaf, []).append(target)
    direct: list[Destination] = []
    steps: list[Callable[[], object]] = []
    for leaf, takers in by_leaf.items():
        source = _direct_source(takers) if not memory.has(leaf) else None
        if source is None:
            source = memory.leaf_carrier(leaf)
        else:
            direct.append(Destination(leaf, source))
        _spread(source, takers, steps)
    return Filling(memory.destinations() + direct, steps)


def _direct_source(takers: list[Target]) -> Carrier | None:
    if len(takers) == 1:
        only = takers[0]
        return only.memory.carrier if only.spec.view is None else None
    viewed = any(taker.spec.view is not None for taker in takers)
    for taker in takers:
        carrier = taker.memory.carrier
        # Views are cut out of the bytes of the whole, so it has to lie in one piece.
        if taker.spec.view is None and (carrier.flags.c_contiguous or not viewed):
            return carrier
    return None


def _spread(source: Carrier, takers: list[Target], steps: list[Callable[[], object]]) -> None:
    for taker in takers:
        memory = taker.memory
        carrier, part = memory.carrier, source
        if taker.spec.view is not None:
            part = view_carrier(source, taker.spec, carrier_dtype(taker.spec.dtype))
        if part is not carrier and not _same_memory(part, carrier):
            steps.append(lambda into=carrier, part=part: np.copyto(into, part))  # type: ignore[misc]
        if memory.publish is not None:
            steps.append(memory.publish)


def _same_memory(one: Carrier, other: Carrier) -> bool:
    return extent_of(one, address_of(one)) == extent_of(other, address_of(other)) and one.strides == other.strides
