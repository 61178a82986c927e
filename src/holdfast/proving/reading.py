"""What a program wrote down about itself, read back: points in order, and the whole state at each of them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from holdfast.engine.evidence import Bystander, Point

__all__ = ["STATES", "WORKING", "Course", "Cursor", "Trace", "bystander_key", "course_of", "parse_trace", "read_trace"]

WORKING = ("step", "save")
"""The kinds of points that say how far the work is."""
STATES = ("restored", *WORKING)
"""The kinds of points at which the state was looked at."""

_decoder = msgspec.json.Decoder(Point)


class Course(NamedTuple):
    """The run whose steps a proof goes by, as an undisturbed program makes them."""

    run: str
    kind: str
    """`step`, or `save` for a program that counts its steps itself."""
    steps: tuple[int, ...]
    epochs: tuple[int | None, ...]


class Trace(NamedTuple):
    """All points of one start of the program, in order."""

    points: tuple[Point, ...]

    @property
    def runs(self) -> list[str]:
        """As the program calls them, in the order in which they appeared."""
        return list(dict.fromkeys(point.run for point in self.points if point.kind in STATES))

    def of(self, run: str) -> list[Point]:
        """The points of one run at which its state was seen."""
        return [point for point in self.points if point.run == run and point.kind in STATES]

    def work(self) -> list[Point]:
        """The ends of steps, and saves."""
        return [point for point in self.points if point.kind in WORKING]

    @property
    def unseen(self) -> list[str]:
        """Why the state could not be had, for each point at which it could not."""
        return [point.text for point in self.points if point.kind in STATES and point.text]

    @property
    def refusals(self) -> list[str]:
        """The writes outside of its directory that the program tried."""
        return [point.text for point in self.points if point.kind == "refused"]

    @property
    def was_struck(self) -> bool:
        """Whether the signal of the plan was sent."""
        return any(point.kind == "struck" for point in self.points)

    @property
    def versions(self) -> dict[str, str]:
        """Of Python and of the libraries of the program."""
        return {name: text for point in self.points for name, text in point.versions.items()}


class Cursor:
    """The whole state at one point of a run after the other. Moving forward is cheap, moving back begins anew."""

    def __init__(self, points: Sequence[Point]) -> None:
        self.points = points
        self._at = -1
        self._leaves: dict[str, str] = {}
        self._bystanders: dict[str, Bystander] = {}

    def leaves(self, index: int) -> Mapping[str, str]:
        """Path to digest or plain value, at that point. Valid until it is moved."""
        self._move(index)
        return self._leaves

    def bystanders(self, index: int) -> Mapping[str, Bystander]:
        """What was seen beside the state, by its name."""
        self._move(index)
        return self._bystanders

    def _move(self, index: int) -> None:
        if index < self._at:
            self._at, self._leaves, self._bystanders = -1, {}, {}
        while self._at < index:
            self._at += 1
            point = self.points[self._at]
            if point.whole:
                self._leaves = {}
            for path in point.gone:
                self._leaves.pop(path, None)
            self._leaves.update(point.leaves)
            if point.bystanders:
                self._bystanders = {bystander_key(seen): seen for seen in point.bystanders}


def bystander_key(seen: Bystander) -> str:
    """What the same thing is called in every start of the program."""
    return f"{seen.kind} {seen.type} {seen.where}:{seen.name}"


def read_trace(path: str) -> Trace:
    """The points in the file; none where it is not there."""
    try:
        with open(path, "rb") as file:
            return parse_trace(file.read())
    except FileNotFoundError:
        return Trace(())


def parse_trace(data: bytes) -> Trace:
    """The points; a line that a kill has torn counts for nothing."""
    return Trace(tuple(_points(data)))


def course_of(trace: Trace) -> Course | None:
    """The run with the most points, and its steps in order; None where there is none."""
    work = trace.work()
    if not work:
        return None
    counts: dict[str, int] = {}
    for point in work:
        counts[point.run] = counts.get(point.run, 0) + 1
    run = max(counts, key=lambda name: counts[name])
    mine = [point for point in work if point.run == run]
    kind = "step" if any(point.kind == "step" for point in mine) else "save"
    epochs = {point.step: point.epoch for point in mine if point.kind == kind}
    steps = tuple(sorted(epochs))
    return Course(run, kind, steps, tuple(epochs[step] for step in steps))


def _points(data: bytes) -> Iterator[Point]:
    for line in data.split(b"\n"):
        if line.strip():
            try:
                yield _decoder.decode(line)
            except msgspec.DecodeError:
                continue
