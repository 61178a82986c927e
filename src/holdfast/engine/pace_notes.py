"""What the journal hears of a pace: another interval, a limit of time that moved, and what is done about it."""

import logging
import math
from collections.abc import Callable

from holdfast.engine.pace_history import PACED
from holdfast.policy.deadline import Action, Ending, Margin
from holdfast.policy.tuning import Plan, Tuner

__all__ = ["PaceNotes"]

_log = logging.getLogger("holdfast")

_DEADLINE = "deadline"
# The journal hears of an interval that changed by more than this; and of another rule that decides, once a checkpoint.
_WORTH_TELLING = 0.1
# And when the run has become so many times as long, but not in its first minute: what an attempt has not spent on
# checkpoints is there for the next one, though it be killed.
_LONGER = 2.0
_LEAST_S = 60.0
# And of an end of the job that moved by more than this.
_WORTH_TELLING_S = 60.0


class PaceNotes:
    """Remembers what was told, so as to tell only what is new."""

    def __init__(self, note: Callable[..., None], *, limit: float | None) -> None:
        """`note` writes an event to the journal; `limit` is the share of the time that checkpoints may cost."""
        self._note = note
        self._limit = limit
        self._told: tuple[int | None, str, int] = (None, "", 0)
        self._told_base_s = 0.0
        self._told_end: tuple[Action, float] | None = None

    def is_news(self, plan: Plan, *, saved: int) -> bool:
        """Whether the plan is another one than was told, when so many checkpoints have been begun."""
        before, won, saved_before = self._told
        return plan.interval_steps is not None and (
            before is None
            or abs(plan.interval_steps - before) > _WORTH_TELLING * before
            # Two rules that want nearly the same may take turns.
            or (won != plan.won and saved_before != saved)
            or plan.measured.base_s > _LONGER * max(_LEAST_S, self._told_base_s)
        )

    def tell_plan(
        self, plan: Plan, tuner: Tuner, *, step: int, elapsed_s: float, margin: Margin, saved: int, skipped: int
    ) -> None:
        """What is planned, why, and what it was found from."""
        measured = plan.measured
        self._told = (plan.interval_steps, plan.won, saved)
        self._told_base_s = measured.base_s
        _log.info("checkpoints: %s", plan.why)
        self._note(
            PACED,
            step=step,
            elapsed_s=round(elapsed_s, 3),
            interval_steps=plan.interval_steps,
            won=plan.won,
            why=plan.why,
            rules=[{"name": wish.name, "steps": wish.steps, "text": wish.text} for wish in plan.rules],
            step_s=measured.step_s,
            stall_s=measured.stall_s,
            slow_s=measured.slow_s,
            durable_s=measured.durable_s,
            queued_s=measured.queued_s,
            overhead_window=tuner.overhead_window,
            overhead_run=tuner.overhead_run,
            limit=self._limit,
            mtbf_s=tuner.mtbf_s,
            risk=tuner.risk,
            saved=saved,
            skipped=skipped,
            profile=measured.to_plain(),
            margin=margin.to_plain(),
        )

    def tell_end(self, ending: Ending | None, left_s: float | None, *, now_s: float, source: str) -> None:
        """Of a limit, of one that moved, and of what is to be done about it. `source` says who knows of the limit."""
        if ending is None or left_s is None or math.isnan(left_s):
            return
        told, end = self._told_end, (ending.action, now_s + left_s)
        if told is None and left_s == math.inf:
            return  # nobody asked for a limit, and there is none
        # Infinity minus infinity is no number, which is not more than a minute.
        if told is None or told[0] is not end[0] or abs(told[1] - end[1]) > _WORTH_TELLING_S:
            self._told_end = end
            known_s = round(left_s, 3) if math.isfinite(left_s) else None
            self._note(_DEADLINE, source=source, left_s=known_s, decided=ending.action.value, why=ending.reason)
