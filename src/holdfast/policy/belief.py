"""What is to be believed of a slow-down that drowns in noise: what was measured, weighed with what is usual."""

import math
from bisect import bisect_left
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

__all__ = ["NOTHING_KNOWN", "Belief", "believe"]

# Before anything is measured: even odds that steps are not slowed at all; else any order of magnitude is as likely as
# any other, from what nobody would notice to a step that takes twice as long.
_NONE = 0.5
_LEAST, _MOST = 0.004, 0.5
# Where it is known for how long the threads of the training had no core during the write, most of the slow-down is
# that: half of it where two of them waited at once, twice as much where other processes wait for this one. It may as
# well have been threads that do not matter; or a slow storage that the training reads from, too.
_QUEUED, _IDLY, _STORAGE = 0.75, 0.10, 0.15
_QUEUED_RANGE = 2.0
_POINTS = 48
_TYPICAL = 0.5
_CAREFUL = 0.84  # what one standard error above the mean is, of a mean that is known well
_WORST = 0.99
_WORST_ERRORS = 2.33  # the same, in standard errors
# The measurement speaks for itself where its error is so small a part of it, and where it is clearly more than usual.
_SURE = 0.02
_CLEARLY = 3.0
_FAR = 10.0


class Belief(NamedTuple):
    """Parts of the time of a write that are lost through slower steps."""

    typical: float
    """As likely too much as too little."""
    mean: float
    careful: float
    """More than that is not likely."""
    worst: float
    """More than that is next to impossible."""


NOTHING_KNOWN = Belief(0.0, 0.0, 1.0, 1.0)


@lru_cache(maxsize=64)
def believe(mean: float, error: float, queued: float | None = None) -> Belief:
    """Of what was measured: a mean, and its standard error.

    `queued`: for which part of the time of a write the threads of the training had no core; None where nobody knows.
    """
    if mean - _CLEARLY * error > _MOST or error < _SURE * mean:
        return Belief(mean, mean, mean + error, mean + _WORST_ERRORS * error)
    mean = max(mean, -_FAR * error)  # further below nothing there is nothing else to say, and squares overflow
    parts, odds = _usual(queued)
    logs = [one - ((mean - part) / error) ** 2 / 2 for part, one in zip(parts, odds, strict=True)]
    top = max(logs)
    weights = [math.exp(one - top) for one in logs]
    sums = list(accumulate(weights))
    expected = sum(weight * part for weight, part in zip(weights, parts, strict=True)) / sums[-1]
    typical, careful, worst = (parts[bisect_left(sums, at * sums[-1])] for at in (_TYPICAL, _CAREFUL, _WORST))
    careful = max(expected, careful)
    return Belief(typical, expected, careful, max(careful, worst))


@lru_cache(maxsize=64)
def _usual(queued: float | None) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Parts in order, and the logarithms of their odds."""
    storage = [_LEAST * (_MOST / _LEAST) ** ((i + 0.5) / _POINTS) for i in range(_POINTS)]
    if queued is None:
        weighted = [(0.0, _NONE), *((part, (1 - _NONE) / _POINTS) for part in storage)]
    else:
        span = _QUEUED_RANGE**2
        weighted = [(0.0, _IDLY), *((min(1.0, queued + part), _STORAGE / _POINTS) for part in storage)]
        weighted += [
            (min(1.0, queued / _QUEUED_RANGE * span ** ((i + 0.5) / _POINTS)), _QUEUED / _POINTS)
            for i in range(_POINTS)
        ]
    weighted.sort()
    return tuple(part for part, _ in weighted), tuple(math.log(weight) for _, weight in weighted)
