"""What a resumed program leaves out: steps and saves of the undisturbed one that it should have come to as well."""

from collections.abc import Collection
from typing import NamedTuple

from holdfast.engine.evidence import Point
from holdfast.proving.reading import WORKING, Trace
from holdfast.proving.verdict import Cause

__all__ = ["Key", "first_omission", "left_out", "work_keys"]

_SHOWN = 3


class Key(NamedTuple):
    """What the same point is called in every start."""

    run: str
    kind: str
    step: int


def work_keys(trace: Trace) -> set[Key]:
    """All ends of steps, and all saves."""
    return {_key(point) for point in trace.work()}


def first_omission(
    reference: Trace, other: Trace, *, optional: Collection[Key] = (), to_the_end: bool = False
) -> list[Key]:
    """What the reference did between the first and the last that the other did, and the other did not, in order.

    What it restored counts as the first: the work behind it was still to be done. What an interruption came before is
    not asked for, as the next start may rightly go on behind it. `to_the_end`: the other ended by itself.
    """
    points = reference.work()
    places: dict[Key, list[int]] = {}
    for index, point in enumerate(points):
        places.setdefault(_key(point), []).append(index)
    known = [places[_key(point)] for point in other.work() if _key(point) in places]
    # Of work that the reference did several times, the place that asks for least.
    begins = [known[0][-1]] if known else []
    begins += _behind_restored(points, other)
    if not begins or (not known and not to_the_end):
        return []
    end = len(points) - 1 if to_the_end else known[-1][0]
    seen = work_keys(other) | set(optional)
    wanted = [_key(point) for point in points[min(begins) : end + 1]]
    return [key for key in dict.fromkeys(wanted) if key not in seen and not _is_saved_anyway(key, seen, wanted)]


def left_out(missing: list[Key], *, number: int) -> Cause:
    """In the words of a cause."""
    first = missing[0]
    return Cause(
        "work-left-out",
        f"the resumed program does not {_words(first)}, as the undisturbed one does",
        tuple(f"start {number} does not {_words(key)}" for key in missing[:_SHOWN])
        + ((f"and {len(missing) - _SHOWN} more",) if len(missing) > _SHOWN else ()),
        "let the loop do the same after a restore as it does without one",
    )


def _key(point: Point) -> Key:
    return Key(point.run, point.kind, point.step)


def _words(key: Key) -> str:
    return f"save step {key.step} of {key.run}" if key.kind == "save" else f"make step {key.step} of {key.run}"


def _behind_restored(points: list[Point], other: Trace) -> list[int]:
    """Where the work begins that is not in what was restored, run by run."""
    found = []
    for restored in other.points:
        if restored.kind in WORKING:
            break  # a program that goes back later does so without an interruption, too
        if restored.kind == "restored":
            mine = [index for index, point in enumerate(points) if point.run == restored.run]
            last = max((index for index in mine if points[index].step == restored.step), default=None)
            found += [index for index in mine if last is not None and index > last][:1]
    return found


def _is_saved_anyway(key: Key, seen: Collection[Key], wanted: list[Key]) -> bool:
    """A save at the very end is not made where the last step was saved already, as the proof may have made it do."""
    return key.kind == "save" and key == wanted[-1] and Key(key.run, "step", key.step) in seen
