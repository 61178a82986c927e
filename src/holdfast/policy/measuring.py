"""What steps and checkpoints take, from what was noted of them: robust, and following changes in both directions."""

import math
from collections import deque
from collections.abc import Sequence

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
_AFTER = 4  # times as many steps after a write as during it are compared with those, and as many before
_ENOUGH_AFTER = 0.5
_BEFORE_SPAN = 2.0
_REMEMBERED = 64
_SPREAD_FROM = 6
_FEW = 8
_SURELY = 3.0  # times its error is where a mean begins to count
_CAREFUL = 1.0  # times its error is added, where too little would be too dear
_SECOND = 2
_LEAST_ERROR = 0.001  # of a part: what an earlier attempt found may have changed
_LEAST_SPREAD = 0.01  # of a step: no training is quieter
_OUTLIER = 4.0  # times what is to be expected by chance
_OUTLIER_SPREADS = 3.0
_CUSUM_SLACK = 0.5
_CUSUM_LIMIT = 8.0
_SIGMA_OF_MAD = 1.4826


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

    @property
    def steps(self) -> float:
        """How many the time of a step rests on."""
        return self._level.count * self._usual_bin

    def noise_s(self, count: int) -> float:
        """By how much the time of so many steps may differ from `count` · `step_s`, by chance."""
        by_chance = self._level.spread * math.sqrt(count * self._usual_bin)
        return math.hypot(by_chance, self._level.error * count)


class Slowing:
    """Which part of the time of a write is lost through slower steps: a mean over all writes since it last changed.

    A part, for the time of a write is known well, and what differs from write to write is mostly that. Each write
    weighs by what it can tell, given that all steps are equally noisy: a long one more than a short one.
    """

    def __init__(self, first: float | None = None, error: float = 0.0) -> None:
        """Begins with what an earlier attempt found, if it did."""
        self._first, self._first_error = first, max(error, _LEAST_ERROR)
        self._count = 0
        self._writes: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED)
        self._older = _Mean()
        self._drifts = (_Drift(1), _Drift(-1))
        self._took_s = 0.0
        self._settled_s = 0.0
        self._middle = 0.0
        self._mean = first or 0.0
        self._spread = 0.0  # of the part, for a write of weight 1
        self._error = 1.0 if first is None else self._first_error

    @property
    def known(self) -> bool:
        """Whether any write was seen, in this attempt or before."""
        return self._first is not None or self._count > 0

    @property
    def likely(self) -> float:
        """Beyond doubt or not."""
        return min(1.0, max(0.0, self._mean))

    @property
    def error(self) -> float:
        """By how much it may be off: one standard error."""
        # A write makes no step faster. Where it seems to, by more than chance, something else goes with it: every so
        # many-th step takes longer, and it is never the one after a checkpoint. So much may as well be hidden.
        return min(1.0, max(self._error, -self._mean))

    @property
    def distinct(self) -> float:
        """As far as it stands out from chance."""
        return min(1.0, _distinct(self._mean, self._error))

    @property
    def careful(self) -> float:
        """As much as it may well be."""
        return min(1.0, self.likely + _CAREFUL * self.error)

    @property
    def sure(self) -> bool:
        """Whether it rests on more than a few writes."""
        return self._count >= _SPREAD_FROM

    @property
    def total_s(self) -> float:
        """Of all writes of this attempt."""
        return self._settled_s + self.likely * self._took_s

    @property
    def total_most_s(self) -> float:
        """The same, as much as it may well be."""
        return self._settled_s + self.careful * self._took_s

    def add(self, extra_s: float, *, weight: float, variance: float, took_s: float) -> None:
        """By how much the steps of one write took longer, and how long it took.

        Chance makes that part differ by `variance` / `weight`, as far as the steps tell.
        """
        self._took_s += took_s
        if took_s <= 0 or weight <= 0:
            return
        self._count += 1
        part, before, error = extra_s / took_s, self._mean, self._error
        # The steps of the first one of an attempt may still be warming up: it counts as long as there is no other.
        if self._count == _SECOND:
            self._writes.clear()
        if len(self._writes) == _REMEMBERED:
            oldest, its_weight = self._writes[0]
            self._older.add(self._pulled_in(oldest, its_weight), its_weight)
        self._writes.append((part, weight))
        self._weigh(variance)
        off = (part - before) / math.hypot(self._spread / math.sqrt(weight), error)
        for drift in self._drifts if self._count > _SECOND else ():
            if drift.add(max(-_OUTLIER, min(_OUTLIER, off)), took_s):
                self._begin_anew(drift, before)
                self._weigh(variance)
                break

    def _begin_anew(self, drift: "_Drift", before: float) -> None:
        """The writes of the drift are counted with what they show; those before with what was thought of them."""
        self._settled_s += min(1.0, max(0.0, before)) * (self._took_s - drift.took_s)
        self._took_s, self._first, self._older = drift.took_s, None, _Mean()
        for _ in range(len(self._writes) - drift.count):
            self._writes.popleft()
        self._drifts = (_Drift(1), _Drift(-1))

    def _weigh(self, variance: float) -> None:
        parts = sorted([part for part, _ in self._writes])
        self._middle = _median(parts)
        # Of a few writes the spread says little: what is to be expected of the steps has to do.
        spread = _SIGMA_OF_MAD * _median(sorted([abs(p - self._middle) * w**0.5 for p, w in self._writes]))
        if len(parts) < _SPREAD_FROM:
            spread = max(spread, math.sqrt(variance))
        self._spread = max(spread, _LEAST_SPREAD)
        total, weight = self._older.value * self._older.weight, self._older.weight
        for part, its_weight in self._writes:
            total += its_weight * self._pulled_in(part, its_weight)
            weight += its_weight
        if self._count == 1 and self._first is not None:
            return
        mine = weight / self._spread**2
        theirs = 0.0 if self._first is None else 1 / self._first_error**2
        self._mean = (total / weight * mine + (self._first or 0.0) * theirs) / (mine + theirs)
        self._error = 1 / math.sqrt(mine + theirs)

    def _pulled_in(self, part: float, weight: float) -> float:
        """The training may have paused during the write, or after it."""
        if len(self._writes) <= _SECOND:
            return part
        reach = _OUTLIER_SPREADS * self._spread / math.sqrt(weight)
        return max(self._middle - reach, min(self._middle + reach, part))


