"""Where a quantity is going: the time until it is used up, from samples that rise and fall on the way."""

import math
from collections import deque
from statistics import median

__all__ = ["Trend"]

_LEAST_SAMPLES = 4


class Trend:
    """Samples of the last while. Robust: a third of them at either end is told by its median."""

    def __init__(self, span_s: float, *, least_s: float) -> None:
        """What is older than the span does not count; nothing is said before there are samples over `least_s`."""
        self._span_s = span_s
        self._least_s = least_s
        self._samples: deque[tuple[float, float]] = deque()

    def note(self, now_s: float, value: float) -> None:
        """One more sample; one from the past, after a clock that jumped, begins anew."""
        if self._samples and now_s <= self._samples[-1][0]:
            self._samples.clear()
        self._samples.append((now_s, value))
        while now_s - self._samples[0][0] > self._span_s:
            self._samples.popleft()

    def per_s(self) -> float:
        """How much it changes in a second; 0 where nothing can be said yet."""
        samples = list(self._samples)
        if len(samples) < _LEAST_SAMPLES or samples[-1][0] - samples[0][0] < self._least_s:
            return 0.0
        third = max(1, len(samples) // 3)
        began, ended = samples[:third], samples[-third:]
        change = median(value for _, value in ended) - median(value for _, value in began)
        passed_s = median(at_s for at_s, _ in ended) - median(at_s for at_s, _ in began)
        return change / passed_s

    def used_up_in_s(self) -> float:
        """When it will be 0 if it goes on like this; infinite where it does not shrink."""
        rate = self.per_s()
        if rate >= 0 or not self._samples:
            return math.inf
        return max(0.0, self._samples[-1][1] / -rate)
