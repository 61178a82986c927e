"""Where a noisy quantity stands now: a mean that outliers do not move, and that begins anew when the quantity moved."""

import math
from collections import deque
from collections.abc import Sequence

__all__ = ["Level"]

_MOST = 32
_FAR = 0.10  # of the value, at least, is far
_FAR_SPREADS = 1.5  # and that many spreads
_LONG = 64
_OUTLIER_SPREADS = 3.0
_LEAST_SPREAD = 0.10  # of the value: equal samples do not make every other one an outlier
_SIGMA_OF_MAD = 1.4826


class Level:
    """Takes samples, oldest first; `value` is None before the first one.

    It has moved when `fresh` samples in a row are far off, on one side: then the others are forgotten. `drops`:
    outliers do not count at all; else they are pulled in to where they begin. `warms_up`: the first sample counts only
    as long as it is the only one.
    """

    def __init__(
        self, first: float | None = None, *, fresh: int = 3, drops: bool = False, warms_up: bool = False
    ) -> None:
        self._samples: deque[float] = deque(maxlen=_MOST)
        self._fresh = fresh
        self._drops = drops
        self._cold = warms_up
        self.value: float | None = None
        self.spread = 0.0
        """As a standard deviation, outliers not counted."""
        self.mean: float | None = None
        """Of all samples since it moved last, the outliers as they are: what counts in the long run."""
        self._since = 0
        self._low = -math.inf
        self._high = math.inf
        if first is not None:
            self._take(first)

    @property
    def count(self) -> int:
        """How many samples the value rests on."""
        return len(self._samples)

    @property
    def error(self) -> float:
        """How far the value may be off (one standard error)."""
        return self.spread / math.sqrt(max(1, len(self._samples)))

    def add(self, sample: float) -> float:
        """Take a sample; the answer is the sample as it counts, pulled in where it is an outlier."""
        if self._cold:
            self._cold = False
            if self.value is None:
                self.value = self.mean = sample
            return sample
        return self._take(sample)

    def restart(self, sample: float) -> None:
        """Forget all others."""
        self._samples.clear()
        self._since = 0
        self._take(sample)

    def _take(self, sample: float) -> float:
        samples = self._samples
        samples.append(sample)
        if len(samples) > self._fresh and self._moved():
            last = list(samples)[-self._fresh :]
            samples.clear()
            samples.extend(last)
            self._since = self._fresh - 1
            self.mean = sum(last[:-1]) / self._since
        self._since = min(_LONG, self._since + 1)
        before = 0.0 if self.mean is None or self._since == 1 else self.mean
        self.mean = before + (sample - before) / self._since
        ordered = sorted(samples)
        middle, self.spread = _middle_and_spread(ordered)
        self._low, self._high = -math.inf, math.inf
        if len(ordered) > self._fresh:
            reach = _OUTLIER_SPREADS * max(self.spread, _LEAST_SPREAD * abs(middle))
            self._low, self._high = middle - reach, middle + reach
        counted = ordered
        if ordered[0] < self._low or ordered[-1] > self._high:
            inside = [one for one in ordered if self._low <= one <= self._high]
            counted = inside if self._drops else [min(self._high, max(self._low, one)) for one in ordered]
        self.value = sum(counted) / len(counted)
        return min(self._high, max(self._low, sample))

    def _moved(self) -> bool:
        listed = list(self._samples)
        last = listed[-self._fresh :]
        if self.value is not None and min(last) <= self.value <= max(last):
            return False
        middle, spread = _middle_and_spread(sorted(listed[: -self._fresh]))
        far = max(_FAR * abs(middle), _FAR_SPREADS * spread)
        return min(last) > middle + far or max(last) < middle - far


def _middle_and_spread(ordered: Sequence[float]) -> tuple[float, float]:
    middle = _median(ordered)
    return middle, _SIGMA_OF_MAD * _median(sorted([abs(one - middle) for one in ordered]))


def _median(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
