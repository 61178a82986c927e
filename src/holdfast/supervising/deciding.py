"""What to do when an attempt has ended: nothing more, again after a while, or give up. Decides; does nothing."""

from typing import NamedTuple

from holdfast.supervising.app import Outcome

__all__ = ["QUICK_S", "Rules", "SoFar", "Tried", "Verdict", "judge"]

QUICK_S = 10.0
"""An attempt of a program that tells no steps, and that is shorter than this, has led nowhere."""
_LONGEST_BACKOFF_S = 60.0
# Of a command line that makes no sense, of what cannot be executed, of what is not there.
_NOT_WORTH_REPEATING = {
    2: "status 2 is that of a wrong command line",
    126: "what it would start cannot be executed",
    127: "what it would start is not there",
}
_TO_GO_ON = "start the same command again to go on"
_ADVICE = "find the cause in what it said above, then start the same command again"


class Rules(NamedTuple):
    """How often to try."""

    max_restarts: int | None = 100
    max_crashes: int | None = 5
    """In a row, without progress."""
    backoff_s: float = 1.0
    restarts_when_asked: bool = True
    """Whether the status that asks for a restart is followed by one; in a scheduler's job it is for the scheduler."""
    repeats_usage_errors: bool = False


class Tried(NamedTuple):
    """What became of one attempt."""

    outcome: Outcome
    status: int
    took_s: float
    from_step: int | None = None
    step: int | None = None
    stopped_by: str = ""
    """The signal that somebody sent to end it."""
    is_hung: bool = False
    """It was ended by us, because it made no more steps."""


class SoFar(NamedTuple):
    """What all attempts together have come to."""

    restarts: int = 0
    fruitless: int = 0
    """Attempts in a row that came no further than those before."""
    crashes: int = 0
    """Those of them that count as crashes."""
    best_step: int | None = None
    lowest_start: int | None = None
    """Of those in a row."""


class Verdict(NamedTuple):
    """What comes next."""

    goes_on: bool
    status: int
    """The supervisor's own, if this is the end."""
    after_s: float = 0.0
    why: str = ""
    advice: str = ""


def judge(tried: Tried, so_far: SoFar, rules: Rules) -> tuple[Verdict, SoFar]:
    """What comes next, and what the attempts have come to now."""
    now = _count(tried, so_far)
    if tried.stopped_by or tried.outcome == "done":
        has_more = tried.outcome == "again" and rules.restarts_when_asked
        return Verdict(goes_on=False, status=tried.status, advice=_TO_GO_ON if has_more else ""), now
    is_asked = tried.outcome == "again" and not tried.is_hung
    if is_asked and not rules.restarts_when_asked:
        return Verdict(goes_on=False, status=tried.status, why="left to the scheduler"), now
    ended = _limit(tried, now, rules)
    if ended is not None:
        return ended, now
    after_s = 0.0 if is_asked and not now.fruitless else _backoff_s(now.fruitless, rules.backoff_s)
    return Verdict(goes_on=True, status=tried.status, after_s=after_s), now._replace(restarts=now.restarts + 1)


def _count(tried: Tried, so_far: SoFar) -> SoFar:
    best = so_far.best_step
    if tried.step is not None and (best is None or tried.step > best):
        best = tried.step
    if _has_progressed(tried, so_far):
        return so_far._replace(fruitless=0, crashes=0, best_step=best, lowest_start=None)
    # A program that goes back to an older checkpoint tries something new. Each is older than the last: that ends.
    lowest, start = so_far.lowest_start, tried.from_step if tried.step else None
    has_fallen_back = start is not None and lowest is not None and start < lowest
    if start is not None and (lowest is None or has_fallen_back):
        lowest = start
    # One that asks for a restart, and whose steps nobody knows, is no crash; with steps, it goes round in circles.
    is_crash = tried.outcome == "failed" or tried.is_hung or tried.step is not None
    crashes = 0 if has_fallen_back else so_far.crashes
    return so_far._replace(
        fruitless=so_far.fruitless + 1,
        crashes=crashes + is_crash,
        best_step=best,
        lowest_start=lowest,
    )


def _has_progressed(tried: Tried, so_far: SoFar) -> bool:
    if tried.step is None:
        # One that told its steps before, and did not come to that now, was only starting.
        return so_far.best_step is None and tried.took_s >= QUICK_S and not tried.is_hung
    before = so_far.best_step if so_far.best_step is not None else tried.from_step or 0
    return tried.step > before


def _limit(tried: Tried, now: SoFar, rules: Rules) -> Verdict | None:
    """The end, if this is it."""
    cause = _NOT_WORTH_REPEATING.get(tried.status)
    if cause and now.fruitless and tried.outcome == "failed" and not rules.repeats_usage_errors:
        advice = "put it right, or add --until-done to have it tried again all the same"
        return Verdict(goes_on=False, status=tried.status, why=f"not tried again: {cause}", advice=advice)
    if rules.max_crashes is not None and now.crashes >= rules.max_crashes:
        times = "once" if now.crashes == 1 else f"{now.crashes} times in a row"
        goes_on_from = "" if now.best_step is None else ": it goes on from its last checkpoint"
        why = f"given up: it ended {times} without coming any further"
        return Verdict(goes_on=False, status=tried.status, why=why, advice=f"{_ADVICE}{goes_on_from}")
    if rules.max_restarts is not None and now.restarts >= rules.max_restarts:
        why = f"given up: it was started again {now.restarts} times (--max-restarts)"
        advice = f"{_TO_GO_ON}, or let it have more restarts"
        return Verdict(goes_on=False, status=tried.status, why=why, advice=advice)
    return None


def _backoff_s(fruitless: int, first_s: float) -> float:
    doublings = min(max(fruitless - 1, 0), 30)
    return min(first_s * 2.0**doublings, max(_LONGEST_BACKOFF_S, first_s))
