"""Whether a job has to end: the time that is left, against what steps and checkpoints take."""

import math
from collections import deque

from holdfast.engine.pace_history import Past
from holdfast.engine.time_left import TimeLeft
from holdfast.policy.deadline import Action, Costs, Ending, Margin, StepTimes, decide_end, decide_grace
from holdfast.policy.profile import Profile

__all__ = ["JobEnd"]

# The end of a job is planned with the slowest of the last few checkpoints.
_REMEMBERED = 5


class JobEnd:
    """Remembers what checkpoints took; what it decides, others do."""

    def __init__(self, past: Past, *, time_left: TimeLeft | None, total_steps: int | None) -> None:
        self.margin = Margin.from_plain(past.margin)
        self._time_left = time_left
        self._total_steps = total_steps
        # Of one that was stopped before its plan told anything, or had none.
        self._durable_before_s = (
            Profile.from_plain({"durable_s": past.durable_s}).durable_s or Profile.from_plain(past.profile).durable_s
        )
        self._durables_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._whole_s: float | None = None

    @property
    def durable_s(self) -> float | None:
        """What the slowest of the last few checkpoints took to be durable; None where that is not known."""
        return max(self._durables_s, default=self._durable_before_s)

    @property
    def is_watched(self) -> bool:
        """Whether somebody knows how much time there is."""
        return self._time_left is not None

    @property
    def source(self) -> str:
        """Who knows it."""
        return "" if self._time_left is None else self._time_left.source

    def left_s(self) -> float | None:
        """The time that is left; None where nobody knows."""
        return None if self._time_left is None else self._time_left.left_s()

    def note_durable(self, took_s: float) -> None:
        """A checkpoint is durable, so long after it was begun."""
        if self._durables_s:
            self.margin = self.margin.note(max(self._durables_s), took_s)
        self._durables_s.append(took_s)

    def decide(self, step: int, left_s: float | None, steps: StepTimes, *, pending: bool) -> Ending | None:
        """What to do about the limit of time; None where there is none. `pending`: a checkpoint is on its way."""
        if self._time_left is None:
            return None
        if self._whole_s is None and left_s is not None and not math.isnan(left_s):
            self._whole_s = left_s
        return decide_end(
            left_s,
            costs=self._costs(pending=pending),
            steps=steps,
            steps_left=self._steps_left(step),
            margin=self.margin,
            whole_s=math.inf if self._whole_s is None else self._whole_s,
        )

    def decide_asked(self, step: int, stop: str, grace_s: float | None, steps: StepTimes, *, pending: bool) -> Ending:
        """What to do where the program is asked to stop: why, and how long it may take, None for no limit."""
        if grace_s is None:
            return Ending(Action.SAVE_AND_STOP, f"asked to stop: {stop}")
        costs, steps_left = self._costs(pending=pending), self._steps_left(step)
        ending = decide_grace(grace_s, costs=costs, steps=steps, steps_left=steps_left)
        return ending._replace(reason=f"{stop}: {ending.reason}")

    def _costs(self, *, pending: bool) -> Costs:
        # The stall is part of it: it counts from the call.
        durable_s = self.durable_s
        return Costs(durable_s=durable_s, pending_s=(durable_s or 0.0) if pending else None)

    def _steps_left(self, step: int) -> int | None:
        return None if self._total_steps is None else self._total_steps - step
