"""What became of one start of the interrupted program: how far it came, whether it was struck, what is wrong."""

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.policy.durations import words_of
from holdfast.proving.comparing import Parting
from holdfast.proving.planning import Leg
from holdfast.proving.reading import Course, Trace
from holdfast.proving.rebinding import Rebound
from holdfast.proving.running import Start
from holdfast.proving.verdict import Cause, Started

__all__ = [
    "Broken",
    "add_rebound",
    "describe_start",
    "is_ahead",
    "judge_end",
    "outcome_of",
    "reached_step",
    "saved_by",
    "seen_by_the_program",
    "started_over",
    "was_interrupted",
    "went_on",
]


_UNEXPLAINED = ("unknown", "metric-not-from-state")


class Broken(NamedTuple):
    """Why the interrupted run is not as it should be."""

    causes: tuple[Cause, ...]
    parting: Parting | None = None
    step: int | None = None
    dump: str = ""
    tail: tuple[str, ...] = ()
    is_undisturbed: bool = False
    path: str = ""
    """The leaf that is meant, where they did not part."""


def add_rebound(broken: Broken | None, rebound: Sequence[Rebound]) -> Broken:
    """What is saved is not what the program computes with: that comes first, and explains what is not explained."""
    causes = tuple(one.cause for one in rebound)
    if broken is None:
        return Broken(causes, step=rebound[0].step, path=rebound[0].path)
    others = [cause for cause in broken.causes if cause.kind not in _UNEXPLAINED]
    return broken._replace(causes=(*causes, *others))


def judge_end(course: Course, leg: Leg, start: Start, number: int, *, usual_s: float) -> Broken | None:
    """Whether a start that was equal as far as it came also ended as it should."""
    reached = reached_step(start.trace, course.run)
    if start.status is None:
        cause = Cause(
            "start-hangs",
            f"start {number} did not end within {words_of(start.took_s)}; it came to step {reached or 0}",
            (f"the undisturbed program took {words_of(usual_s)}",),
            "look at its last lines; --time-limit gives it more",
        )
        return Broken((cause,), step=reached or 0, tail=start.tail)
    if leg.interruption is not None and start.trace.was_struck:  # however it ended then
        return None
    if start.status != 0:
        cause = Cause(
            "start-fails",
            f"start {number} fails with status {start.status}; the undisturbed program does not",
            (),
            "its last lines say why",
        )
        return Broken((cause,), step=reached or 0, tail=start.tail)
    if not came_to_the_end(start, course):
        cause = Cause(
            "ends-early",
            f"start {number} ends after step {reached or 0}; the undisturbed one comes to step {course.steps[-1]}",
            (),
            "let the loop go on from the restored step to the same last step",
        )
        return Broken((cause,), step=reached or 0, tail=start.tail)
    return None


def seen_by_the_program(start: Start) -> Broken:
    """It ended because it saw a difference, and what it told besides shows none: several saves of one step, perhaps."""
    told = next((point for point in start.trace.points if point.kind == "differs"), None)
    paths = [] if told is None else told.text.split("\n")
    cause = Cause("unknown", f"the resumed program differs in {', '.join(paths[:3]) or 'something'}")
    return Broken((cause,), step=None if told is None else told.step, tail=start.tail)


def started_over(trace: Trace, run: str, saved: int) -> int | None:
    """The step at which it began anew, although there was a checkpoint."""
    points = trace.of(run)
    if not saved or not points or any(point.kind == "restored" for point in points) or points[0].step > saved:
        return None
    return points[0].step


def went_on(reference: Trace, resumed: Trace) -> bool:
    """Whether it made a step after a restore that the reference made, too."""
    known = {(point.run, point.step) for point in reference.work()}
    restored = {point.run: point.step for point in resumed.points if point.kind == "restored"}
    return any(
        (point.run, point.step) in known and point.step > restored.get(point.run, point.step)
        for point in resumed.work()
    )


def saved_by(leg: Leg, trace: Trace, run: str) -> int:
    """The step of that run that is surely durable after that leg."""
    strike = leg.interruption
    if strike is None:
        return 0
    late = strike.when in ("after save", "in step")
    seen = {point.step for point in trace.of(run)} - {
        point.step for point in trace.points if point.run == run and point.kind == "unsaved"
    }
    wanted = [step for step in leg.save_at if step < strike.step or (late and step == strike.step)]
    return max((step for step in wanted if step in seen), default=0)


def reached_step(trace: Trace, run: str) -> int | None:
    return max((point.step for point in trace.of(run)), default=None)


def is_ahead(legs: Sequence[Leg], reached: int | None) -> bool:
    """Whether the next interruption is still to come."""
    strike = legs[0].interruption if legs else None
    return strike is None or strike.step > (reached or 0)


def was_interrupted(start: Start, course: Course) -> bool:
    """Whether the signal ended the program: before it had come to its end, or so that a shell began it again."""
    points = start.trace.points
    place = next((index for index, point in enumerate(points) if point.kind == "struck"), None)
    if place is None:
        return False
    pid = points[place].pid
    begun = {point.run for point in points[:place] if point.kind == "began" and point.pid == pid}
    again = [point for point in points[place:] if point.kind == "began" and point.pid != pid and point.run in begun]
    return bool(again) or not came_to_the_end(start, course)


def outcome_of(leg: Leg, start: Start, course: Course, broken: Broken | None) -> str:
    if broken is not None:
        return broken.causes[0].kind if broken.parting is None else "differs"
    if leg.interruption is not None and not was_interrupted(start, course):
        return "equal, went on" if start.trace.was_struck else "equal, ended before"
    return "equal"


def describe_start(
    case: str, number: int, leg: Leg | None, trace: Trace, status: int | None, took_s: float, outcome: str
) -> Started:
    strike = None if leg is None else leg.interruption
    restored = next((point.step for point in trace.points if point.kind == "restored"), None)
    reached = max((point.step for point in trace.work()), default=restored)
    return Started(
        case=case,
        number=number,
        why="" if leg is None else leg.why,
        signal="" if strike is None else strike.signal,
        step=None if strike is None else strike.step,
        when="" if strike is None else strike.when,
        from_step=restored,
        to_step=reached,
        status=status,
        took_s=round(took_s, 3),
        outcome=outcome,
        was_struck=trace.was_struck,
    )


def came_to_the_end(start: Start, course: Course) -> bool:
    """Whether it ended by itself, with all its steps."""
    return start.status == 0 and (reached_step(start.trace, course.run) or 0) >= course.steps[-1]
