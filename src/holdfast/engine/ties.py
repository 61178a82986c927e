"""Arrays that share memory in the program: whether what the checkpoint has for them agrees where they do.

Each array is taken apart into *runs*: bytes in one piece in the program that were in one piece in what was saved, too.
The shift of a run is how far it is from there. Two runs that overlap agree if they are of the same saved memory and
have the same shift: then each byte of the overlap is one and the same byte of it.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.engine.filling import Target
from holdfast.format.aliases import View, overlapping, share_bytes
from holdfast.format.arrays import extent_of

__all__ = ["conflicts"]

# Above this, pairs of arrays are compared as wholes. Runs take 50 bytes or so each while they are sorted.
_MAX_RUNS = 1 << 22


def conflicts(targets: Sequence[Target]) -> list[tuple[Target, Target]]:
    """Pairs that share memory in the program although the checkpoint has different contents for them.

    Without the second ones of all pairs there would be none.
    """
    found: list[tuple[int, int]] = []
    carriers = [target.memory.carrier for target in targets]
    extents = [extent_of(target.memory.carrier, target.memory.address) for target in targets]
    for group in overlapping(carriers, extents):
        lays = {index: _lay(targets[index]) for index in group}
        if not all(_agree(lays[group[0]], lay) for lay in lays.values()):
            found.extend(_conflicts_within(targets, lays))
    return [(targets[first], targets[other]) for first, other in sorted(found, key=lambda pair: pair[1])]


class _Axis(NamedTuple):
    stride: int
    """In the program."""
    saved_stride: int
    length: int


class _Lay(NamedTuple):
    """How an array lies in the program, against how it lay in what was saved. Equal ones agree everywhere."""

    saved_memory: tuple[bool, int]
    start: int
    shift: int
    run_bytes: int
    axes: tuple[_Axis, ...]
    """Along which there is a run for each position."""

    @property
    def run_count(self) -> int:
        return math.prod(axis.length for axis in self.axes)

    def starts_and_shifts(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        starts, shifts = np.array([self.start]), np.array([self.shift])
        for axis in self.axes:
            steps = np.arange(axis.length)
            starts = np.add.outer(starts, steps * axis.stride).ravel()
            shifts = np.add.outer(shifts, steps * (axis.stride - axis.saved_stride)).ravel()
        return starts, shifts


def _lay(target: Target) -> _Lay:
    spec, carrier = target.spec, target.memory.carrier
    saved_memory, view = (False, spec.leaf), spec.view
    if spec.part_of is not None:
        saved_memory, view = (True, spec.part_of.first), spec.part_of.view
    if view is None:
        view = View(
            0, tuple(math.prod(carrier.shape[axis:], start=carrier.itemsize) for axis in range(1, carrier.ndim + 1))
        )
    start, offset, run_bytes = target.memory.address, view.offset, carrier.itemsize
    axes: list[_Axis] = []
    for stride, saved_stride, length in zip(carrier.strides, view.strides, carrier.shape, strict=True):
        if stride < 0:
            start += (length - 1) * stride
            offset += (length - 1) * saved_stride
        if length > 1:
            axes.append(_Axis(stride, saved_stride, length) if stride > 0 else _Axis(-stride, -saved_stride, length))
    axes.sort()
    while axes and axes[0].stride == axes[0].saved_stride == run_bytes:
        run_bytes *= axes.pop(0).length
    return _Lay(saved_memory, start, start - offset, run_bytes, tuple(axes))


def _conflicts_within(targets: Sequence[Target], lays: dict[int, _Lay]) -> list[tuple[int, int]]:
    if sum(lay.run_count for lay in lays.values()) > _MAX_RUNS:
        return _conflicts_of_wholes(targets, lays)
    found: list[tuple[int, int]] = []
    remaining = dict(lays)
    while new := _conflicts_of_runs(remaining):
        if any(first == other for first, other in new):  # its own elements overlap
            return _conflicts_of_wholes(targets, lays)
        found.extend(new)
        for _, other in new:
            del remaining[other]
    return found


def _conflicts_of_runs(lays: dict[int, _Lay]) -> list[tuple[int, int]]:
    """A pair for some of the arrays that disagree with an earlier one; none only where all agree."""
    numbers = {memory: number for number, memory in enumerate({lay.saved_memory for lay in lays.values()})}
    counts = [lay.run_count for lay in lays.values()]
    runs = [lay.starts_and_shifts() for lay in lays.values()]
    starts = np.concatenate([one for one, _ in runs])
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    shifts = np.concatenate([one for _, one in runs])[order]
    ends = starts + np.repeat([lay.run_bytes for lay in lays.values()], counts)[order]
    memories = np.repeat([numbers[lay.saved_memory] for lay in lays.values()], counts)[order]
    owners = np.repeat(list(lays), counts)[order]
    # The run that reaches farthest so far is enough to compare with: if another one of these overlaps the next run and
    # disagrees with it, then it overlaps the farthest, too, and disagrees with one of the two.
    reached = np.maximum.accumulate(ends)
    farthest = np.maximum.accumulate(np.where(ends == reached, np.arange(len(ends)), 0))[:-1]
    disagree = (shifts[1:] != shifts[farthest]) | (memories[1:] != memories[farthest])
    (places,) = np.nonzero((starts[1:] < reached[:-1]) & disagree)
    pairs = np.sort(np.stack([owners[farthest[places]], owners[places + 1]], axis=1), axis=1)
    return list({int(other): (int(first), int(other)) for first, other in pairs[::-1]}.values())


def _conflicts_of_wholes(targets: Sequence[Target], lays: dict[int, _Lay]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    kept: dict[_Lay, int] = {}
    for index, lay in lays.items():
        carrier = targets[index].memory.carrier
        against = (
            first
            for other, first in kept.items()
            if not _agree(lay, other) and share_bytes(targets[first].memory.carrier, carrier)
        )
        tied_to = next(against, None)
        if tied_to is None:
            kept.setdefault(lay, index)
        else:
            found.append((tied_to, index))
    return found


def _agree(one: _Lay, other: _Lay) -> bool:
    if one == other:
        return True
    only_shifted = all(axis.stride == axis.saved_stride for axis in (*one.axes, *other.axes))
    return only_shifted and one.saved_memory == other.saved_memory and one.shift == other.shift
