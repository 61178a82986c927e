"""What steps and checkpoints take, from what was noted of them: robust, and following changes in both directions."""

import math
from collections import deque

from holdfast.policy.levels import Level
from holdfast.policy.profile import Profile

__all__ = ["Costs", "Pace", "Slowing", "Spending", "Write"]

_BIN_STEPS = 16  # averages what gradient accumulation, or every so many-th batch, does to a step
_BIN_LATEST_S = 10.0  # but long steps are looked at one by one
_WINDOW = 8
_LATEST_BINS = 4
_FRESH_BINS = 6
_LEAST_STEP_S = 1e-9
_HARDLY = 0.01
_AFTER = 2  # times as many steps after a write as during it are compared with those
_ENOUGH_AFTER = 0.5
_REMEMBERED = 128
_SPREAD_FROM = 6
_FEW = 8
_SURELY = 3.0  # times its error is where a mean begins to count


class Pace:
    """What a step takes while no checkpoint is written: the mean over bins of steps, pauses pulled in."""

    def __init__(self, first_s: float | None) -> None:
        self._level = Level(first_s, fresh=_FRESH_BINS, drops=True, warms_up=True)
        self._latest: deque[float] = deque(maxlen=_LATEST_BINS)
        self._count = 0
        self._seconds = 0.0
        self._usual_bin = float(_BIN_STEPS)
        # So many steps make a bin, or so many seconds, should the steps take much longer than was thought: a fraction
        # of the interval, so that all bins together span a few intervals.
        self.bin_steps = 1
        self.bin_s = math.inf

    @property
    def step_s(self) -> float | None:
        """None before the first bin is full."""
        return None if self._level.value is None else max(self._level.value, _LEAST_STEP_S)

    @property
    def warm(self) -> bool:
        """Whether it rests on more than the first steps."""
        return self._level.count > 0

    @property
    def latest_s(self) -> float | None:
        """The same, but of the last few bins where they show that it is drifting."""
        if self.step_s is None or len(self._latest) < _LATEST_BINS:
            return self.step_s
        latest_s = sum(self._latest) / len(self._latest)
        apart = abs(latest_s - self.step_s)
        return latest_s if apart > 2 * self._level.spread / math.sqrt(_LATEST_BINS) else self.step_s

    def add(self, count: int, seconds: float) -> bool:
        """Whether that changed anything."""
        self._count += count
        self._seconds += seconds
        enough = self._count >= _BIN_STEPS or self._seconds >= _BIN_LATEST_S
        if not enough or (self._count < self.bin_steps and self._seconds < self.bin_s):
            return False
        # The first bin compiles, fills caches and waits for data: it counts only as long as there is no other.
        self._latest.append(self._level.add(self._seconds / self._count))
        self._usual_bin += (self._count - self._usual_bin) / _FEW
        self._count, self._seconds = 0, 0.0
        return True

    def add_write(self, count: int, seconds: float) -> None:
        """Writing slows steps, if anything: where they were faster than `step_s` all the same, that is too long."""
        if self.step_s is not None and count * self.step_s - seconds > 2 * self.noise_s(count):
            self._level.restart(seconds / count)

    def gap_steps(self, write_steps: int) -> int:
        """How many steps after such a write fill a bin, and are enough to compare with those of the write."""
        few = min(_BIN_STEPS, math.ceil(_BIN_LATEST_S / (self.step_s or _BIN_LATEST_S)))
        return max(math.ceil(_ENOUGH_AFTER * write_steps), few, self.bin_steps)

    def noise_s(self, count: int) -> float:
        """By how much the time of so many steps may differ from `count` · `step_s`, by chance."""
        by_chance = self._level.spread * math.sqrt(count * self._usual_bin)
        return math.hypot(by_chance, self._level.error * count)


class Slowing:
    """What slower steps cost during a write: the mean of many noisy samples, as far as it stands out of the noise."""

    def __init__(self, first_s: float | None, error_s: float = 0.0) -> None:
        self._level = Level(first_s, warms_up=True)
        self._mean_s = first_s or 0.0
        self._variance = error_s * error_s
        self._most_s = (first_s or 0.0) + error_s
        self._count = 0 if first_s is None else 1
        self._total_s = 0.0

    @property
    def each_s(self) -> float | None:
        """Of one checkpoint, as far as it is beyond doubt; None where it was never seen."""
        if self._level.value is None:
            return None
        return _distinct(self._mean_s, self._error2)

    @property
    def likely_s(self) -> float | None:
        """Of one checkpoint, beyond doubt or not."""
        return None if self._level.value is None else max(0.0, self._mean_s)

    @property
    def careful_s(self) -> float:
        """Of one checkpoint, as much as it may well be."""
        return min(self._most_s, max(0.0, self._mean_s) + self.error_s)

    @property
    def error_s(self) -> float:
        """By how much `likely_s` may be off."""
        return math.sqrt(self._error2)

    @property
    def sure(self) -> bool:
        """Whether it rests on more than a few writes."""
        return self._level.count >= _SPREAD_FROM

    @property
    def total_s(self) -> float:
        """Of all of them."""
        return max(0.0, self._total_s)

    @property
    def _error2(self) -> float:
        # Of a few samples the spread says little; what is to be expected of the steps has to do.
        variance = self._level.spread**2 if self._level.count >= _SPREAD_FROM else self._variance
        return variance / max(1, self._count)

    def add(self, extra_s: float, *, noise_s: float, most_s: float) -> None:
        """By how much the steps of one write took longer, how much of that may be chance, and what it is at most."""
        # Not cut off at 0: chance makes some too short and some too long, and only together they tell.
        sample_s, noise_s = max(-most_s, min(most_s, extra_s)), min(most_s, noise_s)
        counted_s = self._level.add(sample_s)
        self._total_s += counted_s
        count = min(_REMEMBERED, self._count + 1)
        if self._level.count < min(count, _SPREAD_FROM):
            # It has moved, and the level has forgotten what was before; or this was the first one, which warms up.
            self._count, self._mean_s = self._level.count, self._level.value or 0.0
        else:
            self._count = count
            self._mean_s += (counted_s - self._mean_s) / count
        weight = 1 / max(1, min(_FEW, self._count))
        self._most_s += weight * (most_s - self._most_s)
        self._variance += weight * (noise_s * noise_s - self._variance)


