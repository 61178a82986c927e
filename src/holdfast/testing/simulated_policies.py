"""Policies for the simulation: the automatic interval, CheckFreq's rule as it was published, and a fixed time."""

import math
from collections.abc import Iterable

from holdfast.policy.auto import Auto, auto
from holdfast.policy.failures import FailureRate, Lifetime
from holdfast.policy.tuning import Tuner
from holdfast.testing.simulation import Pacing, Scenario

__all__ = ["CheckFreq", "Every", "Tuned", "TunedPacing"]

_ALL = 10**15


class Tuned:
    """The automatic interval, with the limits of the scenario."""

    name = "auto"

    def __init__(self, tuner: type[Tuner] = Tuner) -> None:
        self._tuner = tuner
        self.pacings: list[TunedPacing] = []

    def begin(self, scenario: Scenario, before: Pacing | None, lifetimes: Iterable[Lifetime]) -> "TunedPacing":
        asked = auto(overhead=scenario.overhead, lose_at_most=scenario.lose_at_most_s)
        profile = before.tuner.plan().measured if isinstance(before, TunedPacing) else None
        tuner = self._tuner(asked, profile=profile, failures=FailureRate.of(lifetimes))
        pacing = TunedPacing(tuner, asked)
        self.pacings.append(pacing)
        return pacing

    @property
    def mtbf_s(self) -> float:
        """What was estimated, on average over the job."""
        means = [(len(p.chosen) + 1, (p.mtbf_s + p.tuner.mtbf_s) / 2) for p in self.pacings]
        return sum(weight * mean_s for weight, mean_s in means) / sum(weight for weight, _ in means)


class TunedPacing:
    """What stands between the tuner and the job, as the checkpointer does."""

    def __init__(self, tuner: Tuner, asked: Auto) -> None:
        self.tuner = tuner
        self._asked = asked
        self.chosen: list[tuple[int, float]] = []
        """The interval that was in force at each checkpoint, and what was known of failures then."""
        self.deciding: list[str] = []
        """Which rule decided it."""
        self.mtbf_s = tuner.mtbf_s

    @property
    def look_steps(self) -> int:
        return self.tuner.look_steps

    def left(self, steps: int, seconds: float, step_s: float) -> float:
        interval = self.tuner.interval_steps
        if interval is None:
            return self.tuner.look_steps  # before the first checkpoint
        longest_s, known_s = self._asked.lose_at_most_s, self.tuner.step_s
        if longest_s is not None and known_s is not None and interval * known_s <= longest_s and steps > 0:
            in_time = math.floor((longest_s - known_s - seconds) / step_s) + 1
            return min(interval - steps, max(0, in_time))
        return interval - steps

    def note_steps(self, count: int, seconds: float, *, writing: bool) -> None:
        self.tuner.note_steps(count, seconds, writing=writing)

    def note_saved(self, stall_s: float) -> None:
        self.chosen.append((self.tuner.interval_steps or 0, self.tuner.mtbf_s))
        self.deciding.append(self.tuner.won)
        self.tuner.note_saved(stall_s)

    def note_durable(self, seconds: float, queued_s: float | None) -> None:
        self.tuner.note_durable(seconds, queued_s)


class CheckFreq:
    """Mohan, Phanishayee, Chidambaram: CheckFreq (FAST '21).

    From a profile of the first hundred steps and one checkpoint: the smallest k such that the checkpoint is durable
    before the next one and its stall is amortised. Then, whenever the steps of an interval took longer than the
    profile says by more than the limit, k grows by 2. It never shrinks. (The authors' code takes the first condition
    only; with the second, which the paper has, the comparison is the harder one.)
    """

    name = "CheckFreq"

    def begin(self, scenario: Scenario, before: Pacing | None, lifetimes: Iterable[Lifetime]) -> "_CheckFreqPacing":  # noqa: ARG002
        return _CheckFreqPacing(scenario.overhead, before if isinstance(before, _CheckFreqPacing) else None)


class _CheckFreqPacing:
    look_steps = _ALL
    _PROFILED = 100
    _SKIPPED = 5

    def __init__(self, limit: float, before: "_CheckFreqPacing | None") -> None:
        self._limit = limit
        self.step_s: float | None = before.step_s if before else None
        self.k: int | None = before.k if before else None
        self._steps = 0
        self._seconds = 0.0
        self._stall_s = 0.0
        self._monitored = 0
        self._monitored_s = 0.0

    def left(self, steps: int, seconds: float, step_s: float) -> float:  # noqa: ARG002
        if self.step_s is None:
            return self._SKIPPED if self._steps < self._SKIPPED else self._PROFILED - self._steps
        return 0 if self.k is None else self.k - steps

    def note_steps(self, count: int, seconds: float, *, writing: bool) -> None:  # noqa: ARG002
        self._monitored += count
        self._monitored_s += seconds
        if self.step_s is None:
            self._steps += count
            if self._steps > self._SKIPPED:
                self._seconds += seconds
            if self._steps >= self._PROFILED:
                self.step_s = self._seconds / (self._steps - self._SKIPPED)

    def note_saved(self, stall_s: float) -> None:
        if self.k is not None and self.step_s is not None and self._monitored:
            expected_s = self._monitored * self.step_s
            if (self._monitored_s - expected_s) / expected_s > self._limit:
                self.k += 2
        self._monitored, self._monitored_s = 0, stall_s
        self._stall_s = stall_s

    def note_durable(self, seconds: float, queued_s: float | None) -> None:  # noqa: ARG002
        if self.k is None and self.step_s is not None:
            durable = math.ceil((seconds - self._stall_s) / self.step_s)
            self.k = max(1, durable, math.ceil(self._stall_s / (self._limit * self.step_s)))


class Every:
    """After so many seconds, at the end of the step."""

    def __init__(self, seconds: float = 600.0) -> None:
        self.seconds = seconds
        self.name = f"every {seconds / 60:g} min"

    def begin(self, scenario: Scenario, before: Pacing | None, lifetimes: Iterable[Lifetime]) -> "_EveryPacing":  # noqa: ARG002
        return _EveryPacing(self.seconds)


class _EveryPacing:
    look_steps = _ALL

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def left(self, steps: int, seconds: float, step_s: float) -> float:
        if steps <= 0:
            return max(1, math.ceil(self._seconds / step_s))
        return math.ceil((self._seconds - seconds) / step_s)

    def note_steps(self, count: int, seconds: float, *, writing: bool) -> None: ...

    def note_saved(self, stall_s: float) -> None: ...

    def note_durable(self, seconds: float, queued_s: float | None) -> None: ...
