"""Whether a program still computes with what it registered, or a name of it has come to stand for something else."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from holdfast.engine.evidence import Bystander, Point
from holdfast.format.paths import is_inside
from holdfast.proving.reading import Trace, bystander_key
from holdfast.proving.verdict import Cause

__all__ = ["Rebound", "find_rebound"]

_LONG_ENOUGH = 3
"""Points without a change, of what did change before: a short while says nothing."""
_NOUNS = {"dict": "dict", "list": "list", "numpy.ndarray": "array"}
_IN_PLACE = {"dict": "{}.update(…), or {}[key] = …", "list": "{}[:] = …, or {}.append(…)"}


class Rebound(NamedTuple):
    """A name, and what of the state it stood for."""

    key: str
    """Of the variable that the name is now, among what is beside the state."""
    path: str
    step: int
    """At whose end it was seen first."""
    cause: Cause


def find_rebound(trace: Trace) -> tuple[Rebound, ...]:
    """In an undisturbed run, the earliest first.

    Only where what is saved does not change any more from then on: another name may still stand for it, and the program
    may compute with that one.
    """
    found: dict[tuple[str, str], Rebound] = {}
    for run in trace.runs:
        points = trace.of(run)
        last = points[-1].bystanders if points else ()
        for seen in (thing for thing in last if thing.kind == "rebound"):
            begin = _begin(points, seen)
            later = points[begin + 1 :]
            is_long = len(later) >= _LONG_ENOUGH or (begin == 0 and later)
            if is_long and not any(_changes(point, seen.shown) for point in later):
                step = points[begin].step
                found.setdefault((run, seen.shown), Rebound(_key(seen), seen.shown, step, _cause(seen, step)))
    return tuple(sorted(found.values(), key=lambda one: one.step))


def _begin(points: Sequence[Point], seen: Bystander) -> int:
    """From which point on it was seen without a gap."""
    begin = len(points) - 1
    while begin > 0 and any(
        (thing.kind, thing.name, thing.shown) == (seen.kind, seen.name, seen.shown)
        for thing in points[begin - 1].bystanders
    ):
        begin -= 1
    return begin


def _changes(point: Point, outer: str) -> bool:
    return any(is_inside(path, outer) for path in (*point.leaves, *point.gone))


def _key(seen: Bystander) -> str:
    return bystander_key(msgspec.structs.replace(seen, kind="variable"))


def _cause(seen: Bystander, step: int) -> Cause:
    name = seen.code or seen.name
    noun = _NOUNS.get(seen.type, "tensor")
    how = _IN_PLACE.get(noun, "{}[:] = …, or {} -= …").replace("{}", name)
    return Cause(
        "rebound",
        f"`{name}` stands for another {noun} than the one in the state, since step {step}: what is saved does not "
        "change any more",
        (
            f"when the Checkpointer was made, `{name}` was {seen.shown} of the state",
            f"from step {step} on, {seen.shown} is the same in every checkpoint",
        ),
        f"change it in place: {how}",
    )
