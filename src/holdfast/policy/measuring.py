"""What steps and checkpoints take, from what was noted of them: robust, and following changes in both directions."""

import math
from collections import deque

from holdfast.policy.levels import Level
from holdfast.policy.profile import Profile
from holdfast.policy.slowing import LEAST_SPREAD, Slowing
from holdfast.policy.writes import ENOUGH_AFTER, Write

__all__ = ["Costs", "Pace", "Spending"]

_BIN_STEPS = 16  # averages what gradient accumulation, or every so many-th batch, does to a step
_BIN_LATEST_S = 10.0  # but long steps are looked at one by one
_WINDOW = 8
_LATEST_BINS = 4
_FRESH_BINS = 6
_FEW = 8
_LEAST_STEP_S = 1e-9
_PAUSE = 3.0  # times as long as usual, and more than noise: the training has paused
_PAUSE_SPREADS = 4.0
_MOST_PAUSES = 3  # in a row; then they are none
_SURELY = 3.0  # times what chance makes
_HARDLY = 1e-6
_FINE = 20
_LEAST_AFTER = 0.01
_DISTINCT = 2.0  # standard errors


class Pace:
    """What a step takes while no checkpoint is written: the mean over bins of steps, pauses pulled in."""

    def __init__(self, first_s: float | None) -> None:
        self._level = Level(first_s, fresh=_FRESH_BINS, drops=True, warms_up=True)
        self._latest: deque[float] = deque(maxlen=_LATEST_BINS)
        self._count = 0
        self._seconds = 0.0
        self._usual_bin = float(_BIN_STEPS)
        self._pauses = 0
        # Since the first pause, which is not among them: how often they come is known from the second one on.
        self._steps: int | None = None
        self._paused_s = 0.0
        # So many steps make a bin, or so many seconds, should the steps take much longer than was thought: a fraction
        # of the interval, so that all bins together span a few intervals.
        self.bin_steps = 1
        self.bin_s = math.inf

    @property
    def step_s(self) -> float | None:
        """None before the first bin is full."""
        return None if self._level.value is None else max(self._level.value, _LEAST_STEP_S)

    @property
    def each_s(self) -> float | None:
        """The same with its share of pauses, as far as that is known."""
        return None if self.step_s is None else self.step_s + self._paused_s / max(1, self._steps or 0)

    def is_odd(self, count: int, seconds: float) -> bool:
        """Whether the training has paused during these steps, by the look of it."""
        if self.step_s is None or not self.warm:
            return False
        return seconds > _PAUSE * count * self.step_s + _PAUSE_SPREADS * self.noise_s(count)

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
        if self._steps is not None:
            self._steps += count
        self._pauses = self._pauses + 1 if self.is_odd(count, seconds) else 0
        if 0 < self._pauses <= _MOST_PAUSES and self.step_s is not None:
            if self._steps is None:
                self._steps = 0
            else:
                self._paused_s += seconds - count * self.step_s
            return False
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
        return max(math.ceil(ENOUGH_AFTER * write_steps), few, self.bin_steps)

    @property
    def steps(self) -> float:
        """How many the time of a step rests on."""
        return self._level.count * self._usual_bin

    def noise_s(self, count: int) -> float:
        """By how much the time of so many steps may differ from `count` · `step_s`, by chance."""
        by_chance = self._level.spread * math.sqrt(count * self._usual_bin)
        return math.hypot(by_chance, self._level.error * count)


