"""How a job with a time limit ends: go on, save and stop, or make the best of what is left. Arithmetic only.

A job goes on while the time left covers one more step, a checkpoint after it, and the end of the process; so the last
checkpoint is begun at the last moment at which it is sure to become durable in time.
"""

import math
from enum import Enum
from typing import NamedTuple, TypeGuard

from holdfast.policy.durations import words_of

__all__ = ["Action", "Costs", "Ending", "Margin", "StepTimes", "decide_end", "decide_grace"]

_EXIT_S = 5.0
"""From the durable checkpoint to the end of the process: devices and threads are closed, the scheduler notices. No more
than a part of the whole time, too."""
_EXIT_SHARE = 0.15
_UNKNOWN_SAVE_S = 30.0
"""What a checkpoint is taken to cost before the first one was made, but no more than a part of the whole time."""
_UNKNOWN_SHARE = 0.25
_STEP_MARGIN = 1.25
"""A step may take so many times the longest one so far."""
_MEMORY = 30
_LOOK_S = 10.0
"""The answer may change without the program's doing, where a limit is shortened or lifted: it is never older."""
_LOOK_UNKNOWN_S = 1.0

_MARGIN_FIRST, _MARGIN_FLOOR, _MARGIN_CAP = 1.5, 1.2, 4.0
_HEADROOM = 1.1
_RELAX = 0.1
_NOISE_S = 0.5


class Action(Enum):
    """What to do now. All but the first two end the program, with the status that asks for a restart."""

    GO_ON = "go on"
    FINISH = "finish"
    """Go on, to the end: the program will be done before the limit."""
    SAVE_AND_STOP = "save and stop"
    FLUSH = "flush"
    """There is no time for a new snapshot: make the one that was taken last durable, and stop."""
    REPORT = "report"
    """Nothing more can be saved: say what is lost, and stop."""


class Ending(NamedTuple):
    """What to do about the end of the job, and why, in words."""

    action: Action
    reason: str
    look_in_s: float = math.inf
    """Where the program goes on: when to ask again, at the latest."""


class Costs(NamedTuple):
    """What one more checkpoint takes, as it was measured; None where nothing was measured yet."""

    stall_s: float | None = None
    durable_s: float | None = None
    pending_s: float | None = None
    """Until the snapshot that is on its way is durable, which a new one waits for; None where there is none."""


class StepTimes(NamedTuple):
    """How long steps take. The one that comes next may be as long as the longest, and longer.

    A long one (an evaluation between two steps, say) is remembered for about thirty times as long as it took: what
    comes again and again is not forgotten, and a program that was halted once does not stop early for ever.
    """

    usual_s: float | None = None
    longest_s: float = 0.0

    def note(self, count: int, seconds: float) -> "StepTimes":
        """With that many steps more, which took so long together; all that was unusual is put down to one of them."""
        if count < 1 or not _is_time(seconds):
            return self
        mean_s = seconds / count
        usual_s = mean_s if self.usual_s is None else self.usual_s + (mean_s - self.usual_s) / 8
        longest_s = max(mean_s, seconds - (count - 1) * usual_s)
        faded = min(seconds / (_MEMORY * self.longest_s), 1.0) if self.longest_s > 0 else 1.0
        return StepTimes(usual_s, max(longest_s, self.longest_s - (self.longest_s - mean_s) * faded))

    @property
    def next_s(self) -> float:
        """What the next step may take: the longest so far, and a quarter; 0 where none is known."""
        return max(_time(self.usual_s) or 0.0, _time(self.longest_s) or 0.0) * _STEP_MARGIN


class Margin(NamedTuple):
    """By how much saves take longer than expected: a factor that learns, between 1.2 and 4.

    It rises at once to a tenth above the worst that was seen, and comes down by a tenth of the difference a save.
    Half a second is added to both sides of the comparison, so that the noise of short saves teaches nothing.
    """

    factor: float = _MARGIN_FIRST
    saves: int = 0

    def note(self, expected_s: float, actual_s: float) -> "Margin":
        """After a save that was expected to take so long, and took so long."""
        if not _is_time(expected_s) or not _is_time(actual_s):
            return self
        wanted = (actual_s + _NOISE_S) / (expected_s + _NOISE_S) * _HEADROOM
        factor = wanted if wanted > self.factor else self.factor + (wanted - self.factor) * _RELAX
        return Margin(min(max(factor, _MARGIN_FLOOR), _MARGIN_CAP), self.saves + 1)

    def to_plain(self) -> dict[str, float]:
        return {"factor": self.factor, "saves": self.saves}

    @classmethod
    def from_plain(cls, plain: object) -> "Margin":
        """What `to_plain` gave; the first one where it is something else."""
        if not isinstance(plain, dict):
            return cls()
        factor, saves = plain.get("factor"), plain.get("saves")
        if not _is_number(factor) or not _is_number(saves) or saves < 0:
            return cls()
        return cls(float(min(max(factor, _MARGIN_FLOOR), _MARGIN_CAP)), int(saves))


