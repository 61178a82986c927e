"""Arrays that share memory: stored once, and shared again when they come back.

Sharing is seen by the addresses of the bytes, so it is found between numpy and torch and between views of one buffer.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from holdfast.format.arrays import Carrier, Extent
from holdfast.format.carriers import NativeArray
from holdfast.format.dtypes import DtypeName

__all__ = ["Base", "PartOf", "Place", "View", "overlapping", "share", "share_bytes", "spread_axes"]

# A buffer that covers all members is stored instead of them only where it is not mostly holes.
_MAX_HOLES = 2
# Comparing all pairs for true overlap (not just interleaving) is for small groups.
_MAX_PAIRED = 16
_MAX_OVERLAP_WORK = 10_000


class Base(NamedTuple):
    """What is stored: an array of the state, or a buffer of bytes that several of them are views of."""

    owner: int
    """The array whose name it gets."""
    dtype: DtypeName
    carrier: Carrier
    is_buffer: bool


class View(NamedTuple):
    """An array as a part of a leaf's bytes."""

    offset: int
    strides: tuple[int, ...]


class PartOf(NamedTuple):
    """An array as a part of memory that was too sparse to be stored as one."""

    first: int
    """The first array in that memory, which stands for all of it."""
    view: View


class Place(NamedTuple):
    """Where an array is stored: the base, the view of it that the array is, and what memory it was a part of."""

    base: Base
    view: View | None
    part_of: PartOf | None = None


def spread_axes(carrier: Carrier) -> list[int]:
    """The axes along which one element is repeated (broadcast): stride 0 with a length over 1."""
    if carrier.flags.forc or not carrier.size:
        return []
    return [axis for axis in range(carrier.ndim) if carrier.strides[axis] == 0 and carrier.shape[axis] > 1]


def share(arrays: Sequence[NativeArray], extents: Sequence[Extent]) -> dict[int, Place]:
    """For each array that is not simply stored by itself: the place that it has."""
    found: dict[int, Place] = {}
    for group in overlapping([array.carrier for array in arrays], extents):
        found.update(_share_group(arrays, extents, group))
    for index, array in enumerate(arrays):
        if not array.carrier.flags.forc and index not in found and spread_axes(array.carrier):
            found[index] = _alone(index, array)
    return found


def overlapping(carriers: Sequence[Carrier], extents: Sequence[Extent]) -> Iterator[list[int]]:
    """The groups of two and more arrays that share bytes, directly or through others of the group."""
    for group in _crossing(extents):
        yield from _truly_overlapping(carriers, group)


def _crossing(extents: Sequence[Extent]) -> Iterator[list[int]]:
    filled = [index for index, found in enumerate(extents) if found.high > found.low]
    if len(filled) < 2:
        return
    lows = np.array([extents[index].low for index in filled], np.uint64)
    highs = np.array([extents[index].high for index in filled], np.uint64)
    order = np.argsort(lows, kind="stable")
    reached = np.maximum.accumulate(highs[order])
    joined = lows[order][1:] < reached[:-1]
    starts = np.flatnonzero(np.concatenate(([True], ~joined)))
    ends = np.append(starts[1:], len(order))
    for begin, end in zip(starts[ends - starts > 1], ends[ends - starts > 1], strict=True):
        yield sorted(filled[position] for position in order[begin:end])


def _truly_overlapping(carriers: Sequence[Carrier], group: list[int]) -> Iterator[list[int]]:
    if len(group) > _MAX_PAIRED:
        yield group
        return
    remaining = list(group)
    while remaining:
        part, frontier = [remaining.pop(0)], 0
        while frontier < len(part):
            touching = [other for other in remaining if share_bytes(carriers[part[frontier]], carriers[other])]
            part.extend(touching)
            remaining = [other for other in remaining if other not in touching]
            frontier += 1
        if len(part) > 1:
            yield sorted(part)


def share_bytes(one: Carrier, other: Carrier) -> bool:
    """Whether they have a byte in common; also where that would take too long to find out."""
    try:
        return bool(np.shares_memory(one, other, max_work=_MAX_OVERLAP_WORK))  # type: ignore[arg-type]  # any int
    except np.exceptions.TooHardError:
        return True


def _share_group(arrays: Sequence[NativeArray], extents: Sequence[Extent], group: list[int]) -> dict[int, Place]:
    twins: dict[object, list[int]] = defaultdict(list)
    for index in group:
        twins[_geometry(arrays[index], extents[index])].append(index)
    if len(twins) == 1:
        found = _alone(group[0], arrays[group[0]])
        return dict.fromkeys(group, found)
    base = _covering_base(arrays, extents, group)
    low = min(extents[index].low for index in group)
    if base is None:  # too sparse to be stored as one: each geometry for itself
        return {
            index: found._replace(part_of=PartOf(group[0], View(extents[same[0]].start - low, strides)))
            for same in twins.values()
            for found, strides in [(_alone(same[0], arrays[same[0]]), arrays[same[0]].carrier.strides)]
            for index in same
        }
    covering = None if base.is_buffer else _geometry(arrays[base.owner], extents[base.owner])
    return {
        index: Place(base, None if key == covering else View(extents[index].start - low, arrays[index].carrier.strides))
        for key, same in twins.items()
        for index in same
    }


def _covering_base(arrays: Sequence[NativeArray], extents: Sequence[Extent], group: list[int]) -> Base | None:
    low = min(extents[index].low for index in group)
    high = max(extents[index].high for index in group)
    for index in group:
        if extents[index].low == low and extents[index].high == high and arrays[index].carrier.flags.c_contiguous:
            return Base(index, arrays[index].dtype, arrays[index].carrier, is_buffer=False)
    unique = {_geometry(arrays[index], extents[index]): arrays[index].carrier.nbytes for index in group}
    if high - low > _MAX_HOLES * sum(unique.values()):
        return None
    first = next(index for index in group if extents[index].low == low)
    return Base(group[0], "uint8", _span(arrays[first].carrier, high - low), is_buffer=True)


def _span(carrier: Carrier, size_bytes: int) -> Carrier:
    # From the element at the lowest address on. All of it is inside one allocation: the members' extents touch.
    corner = tuple(slice(-1, None) if stride < 0 else slice(0, 1) for stride in carrier.strides)
    element = carrier[corner].reshape(1).view(np.uint8)
    return np.lib.stride_tricks.as_strided(element, (size_bytes,), (1,), writeable=False)


def _alone(index: int, array: NativeArray) -> Place:
    spread = spread_axes(array.carrier)
    if not spread:
        return Place(Base(index, array.dtype, array.carrier, is_buffer=False), None)
    # A broadcast array is stored without its repetitions.
    corner = tuple(slice(0, 1) if axis in spread else slice(None) for axis in range(array.carrier.ndim))
    core = array.carrier[corner]
    strides = [core.itemsize] * core.ndim
    for axis in range(core.ndim - 2, -1, -1):
        strides[axis] = strides[axis + 1] * core.shape[axis + 1]
    repeated = tuple(0 if axis in spread else strides[axis] for axis in range(core.ndim))
    return Place(Base(index, array.dtype, core, is_buffer=False), View(0, repeated))


def _geometry(array: NativeArray, found: Extent) -> object:
    # The stride of an axis of length 1 says nothing.
    carrier = array.carrier
    strides = tuple(s if n > 1 else 0 for n, s in zip(carrier.shape, carrier.strides, strict=True))
    return found.start, array.dtype, carrier.shape, strides
