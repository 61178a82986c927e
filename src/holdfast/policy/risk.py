"""What a sensor says, and what many of them say together: how much likelier than usual it is that the job ends now."""

import math
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["CALM", "IMMINENT", "MOST", "SERIOUS", "SLIGHT", "Lingering", "Reading", "bounded", "combine"]

# How many times the failure rate is raised. The best interval goes with its root: 3 saves 1.7 times as often,
# 30 saves 5 times as often, 1000 saves 30 times as often, each as far as the limit of the overhead allows it.
CALM = 1.0
SLIGHT = 3.0
SERIOUS = 30.0
IMMINENT = 1000.0
MOST = 1000.0


class Reading(NamedTuple):
    """What a sensor saw at one look."""

    text: str
    """What was read, with its figures."""
    risk: float = CALM
    """How many times likelier a failure is than usual; 1 where there is nothing to see."""
    concluded: str = ""
    """What that means, in words that stay the same while it does; empty where there is nothing to see."""


def bounded(risk: float) -> float:
    """The risk as a number between 1 and the most that counts; what is not a number says nothing."""
    return CALM if math.isnan(risk) else min(max(risk, CALM), MOST)


def combine(readings: Iterable[Reading]) -> float:
    """The risk of all together. Each raises the failure rate by a part of its own, and these parts add up."""
    return bounded(CALM + sum(bounded(reading.risk) - CALM for reading in readings))


class Lingering:
    """A conclusion from something that happened at one moment, and counts for a while after it."""

    def __init__(self, hold_s: float) -> None:
        self._hold_s = hold_s
        self._until_s = -math.inf
        self._risk = CALM
        self._concluded = ""

    def happened(self, now_s: float, risk: float, concluded: str) -> None:
        """Believe it from now on; what is worse and still counts stays."""
        if risk >= self.risk(now_s):
            self._risk, self._concluded = risk, concluded
            self._until_s = now_s + self._hold_s

    def risk(self, now_s: float) -> float:
        """What is left of it."""
        return self._risk if now_s < self._until_s else CALM

    def reading(self, now_s: float, text: str) -> Reading:
        """The conclusion that still counts, with what was read now."""
        risk = self.risk(now_s)
        return Reading(text, risk, self._concluded if risk > CALM else "")