class Costs:
    """What one checkpoint costs, and what all of them did."""

    def __init__(self, profile: Profile) -> None:
        # The first checkpoint of an attempt touches memory that is new, and starts what is not running yet.
        self.stall = Level(profile.stall_s, warms_up=True)
        self.durable = Level(profile.durable_s, warms_up=True)
        self.slowing = Slowing(profile.slow_s, profile.slow_error_s)
        self.stalled_s = 0.0

    @property
    def cost_s(self) -> float | None:
        """Of one checkpoint: stall and slow-down. None before the first."""
        return None if self.stall.mean is None else self.stall.mean + (self.slowing.each_s or 0.0)

    @property
    def careful_s(self) -> float:
        """The same with as much of the slow-down as there may well be, for those who must not spend too much."""
        return (self.stall.mean or 0.0) + self.slowing.careful_s

    @property
    def spent_s(self) -> float:
        """Of all of them."""
        return self.stalled_s + self.slowing.total_s

    @property
    def durable_latest_s(self) -> float | None:
        """Within which nearly all of them are durable."""
        if self.durable.value is None:
            return None
        few = 0.1 * self.durable.value if self.durable.count < 4 else 0.0
        return self.durable.value + 2 * max(self.durable.spread, few)

    def note_stall(self, stall_s: float) -> None:
        self.stall.add(stall_s)
        self.stalled_s += stall_s

    def note_write(self, write: "Write", pace: Pace) -> None:
        """How much longer did its steps take than those that came after it?"""
        if not write.steps or pace.step_s is None:
            return
        if write.is_seen:
            # Pauses, updates of every so many-th step and drift meet both alike: they cancel out.
            each_s, share = write.seconds_after / write.steps_after, write.steps / write.steps_after
            noise_s = pace.noise_s(write.steps) * math.sqrt(1 + share)
        else:
            each_s, noise_s = pace.latest_s or 0.0, pace.noise_s(write.steps)
        extra_s = write.seconds - write.steps * each_s
        # Nothing is slowed by more than all of the time that the write took.
        most_s = write.seconds if write.took_s is None else write.took_s
        self.slowing.add(extra_s, noise_s=noise_s, most_s=most_s)


class Write:
    """The steps that were made while one checkpoint was written, and those that came after."""

    def __init__(self) -> None:
        self.steps = 0
        self.seconds = 0.0
        self.steps_after = 0
        self.seconds_after = 0.0
        self.took_s: float | None = None
        self.ended = False

    @property
    def short(self) -> bool:
        """Too short to matter to these steps: they are as good as any others, and perhaps there are no others."""
        return self.took_s is not None and self.took_s < _HARDLY * self.seconds

    @property
    def is_seen(self) -> bool:
        """Whether there were enough steps after it to compare with."""
        return self.steps_after >= _ENOUGH_AFTER * self.steps

    @property
    def left(self) -> int:
        """How many steps are still to be seen after it."""
        return max(0, _AFTER * self.steps - self.steps_after) if self.ended else 0

    def note(self, count: int, seconds: float) -> None:
        """Steps."""
        if self.ended:
            self.steps_after += count
            self.seconds_after += seconds
        else:
            self.steps += count
            self.seconds += seconds


class Spending:
    """What was spent on checkpoints when, for the overhead over the last few of them."""

    def __init__(self) -> None:
        self._saves: deque[tuple[float, float]] = deque([(0.0, 0.0)], maxlen=_WINDOW + 1)

    def note(self, base_s: float, spent_s: float) -> None:
        """At the begin of a checkpoint: how long the training took without any, and what was spent before this one."""
        self._saves.append((base_s, spent_s))

    @property
    def overhead(self) -> float:
        """From the oldest of these checkpoints to the newest, which itself is not over yet."""
        (since_s, before_s), (until_s, after_s) = self._saves[0], self._saves[-1]
        return (after_s - before_s) / (until_s - since_s) if until_s > since_s else 0.0


def _distinct(mean: float, variance: float) -> float:
    """Nothing at three times its error, nearly all of the mean at six times; never negative."""
    square = mean * mean  # of what is too small for that, nothing is distinct
    return mean * max(0.0, 1 - (variance * _SURELY**2 / square) ** 2) if mean > 0 and square > 0 else 0.0
