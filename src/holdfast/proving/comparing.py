"""Where two traces part: the first point at which leaves, metrics or the epoch are not the same, bit for bit."""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from holdfast.engine.evidence import Point
from holdfast.engine.traces import ORDER
from holdfast.format.paths import is_inside
from holdfast.proving.reading import WORKING, Cursor, Trace

__all__ = ["EPOCH", "MISSING", "Change", "Parting", "Unsteady", "first_parting", "unsteady"]

MISSING = ""
"""In the place of a leaf or a metric that one of the two does not have."""
EPOCH = "epoch"


class Change(NamedTuple):
    """One thing that is not the same."""

    before: str
    """In the reference, as the trace writes it."""
    after: str


class Parting(NamedTuple):
    """A point at which a program was not where the reference had been."""

    run: str
    kind: str
    step: int
    start: int
    place: int
    """Which of the run's points in its own trace, and `reference_place` in the reference."""
    reference_place: int
    leaves: dict[str, Change]
    """By path, in the order of the state."""
    metrics: dict[str, Change]
    beyond: bool = False
    """The reference never came to this step."""

    @property
    def path(self) -> str:
        """The first leaf, or the first metric, that differs."""
        if self.leaves:
            return next(iter(self.leaves))
        return f"metric {next(iter(self.metrics))}" if self.metrics else ""


class Unsteady(NamedTuple):
    """What was ever different between two undisturbed programs, with what each had in turn."""

    leaves: dict[str, list[Change]]
    metrics: dict[str, list[Change]]


def first_parting(
    reference: Trace, other: Trace, *, ignored: Collection[str] = (), ignored_metrics: Collection[str] = ()
) -> Parting | None:
    """The first point of the other trace, of whichever run, that the reference does not have like this."""
    return next(_partings(reference, other, set(ignored), set(ignored_metrics)), None)


def unsteady(reference: Trace, other: Trace) -> Unsteady:
    """All leaves and metrics that differ at some point, with their values there."""
    found = Unsteady({}, {})
    for parting in _partings(reference, other, set(), set()):
        for path, change in parting.leaves.items():
            found.leaves.setdefault(path, []).append(change)
        for name, change in parting.metrics.items():
            found.metrics.setdefault(name, []).append(change)
    return found


def _partings(reference: Trace, other: Trace, ignored: set[str], ignored_metrics: set[str]) -> Iterator[Parting]:
    sides = {run: _Side(reference, other, run, ignored, ignored_metrics) for run in other.runs}
    places = dict.fromkeys(sides, 0)
    # In the order in which the program came to them, whichever run they are of.
    for point in other.points:
        if point.run not in sides or (point.kind not in WORKING and point.kind != "restored"):
            continue
        index = places[point.run]
        places[point.run] += 1
        parting = sides[point.run].compare(index)
        if parting is not None:
            yield parting


class _Side:
    def __init__(self, reference: Trace, other: Trace, run: str, ignored: set[str], ignored_metrics: set[str]) -> None:
        self._ignored = ignored
        self._ignored_metrics = ignored_metrics
        self._before = Cursor(reference.of(run))
        self._after = Cursor(other.of(run))
        self._places: dict[tuple[str, int], list[int]] = {}
        for index, point in enumerate(self._before.points):
            if point.kind in WORKING:
                self._places.setdefault((point.kind, point.step), []).append(index)
                self._places.setdefault(("restored", point.step), []).append(index)

    def compare(self, index: int) -> Parting | None:
        point = self._after.points[index]
        places = self._places.get((point.kind, point.step), [])
        if not places and point.kind == "save":
            places = self._places.get(("step", point.step), [])
        if not places:
            return self._beyond(point, index)
        partings = []
        for place in places:
            found = self._compare(point, index, place)
            if found is None:
                return None
            partings.append(found)
        # Of a step that is made more than once, the time that is most like it.
        return min(partings, key=lambda parting: len(parting.leaves) + len(parting.metrics))

    def _beyond(self, point: Point, index: int) -> Parting | None:
        """A step that the reference did not make. A save at an odd step, as at an order to end, is none."""
        last = max((other.step for other in self._before.points if other.kind in WORKING), default=0)
        if point.kind != "step" or point.step <= last:
            return None
        return Parting(point.run, point.kind, point.step, point.start, index, -1, {}, {}, beyond=True)

    def _compare(self, point: Point, index: int, place: int) -> Parting | None:
        expected = self._before.points[place]
        before, after = self._before.leaves(place), self._after.leaves(index)
        if point.text or expected.text:  # the state of one is not known there
            common = before.keys() & after.keys()
            before, after = ({path: side[path] for path in side if path in common} for side in (before, after))
        leaves = {} if before == after else self._unlike(before, after)
        metrics: dict[str, Change] = {}
        if point.kind in WORKING and expected.kind == point.kind:
            metrics = {
                name: Change(expected.metrics.get(name, MISSING), point.metrics.get(name, MISSING))
                for name in {**expected.metrics, **point.metrics}
                if expected.metrics.get(name) != point.metrics.get(name) and name not in self._ignored_metrics
            }
            if expected.epoch != point.epoch:
                metrics[EPOCH] = Change(str(expected.epoch), str(point.epoch))
        if not leaves and not metrics:
            return None
        return Parting(point.run, point.kind, point.step, point.start, index, place, leaves, metrics)

    def _unlike(self, before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, Change]:
        found = {
            path: Change(before.get(path, MISSING), after.get(path, MISSING))
            for path in {**before, **after}
            if before.get(path) != after.get(path) and path not in self._ignored
        }
        orders = {path: found.pop(path) for path in list(found) if path.endswith(ORDER)}
        # Other keys are in another order, too, which says nothing more.
        moved = [path for path, change in found.items() if MISSING in change]
        same = {path: text for path, text in orders.items() if not _is_about(path.removesuffix(ORDER), moved)}
        return found | same


def _is_about(mapping: str, paths: list[str]) -> bool:
    return any(is_inside(path, mapping) for path in paths)
