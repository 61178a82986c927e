"""How often a job fails, from what its attempts lived through; and how often it is then best to checkpoint."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["PRIOR_MTBF_S", "FailureRate", "Lifetime", "young_daly"]

PRIOR_MTBF_S = 86_400.0
"""One failure a day, before anything is known of the job."""
_PRIOR_FAILURES = 1.0
_OTHER_HOST = 0.5  # what happened on another machine says less of this one
_LEAST_MTBF_S = 1.0


class Lifetime(NamedTuple):
    """One attempt: how long it ran, and whether a failure ended it, rather than its end or a stop on request."""

    seconds: float
    failed: bool
    same_host: bool = True


@dataclass(frozen=True)
class FailureRate:
    """A Gamma distribution of the rate: `failures` seen in `exposure_s` seconds, what was assumed before included."""

    failures: float = _PRIOR_FAILURES
    exposure_s: float = PRIOR_MTBF_S

    @staticmethod
    def of(lifetimes: Iterable[Lifetime], *, prior_mtbf_s: float = PRIOR_MTBF_S) -> "FailureRate":
        """The posterior of one assumed failure in `prior_mtbf_s`. Lifetimes that make no sense are left out."""
        failures, exposure_s = _PRIOR_FAILURES, prior_mtbf_s
        for lifetime in lifetimes:
            if not (math.isfinite(lifetime.seconds) and lifetime.seconds >= 0):
                continue
            weight = 1.0 if lifetime.same_host else _OTHER_HOST
            failures += weight * lifetime.failed
            exposure_s += weight * lifetime.seconds
        return FailureRate(failures, exposure_s)

    def survived(self, seconds: float) -> "FailureRate":
        """The same after so much more time without a failure."""
        return FailureRate(self.failures, self.exposure_s + max(0.0, seconds))

    @property
    def mtbf_s(self) -> float:
        """Mean time between failures: the inverse of the expected rate."""
        return self.mtbf_after_s(0.0)

    def mtbf_after_s(self, seconds: float) -> float:
        """The same after so much more time without a failure: that of `survived`, for who asks often."""
        return max(_LEAST_MTBF_S, (self.exposure_s + max(0.0, seconds)) / self.failures)


def young_daly(cost_s: float, mtbf_s: float) -> float:
    """Seconds of work between checkpoints that cost `cost_s`, such that the least time is lost.

    Young (1974): sqrt(2 · cost · mtbf). Daly (2006) adds the terms that matter when the cost is not small beside the
    time between failures, and gives the mtbf itself where the cost is more than twice that.
    """
    if cost_s <= 0:
        return 0.0
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = math.sqrt(cost_s / (2 * mtbf_s))
    return math.sqrt(2 * cost_s * mtbf_s) * (1 + ratio / 3 + ratio * ratio / 9) - cost_s
