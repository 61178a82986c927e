"""The automatic interval, as a trigger: what the user asks of it. How it is found is for `policy.tuning`."""

import math
import operator
from dataclasses import dataclass
from datetime import timedelta

from holdfast.core.calls import public_call
from holdfast.core.errors import UsageError
from holdfast.policy.durations import seconds_of, words_of
from holdfast.policy.failures import PRIOR_MTBF_S
from holdfast.policy.functions import in_short
from holdfast.policy.moment import Decision, Moment
from holdfast.policy.triggers import Trigger

__all__ = ["FIRST_LATEST_S", "FIRST_S", "FIRST_STEPS", "Auto", "auto"]

# The first checkpoint, which measures what one costs, and without which a short job would have none.
FIRST_STEPS = 10
FIRST_S = 5.0
FIRST_LATEST_S = 60.0  # however few the steps were
_LOOK_AHEAD_STEPS = 1000
_LEAST_OVERHEAD = 1e-9
_MOST_S = 1e10  # three centuries
_MOST_STEPS = 10**15


@dataclass(frozen=True)
class Auto(Trigger):
    """When the interval that was found is over. Made by `auto(...)`; combines with others by `|` and `&`."""

    overhead: float
    lose_at_most_s: float | None
    at_least_every_steps: int | None
    mtbf_s: float

    def decide(self, moment: Moment) -> Decision:
        done = moment.step - moment.since_step
        if done <= 0:
            return Decision(due=False, reason="no step since the last checkpoint", ask_at=moment.since_step + 1)
        interval = moment.interval_steps
        if interval is None:
            if moment.saved_step is not None:
                # Whoever asks does so again now and then, by the clock.
                ahead, reason = _LOOK_AHEAD_STEPS, "what the first checkpoint costs is being measured"
            else:
                ahead, reason = self._steps_to_first(moment), "the first steps are being measured"
            return Decision(due=False, reason=reason, ask_at=moment.step + ahead)
        if done >= interval:
            return Decision(due=True, reason=f"{done} steps since the last checkpoint (auto: every {interval})")
        passed_s = moment.now_s - moment.since_s
        left_s = self._left_s(passed_s, interval, moment.step_s)
        if left_s <= 0:
            longest = words_of(self.lose_at_most_s or 0.0)
            return Decision(
                due=True, reason=f"{words_of(passed_s)} since the last checkpoint (auto: lose_at_most is {longest})"
            )
        reason = f"{done} of {interval} steps since the last checkpoint (auto)"
        ask_at = moment.since_step + interval
        if left_s < math.inf:
            # Steps may become slower, or stand still for an evaluation: look again when half of the time is over.
            ask_at = min(ask_at, moment.step + _half(left_s, moment.step_s))
        return Decision(due=False, reason=reason, ask_at=ask_at)

    def _steps_to_first(self, moment: Moment) -> int:
        done = moment.step - moment.began_step
        left_s = (FIRST_S if done >= FIRST_STEPS else FIRST_LATEST_S) - (moment.now_s - moment.began_s)
        ahead = _half(left_s, moment.step_s)
        return min(ahead, FIRST_STEPS - done) if done < FIRST_STEPS else ahead

    def _left_s(self, passed_s: float, interval: int, step_s: float | None) -> float:
        """Until one more step would overstep `lose_at_most`; infinite where that is not promised."""
        if self.lose_at_most_s is None or step_s is None or not math.isfinite(passed_s):
            return math.inf
        # An interval that is longer by itself is one that nothing can be done about: the storage is too slow.
        if interval * step_s > self.lose_at_most_s:
            return math.inf
        return self.lose_at_most_s - step_s - passed_s


def _half(left_s: float, step_s: float | None) -> int:
    """Of the time that is left, in steps, and the next one where that is not known."""
    half = left_s / 2 / step_s if step_s else math.nan
    # Not by min and max: where a clock says nan, no comparison is true, and the next step is right.
    return _LOOK_AHEAD_STEPS if half > _LOOK_AHEAD_STEPS else int(half) if half >= 1 else 1


@public_call("holdfast.auto")
def auto(
    *,
    overhead: float = 0.035,
    lose_at_most: float | str | timedelta | None = "10 min",
    at_least_every_steps: int | None = None,
    mtbf: float | str | timedelta = PRIOR_MTBF_S,
) -> Auto:
    """As often as is worth it: the interval is found by measuring, and follows what is measured while the job runs.

    Checkpoints slow the training by no more than the fraction `overhead`, are durable before the next one begins, and
    are as far apart as Young and Daly find best for how often the job fails: once in `mtbf` before its attempts show
    more. `at_least_every_steps` asks for more than that, as far as the first two allow. Never is more than
    `lose_at_most` between what is durable and now, even above `overhead`, unless the storage is too slow for it.
    """
    return Auto(
        overhead=_fraction(overhead),
        lose_at_most_s=None if lose_at_most is None else _positive_s("lose_at_most", lose_at_most),
        at_least_every_steps=None if at_least_every_steps is None else _count(at_least_every_steps),
        mtbf_s=_positive_s("mtbf", mtbf),
    )


def _fraction(value: object) -> float:
    # Compared before it is converted: an integer may be too large for a float.
    if not isinstance(value, bool) and isinstance(value, int | float) and _LEAST_OVERHEAD <= value <= 1:
        return float(value)
    raise UsageError(
        f"auto: overhead={in_short(repr(value))} is not a fraction above 0 and at most 1",
        hint="0.035 is 3.5 % of the training's time; give lose_at_most= where only the work at risk counts",
    )


def _positive_s(name: str, value: object) -> float:
    seconds = seconds_of(value, f"auto: {name}")
    if seconds <= 0:
        raise UsageError(f"auto: {name}={value!r} is not a time above 0", hint=f'for example {name}="10 min"')
    return min(seconds, _MOST_S)


def _count(value: object) -> int:
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or number < 1:
        raise UsageError(
            f"auto: at_least_every_steps={in_short(repr(value))} is not an integer of at least 1",
            hint="1 is as often as overhead= allows",
        )
    return min(number, _MOST_STEPS)