class Costs:
    """What one checkpoint costs, and what all of them did."""

    def __init__(self, profile: Profile) -> None:
        # The first checkpoint of an attempt touches memory that is new, and starts what is not running yet.
        self.stall = Level(profile.stall_s, warms_up=True)
        self.durable = Level(profile.durable_s, warms_up=True)
        self.queued = Level(profile.queued_s, warms_up=True)
        self.slowing = _slowing_of(profile, self._write_s)
        self._see_queued()
        self.stalled_s = 0.0
        self._seen = 0
        self._last_stall_s = 0.0
        self._longest = (0.0, 0.0)

    @property
    def cost_s(self) -> float | None:
        """Of one checkpoint: stall and slow-down. None before the first."""
        return None if self.stall.mean is None else self.stall.mean + self.slowing.typical * self._write_s

    @property
    def careful_s(self) -> float:
        """The same with as much of the slow-down as there may well be, for those who must not spend too much."""
        return (self.stall.mean or 0.0) + self.slowing.careful * self._write_s

    @property
    def dearest_s(self) -> float:
        """As much as one may cost: what the dearest until now did, with as much of the slow-down as there can be."""
        stall_s, write_s = max(self._longest[0], self.stall.mean or 0.0), max(self._longest[1], self._write_s)
        return stall_s + self.slowing.worst * write_s

    @property
    def slow_s(self) -> float | None:
        """What one checkpoint costs through slower steps, as far as is known; None where it was never seen."""
        return self.slowing.measured * self._write_s if self.slowing.known else None

    @property
    def slow_error_s(self) -> float:
        """By how much that may be off."""
        return self.slowing.error * self._write_s

    @property
    def spent_s(self) -> float:
        """Of all of them."""
        return self.stalled_s + self.slowing.total_s

    @property
    def spent_most_s(self) -> float:
        """Of all of them, as much as it can be."""
        return self.stalled_s + self.slowing.total_most_s

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
        self._last_stall_s = stall_s
        if self._seen:
            self._longest = (max(self._longest[0], stall_s), self._longest[1])

    def note_durable(self, durable_s: float, queued_s: float | None) -> None:
        self.durable.add(durable_s)
        self._seen += 1
        if self._seen > 1:  # the first one is dear because it is the first
            self._longest = (self._longest[0], max(self._longest[1], durable_s - self._last_stall_s))
        if queued_s is not None:
            self.queued.add(queued_s)
        self._see_queued()

    def note_write(self, write: Write, pace: Pace) -> None:
        """How much longer did its steps take than those around it?"""
        if not write.steps or pace.step_s is None:
            return
        if write.is_seen:
            # Updates of every so many-th step and drift meet both alike: they cancel out.
            around = write.steps_before + write.steps_after
            each_s = (write.steps_before * write.before_s + write.seconds_after) / around
        else:
            each_s, around = pace.latest_s or 0.0, pace.steps
        extra_s = write.seconds - write.steps * each_s
        took_s = self._write_s if write.took_s is None else _after_stall_s(write.took_s, write.stall_s)
        variance = max(LEAST_SPREAD, pace.noise_s(1) / pace.step_s) ** 2
        # In steps, squared and in units of that variance: what chance makes of those of the write, and of the others;
        # and of what it is not known where between before and after the steps became faster or slower.
        doubt = write.steps * (1 + write.steps / max(1.0, around))
        if write.is_seen and write.steps_before:
            apart = (write.seconds_after / write.steps_after - write.before_s) / pace.step_s
            by_chance = variance * (1 / write.steps_before + 1 / write.steps_after)
            if apart * apart > _SURELY**2 * by_chance:
                doubt += (write.steps * apart / 2) ** 2 / variance
        weight = (took_s / pace.step_s) ** 2 / doubt
        # All of those that are compared with the same steps long ago share one error: they do not make it smaller.
        if not write.is_seen and self.slowing.known:
            weight = 0.0
        self.slowing.add(extra_s, weight=weight, variance=variance, took_s=took_s)

    def _see_queued(self) -> None:
        if self.queued.mean is not None and self._write_s:
            # Others want cores, too: what does not stand out from that is nothing.
            is_some = self.queued.mean > _DISTINCT * self.queued.error
            self.slowing.queued = _rounded(min(1.0, self.queued.mean / self._write_s)) if is_some else 0.0

    @property
    def _write_s(self) -> float:
        """From the end of the stall until it is durable: while steps are made."""
        return _after_stall_s(self.durable.mean or 0.0, self.stall.mean or 0.0)


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
        # What was spent is estimated anew with each write, for all of them: where slower steps turn out to cost less
        # than was thought, it may be less than it was at the oldest one. Checkpoints give no time back.
        spent_s = max(0.0, after_s - before_s)
        return spent_s / (until_s - since_s) if until_s > since_s else 0.0


def _slowing_of(profile: Profile, write_s: float) -> Slowing:
    if profile.slow_s is None or not write_s:
        return Slowing()
    return Slowing(profile.slow_s / write_s, profile.slow_error_s / write_s)


def _after_stall_s(durable_s: float, stall_s: float) -> float:
    """Something is always left, so that parts of it can be told, even where the call itself waits for the storage."""
    return max(_LEAST_AFTER * durable_s, durable_s - stall_s)


def _rounded(part: float) -> float:
    """To a few hundredths of itself, or nothing: what hardly matters need not be computed anew."""
    return math.exp(round(math.log(part) * _FINE) / _FINE) if part > _HARDLY else 0.0
