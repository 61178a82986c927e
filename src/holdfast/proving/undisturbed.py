"""The undisturbed run: whether it gives anything to compare with, how far others can follow, and what that takes."""

import math
from typing import NamedTuple

from holdfast.engine.jobs import RESTART_STATUS
from holdfast.policy.durations import words_of
from holdfast.proving.reading import Course
from holdfast.proving.running import Start, Workspace
from holdfast.proving.verdict import CannotProveError

__all__ = ["REFERENCE_SHARE", "Cost", "check_reference", "cost_of", "failed", "first_part"]

REFERENCE_SHARE = 0.2
"""Of the time limit, for the undisturbed run: the second, the interrupted and the measured one want as much, and all
those starts take their time."""
_USED_SHARE = 0.7
"""Of the time limit, for the runs that come after, where the program has to be cut off."""
_WHOLE_RUNS = 3
"""That come after, besides the interruptions: again, interrupted, measured."""
_ROUND_S = 10


class Cost(NamedTuple):
    """What the undisturbed program took."""

    begin_s: float
    """Until its first point."""
    work_s: float
    steps: tuple[tuple[int, float], ...]
    """With the seconds since the first."""

    def affordable_step(self, *, limit_s: float, interruptions: int) -> int:
        """How far all the runs that come after can get, of a program that goes on and on."""
        starts = interruptions + _WHOLE_RUNS
        work_s = (_USED_SHARE * limit_s - starts * self.begin_s) / _WHOLE_RUNS
        return max((step for step, at_s in self.steps if at_s <= work_s), default=self.steps[0][0])

    def wanted_words(self, *, interruptions: int, is_cut: bool) -> str:
        """How much time it would have taken, as far as that can be told."""
        # Of a program that was cut off, as many steps as there are to be interruptions, and one to go on with.
        wanted = (interruptions + 2) * self.work_s / max(1, len(self.steps) - 1)
        work_s = max(wanted, 0.0) if is_cut else self.work_s
        all_s = ((interruptions + _WHOLE_RUNS) * self.begin_s + _WHOLE_RUNS * work_s) / _USED_SHARE
        limit_s = max(all_s, (self.begin_s + work_s) / REFERENCE_SHARE)
        took, limit = words_of(round(self.begin_s, 1)), words_of(math.ceil(limit_s / _ROUND_S) * _ROUND_S)
        plural = "s want" if interruptions > 1 else " wants"
        return f"the undisturbed start took {took} beside its steps; {interruptions} interruption{plural} about {limit}"


def cost_of(start: Start, course: Course) -> Cost:
    points = [point for point in start.trace.work() if point.run == course.run]
    first_s = points[0].at_s
    work_s = points[-1].at_s - first_s
    # Not what is left of its time behind the last point: one that hangs at its end is no slow beginning.
    return Cost(first_s, work_s, tuple((point.step, point.at_s - first_s) for point in points))


def first_part(course: Course, last: int) -> Course:
    """Up to that step."""
    kept = sum(step <= last for step in course.steps)
    return course._replace(steps=course.steps[:kept], epochs=course.epochs[:kept])


def check_reference(start: Start, course: Course | None, limit_s: float, workspace: Workspace) -> None:
    """CannotProveError where the undisturbed program gives nothing to compare with."""
    refused = start.trace.refusals
    if refused and start.status not in (0, None):
        raise CannotProveError(
            f"the program writes outside of its directory: {workspace.shown(refused[0])}",
            hint="write to a relative path, or allow it: --allow PATH (what is there may then be overwritten)",
        )
    if start.status not in (0, None):
        ended = f"with status {start.status}" if start.status > 0 else f"by signal {-start.status}"
        hint = "see that it runs alone first"
        if start.status == RESTART_STATUS:
            hint = "its time was nearly over (time_left=): give it more, or look at fewer steps: --steps"
        raise failed(f"the program fails by itself, {ended}", start, hint=hint)
    if course is not None:
        return
    if start.status is None:
        raise failed(
            f"the program made no step within {words_of(limit_s)}",
            start,
            hint="it is given a fifth of the --time-limit to run undisturbed",
        )
    if any(point.kind == "began" for point in start.trace.points):
        raise failed(
            "the program makes a Checkpointer, but calls neither step() nor save()",
            start,
            hint="call ckpt.step() at the end of every step",
        )
    raise failed(
        "the program never calls the checkpointer",
        start,
        hint="it must make a holdfast.Checkpointer and call step() or save(), in the Python of the command",
    )


def failed(message: str, start: Start, *, hint: str = "its last lines say why") -> CannotProveError:
    """With the last lines of what it said."""
    said = "\n".join(f"    {line}" for line in start.tail)
    return CannotProveError(f"{message}\n  its last lines:\n{said}" if said else message, hint=hint)