def decide_end(
    left_s: float | None,
    *,
    costs: Costs,
    steps: StepTimes = StepTimes(),  # noqa: B008  a frozen value
    steps_left: int | None = None,
    margin: Margin = Margin(),  # noqa: B008  a frozen value
    whole_s: float = math.inf,
) -> Ending:
    """What to do at the end of a step with so much time left; None is a limit that is not known (yet).

    `steps_left` is how many steps the program has still to make, where it knows; `whole_s` how much time there was when
    it began: a short job must not end at its first step, because it is not known what a checkpoint costs.
    """
    if left_s is None or math.isnan(left_s):
        return Ending(Action.GO_ON, "the time left is not known", _LOOK_UNKNOWN_S)
    if left_s == math.inf:
        return Ending(Action.GO_ON, "there is no time limit", _LOOK_S)
    unknown_s = min(_UNKNOWN_SAVE_S, _UNKNOWN_SHARE * max(0.0, whole_s))
    save_s = (_pending(costs) + _save(costs, unknown_s=unknown_s)) * margin.factor
    exit_s = min(_EXIT_S, _EXIT_SHARE * max(0.0, whole_s))
    finish = _finish(left_s, save_s, exit_s, costs, steps, steps_left)
    if finish is not None:
        return finish
    spare_s = left_s - steps.next_s - save_s - exit_s
    step = f"a step takes up to {words_of(steps.next_s)}" if steps.next_s > 0 else "what a step takes is not known"
    needs = f"{words_of(left_s)} left; {step}, a checkpoint {words_of(save_s)}, the end {words_of(exit_s)}"
    if spare_s >= 0:
        return Ending(Action.GO_ON, needs, min(spare_s / 2, _LOOK_S))
    return _stop(left_s, 0.0, costs, needs)


def decide_grace(
    grace_s: float,
    *,
    until_safe_s: float = 0.0,
    costs: Costs,
    steps: StepTimes = StepTimes(),  # noqa: B008  a frozen value
    steps_left: int | None = None,
) -> Ending:
    """What to do after a signal or a notice that the process will be killed in so many seconds.

    `until_safe_s` is how long the step that is being made still takes: a checkpoint can only be begun after it. There
    is no margin here: a save that is begun and does not become durable costs nothing that was not lost anyway.
    """
    grace_s = 0.0 if math.isnan(grace_s) else grace_s
    until_safe_s = _time(until_safe_s) or 0.0
    save_s = _pending(costs) + _save(costs, unknown_s=0.0)
    finish = _finish(grace_s - until_safe_s, save_s, _EXIT_S, costs, steps, steps_left)
    return finish or _stop(grace_s, until_safe_s, costs, f"{words_of(grace_s)} of grace")


def _finish(
    left_s: float, save_s: float, exit_s: float, costs: Costs, steps: StepTimes, steps_left: int | None
) -> Ending | None:
    """FINISH, where the program is sure to be done before the limit, with a checkpoint of its end.

    Without one where it is too late for any: to stop would save nothing either.
    """
    # One that goes on after its last step had another one in mind.
    if steps_left is None or steps_left < 0 or (steps_left > 0 and steps.usual_s is None):
        return None
    if steps_left == 0:
        return Ending(Action.FINISH, "the last step is made: it ends now")
    # One of the steps may be as long as the longest; all of them together are not.
    usual_s = _time(steps.usual_s) or 0.0
    rest_s = steps.next_s + (steps_left - 1) * usual_s * _STEP_MARGIN
    is_too_late = _pending(costs) + _save(costs, unknown_s=0.0) > left_s
    spare_s = left_s - rest_s - (_pending(costs) if is_too_late else save_s) - exit_s
    if spare_s < 0:
        return None
    reason = (
        f"{words_of(left_s)} left; the last {steps_left} steps take up to {words_of(rest_s)}: it ends before the limit"
    )
    return Ending(Action.FINISH, reason, min(spare_s / 2, _LOOK_S))


def _stop(left_s: float, until_safe_s: float, costs: Costs, why: str) -> Ending:
    """What can still be saved, for a program that does not go on."""
    # Before the first checkpoint nothing is known of its cost, and there is nothing to lose: it is worth a try.
    save_s, pending_s = _save(costs, unknown_s=0.0), _pending(costs)
    if until_safe_s + pending_s + save_s <= left_s and left_s > 0:
        return Ending(Action.SAVE_AND_STOP, f"{why}: save now, and stop")
    lacks = f"{why}: too little for a checkpoint"
    if costs.durable_s is not None:
        lacks += f", which takes {words_of(until_safe_s + pending_s + save_s)}"
    if costs.pending_s is None:
        return Ending(Action.REPORT, f"{lacks}; nothing is on its way that could become durable")
    if pending_s <= left_s:
        return Ending(Action.FLUSH, f"{lacks}; the last snapshot becomes durable in {words_of(pending_s)}")
    return Ending(Action.REPORT, f"{lacks}, and for the last snapshot, which takes {words_of(pending_s)}")


def _save(costs: Costs, *, unknown_s: float) -> float:
    stall_s, durable_s = _time(costs.stall_s), _time(costs.durable_s)
    return (stall_s or 0.0) + (unknown_s if durable_s is None else durable_s)


def _pending(costs: Costs) -> float:
    return _time(costs.pending_s) or 0.0


def _time(seconds: float | None) -> float | None:
    """The time, where it is one."""
    return seconds if seconds is not None and _is_time(seconds) else None


def _is_time(seconds: float) -> bool:
    return 0 <= seconds < math.inf


def _is_number(value: object) -> TypeGuard[float]:
    # Compared, not converted: an integer may be too large for a float.
    return isinstance(value, int | float) and not isinstance(value, bool) and -math.inf < value < math.inf
