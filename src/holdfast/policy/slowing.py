"""Which part of the time of a write is lost through slower steps, found under the noise of the steps."""

import math
from collections import deque
from collections.abc import Iterable, Sequence

from holdfast.policy.belief import NOTHING_KNOWN, Belief, believe

__all__ = ["LEAST_SPREAD", "Slowing"]

LEAST_SPREAD = 0.01
"""Of a step: no training is quieter."""

_REMEMBERED = 64
_SURE_FROM = 6
_SECOND = 2
_LEAST_ERROR = 0.001  # of a part: what an earlier attempt found may have changed
_FIRST_ERROR = 0.3  # of a part: the steps of the first write may still be warming up
_STEPS_WEIGH = 4  # writes: so much counts how noisy the steps are, for how noisy the writes must be
_FAR_SPREADS = 5.0
_OUTLIER_SPREADS = 4.0
_OUTLIER = 4.0  # times what is to be expected by chance
_CUSUM_SLACK = 0.5
_CUSUM_LIMIT = 10.0
_SIGMA_OF_MAD = 1.4826


class Slowing:
    """Which part of the time of a write is lost through slower steps: a mean over all writes since it last changed.

    A part, for the time of a write is known well, and what differs from write to write is mostly that. Each write
    weighs by what it can tell, given that all steps are equally noisy: a long one more than a short one.
    """

    def __init__(self, first: float | None = None, error: float = 0.0) -> None:
        """Begins with what an earlier attempt found, if it did."""
        self._first, self._first_error = first, max(error, _LEAST_ERROR)
        self.queued: float | None = None
        """For which part of the time of a write the threads of the training had no core; None where nobody knows."""
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
        """What is to be expected, on average."""
        return self._belief.mean

    @property
    def typical(self) -> float:
        """As likely too much as too little."""
        return self._belief.typical

    @property
    def careful(self) -> float:
        """As much as it may well be."""
        return min(1.0, self._careful_belief.careful)

    @property
    def worst(self) -> float:
        """More than that is next to impossible."""
        return min(1.0, self._careful_belief.worst)

    @property
    def measured(self) -> float:
        """What the writes show, and below how far it may be off; a part is never negative, nor more than the whole."""
        return min(1.0, max(0.0, self._mean))

    @property
    def error(self) -> float:
        """One standard error."""
        # A write makes no step faster. Where it seems to, by more than chance, something else goes with it: every so
        # many-th step takes longer, and it is never the one after a checkpoint. So much may as well be hidden.
        return math.hypot(self._error, self._mean - self.measured)

    @property
    def _careful_belief(self) -> Belief:
        return believe(self.measured, self.error, self.queued) if self.known else NOTHING_KNOWN

    @property
    def _belief(self) -> Belief:
        if not self.known:
            return NOTHING_KNOWN
        # More than the whole cannot be: then something else goes with the writes.
        return believe(min(1.0, self._mean), math.hypot(self._error, max(0.0, self._mean - 1.0)), self.queued)

    @property
    def sure(self) -> bool:
        """Whether it rests on more than a few writes."""
        return self._count >= _SURE_FROM

    @property
    def total_s(self) -> float:
        """Of all writes of this attempt."""
        return self._settled_s + self.likely * self._took_s

    @property
    def total_most_s(self) -> float:
        """The same, as much as it can be."""
        return self._settled_s + self.worst * self._took_s

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
        self._middle = _middle(self._writes)
        usual = _SIGMA_OF_MAD * _median(sorted([abs(p - self._middle) * w**0.5 for p, w in self._writes]))
        far = _FAR_SPREADS * max(usual, math.sqrt(variance), LEAST_SPREAD)
        squares = sum(min(far**2, w * (p - self._middle) ** 2) for p, w in self._writes)
        # Of a few writes the spread says little: what is to be expected of the steps has to do.
        spread = math.sqrt((_STEPS_WEIGH * variance + squares) / (_STEPS_WEIGH + len(self._writes) - 1))
        self._spread = max(spread, LEAST_SPREAD)
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
        if self._count == 1:
            self._error = math.hypot(self._error, _FIRST_ERROR)

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


def _middle(writes: Iterable[tuple[float, float]]) -> float:
    """The median by weight."""
    ordered = sorted(writes)
    left = sum(weight for _, weight in ordered) / 2
    for part, weight in ordered:
        left -= weight
        if left <= 0:
            return part
    return ordered[-1][0]


def _median(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