class _Mean:
    """Weighted."""

    def __init__(self) -> None:
        self.value = 0.0
        self.weight = 0.0

    def add(self, sample: float, weight: float) -> None:
        self.weight += weight
        self.value += weight / self.weight * (sample - self.value)


class _Drift:
    """CUSUM: whether writes are off on one side, by little for long, or by much for a few; and how many of them."""

    def __init__(self, side: int) -> None:
        self._side = side
        self._sum = 0.0
        self.count = 0
        self.took_s = 0.0

    def add(self, off: float, took_s: float) -> bool:
        self._sum = max(0.0, self._sum + self._side * off - _CUSUM_SLACK)
        if not self._sum:
            self.count, self.took_s = 0, 0.0
            return False
        self.count += 1
        self.took_s += took_s
        return self._sum > _CUSUM_LIMIT


class Costs:
    """What one checkpoint costs, and what all of them did."""

    def __init__(self, profile: Profile) -> None:
        # The first checkpoint of an attempt touches memory that is new, and starts what is not running yet.
        self.stall = Level(profile.stall_s, warms_up=True)
        self.durable = Level(profile.durable_s, warms_up=True)
        self.slowing = _slowing_of(profile)
        self.stalled_s = 0.0

    @property
    def cost_s(self) -> float | None:
        """Of one checkpoint: stall and slow-down. None before the first."""
        return None if self.stall.mean is None else self.stall.mean + self.slowing.distinct * self._took_s

    @property
    def careful_s(self) -> float:
        """The same with as much of the slow-down as there may well be, for those who must not spend too much."""
        return (self.stall.mean or 0.0) + self.slowing.careful * self._took_s

    @property
    def slow_s(self) -> float | None:
        """What one checkpoint costs through slower steps, as far as is known; None where it was never seen."""
        return self.slowing.likely * self._took_s if self.slowing.known else None

    @property
    def slow_error_s(self) -> float:
        """By how much that may be off."""
        return self.slowing.error * self._took_s

    @property
    def spent_s(self) -> float:
        """Of all of them."""
        return self.stalled_s + self.slowing.total_s

    @property
    def spent_most_s(self) -> float:
        """Of all of them, as much as it may well be."""
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

    def note_write(self, write: "Write", pace: Pace) -> None:
        """How much longer did its steps take than those that came after it?"""
        if not write.steps or pace.step_s is None:
            return
        if write.is_seen:
            # Pauses, updates of every so many-th step and drift meet both alike: they cancel out.
            around = write.steps_before + write.steps_after
            each_s = (write.steps_before * write.before_s + write.seconds_after) / around
        else:
            each_s, around = pace.latest_s or 0.0, pace.steps
        extra_s = write.seconds - write.steps * each_s
        took_s = write.seconds if write.took_s is None else write.took_s
        self.slowing.add(
            extra_s,
            weight=(took_s / pace.step_s) ** 2 / (write.steps * (1 + write.steps / max(1.0, around))),
            variance=(pace.noise_s(1) / pace.step_s) ** 2,
            took_s=took_s,
        )

    @property
    def _took_s(self) -> float:
        """What a write takes, slow ones as often as they are."""
        return self.durable.mean or 0.0


class Recent:
    """What a step took lately while nothing was written: the older, the less it counts."""

    def __init__(self, write_steps: int) -> None:
        """Over a few times as many as are made during a write."""
        self._span = max(1.0, _BEFORE_SPAN * write_steps)
        self.step_s = 0.0
        self._variance = math.inf

    @property
    def steps(self) -> float:
        """How many it rests on, in effect."""
        return 1 / self._variance

    def add(self, count: int, seconds: float) -> None:
        weight = 1.0 if self._variance == math.inf else -math.expm1(-count / self._span)
        self.step_s += weight * (seconds / count - self.step_s)
        kept = 0.0 if weight == 1.0 else (1 - weight) ** 2 * self._variance
        self._variance = kept + weight * weight / count


class Write:
    """The steps that were made while one checkpoint was written, and those around it."""

    def __init__(self, before: tuple[float, float] = (0.0, 0.0)) -> None:
        """`before`: steps, and seconds of one of them."""
        self.steps_before, self.before_s = before
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

    @property
    def left_at_least(self) -> int:
        """How many there must still be, to compare with."""
        return max(1, math.ceil(_ENOUGH_AFTER * self.steps) - self.steps_after)

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


def _slowing_of(profile: Profile) -> Slowing:
    if profile.slow_s is None or not profile.durable_s:
        return Slowing()
    return Slowing(profile.slow_s / profile.durable_s, profile.slow_error_s / profile.durable_s)


def _distinct(mean: float, error: float) -> float:
    """Nothing at three times its error, nearly all of the mean at six times; never negative."""
    doubt = _SURELY * error
    return mean * (1 - (doubt / mean) ** 4) if mean > doubt else 0.0


def _median(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
