"""What is to be believed of a slow-down that drowns in noise: what was measured, weighed with what is usual."""

import math
from functools import lru_cache
from typing import NamedTuple

__all__ = ["NOTHING_KNOWN", "Belief", "believe"]

# Before anything is measured: even odds that steps are not slowed at all; else any order of magnitude is as likely as
# any other, from what nobody would notice to a step that takes twice as long.
_NONE = 0.5
_LEAST, _MOST = 0.004, 0.5
_POINTS = 48
_PARTS: tuple[float, ...] = (0.0, *(_LEAST * (_MOST / _LEAST) ** ((i + 0.5) / _POINTS) for i in range(_POINTS)))
_ODDS = (math.log(_NONE), *(math.log((1 - _NONE) / _POINTS) for _ in range(_POINTS)))
_TYPICAL = 0.5
_CAREFUL = 0.84  # what one standard error above the mean is, of a mean that is known well
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


NOTHING_KNOWN = Belief(0.0, 0.0, 1.0)


@lru_cache(maxsize=64)
def believe(mean: float, error: float) -> Belief:
    """Of what was measured: a mean, and its standard error."""
    if mean - _CLEARLY * error > _MOST or error < _SURE * mean:
        return Belief(mean, mean, mean + error)
    mean = max(mean, -_FAR * error)  # further below nothing there is nothing else to say, and squares overflow
    logs = [odds - ((mean - part) / error) ** 2 / 2 for part, odds in zip(_PARTS, _ODDS, strict=True)]
    top = max(logs)
    weights = [math.exp(one - top) for one in logs]
    total = sum(weights)
    expected = sum(weight * part for weight, part in zip(weights, _PARTS, strict=True)) / total
    return Belief(_quantile(weights, _TYPICAL * total), expected, max(expected, _quantile(weights, _CAREFUL * total)))


def _quantile(weights: list[float], left: float) -> float:
    for weight, part in zip(weights, _PARTS, strict=True):
        left -= weight
        if left <= 0:
            return part
    return _PARTS[-1]
