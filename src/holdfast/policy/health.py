"""Whether a training is healthy, by its loss: not a number, or far above what it was. Decides only.

The loss is compared with a line through the two halves of a window and the spread around it, both by medians:
a loss that falls is no surprise, nor is a single hard batch. Before the window is full, only NaN and infinity count.
"""

import math
import sys
from collections import deque
from statistics import median
from typing import NamedTuple

__all__ = ["FAILING", "HEALTHY", "SHORTLY", "SUSPECT", "Diagnosis", "Health"]

HEALTHY = "healthy"
SUSPECT = "suspect"
FAILING = "failing"

_WINDOW = 64
_REFRESH = 8  # sorting at every step would cost more than it tells
_SPREADS = 6.0
_NORMAL = 1.4826  # of a normal distribution: the standard deviation by the median of the absolute deviations
_LEAST_RISE = 0.05  # of the level: a loss that hardly varies may vary
_LEAST_OF_PROGRESS = 0.01  # of what was gained since the start: near zero any ratio is large and says nothing
_RECENT = 10
_TOO_MANY = 5
SHORTLY = 10
"""How many steps before the first bad value the damage may have been done, by default."""


class Diagnosis(NamedTuple):
    """How the training is."""

    state: str
    """HEALTHY; SUSPECT after a spike, or while it recovers; FAILING."""
    reason: str = ""
    """In words; empty while it is healthy."""
    suspect_from: int | None = None
    """Checkpoints of this step and later ones may be unhealthy: it fails, or did and has not recovered yet."""


class _Bad(NamedTuple):
    """One value."""

    since: int
    """The first step after the last good value: from there on, nobody knows."""
    step: int


_HEALTHY = Diagnosis(HEALTHY)


class Health:
    """Follows one metric of which small values are good."""

    def __init__(
        self, *, window: int = _WINDOW, spreads: float = _SPREADS, shortly: int = SHORTLY, begins: int | None = None
    ) -> None:
        """`shortly`: how many steps before the first bad value the damage may have been done.

        The weights that give a NaN were ruined by the step before it; a loss that diverges began to earlier. Steps of
        which no value was seen count as bad ones, if the next value is. `begins`: the step that the training goes on
        from, None for its begin.
        """
        self.diagnosis = _HEALTHY
        """The last one."""
        self._spreads = spreads
        self._shortly = shortly
        self._values: deque[float] = deque(maxlen=window)
        self._limit = sys.float_info.max
        self._level = math.nan
        self._first_level: float | None = None
        self._until_refresh = window
        self._recent: deque[_Bad | None] = deque(maxlen=_RECENT)
        """Bad values, None for good ones; empty after enough good ones."""
        self._failed = ""
        self._suspect_from: int | None = None
        self._good_step = begins

    @property
    def safe_before(self) -> int | None:
        """Whatever comes, no checkpoint of an earlier step than this becomes suspect; None where all may."""
        if self._suspect_from is not None or self._good_step is None:
            return self._suspect_from
        # A copy: another thread may ask than the one that notes.
        since = next((bad.since for bad in tuple(self._recent) if bad is not None), self._good_step + 1)
        return max(0, since - self._shortly)

    def note(self, step: int, value: float) -> Diagnosis:
        """The value of a step; cheap enough for every step."""
        if -math.inf < value <= self._limit:  # not true of NaN either
            self._good_step = step
            self._values.append(value)
            self._until_refresh -= 1
            if self._until_refresh <= 0:
                self._refresh()
            if self._recent:
                self.diagnosis = self._after_good()
        else:
            self.diagnosis = self._after_bad(step, value)
        return self.diagnosis

    def _refresh(self) -> None:
        """The level and the limit anew."""
        self._until_refresh = _REFRESH
        values = list(self._values)
        half = len(values) // 2
        before, after = median(values[:half]), median(values[half:])
        slope, middle = (after - before) / (len(values) / 2), 0.75 * len(values) - 0.5
        spread = median(abs(value - after - slope * (place - middle)) for place, value in enumerate(values))
        if self._first_level is None:
            self._first_level = before
        least = max(_LEAST_RISE * abs(after), _LEAST_OF_PROGRESS * (self._first_level - after))
        # Not the end of the line but the middle of its second half: a loss that stops falling is no surprise either.
        self._level = after
        limit = after + max(self._spreads * _NORMAL * spread, least)
        self._limit = limit if math.isfinite(limit) else sys.float_info.max  # of values near the largest there is

    def _after_good(self) -> Diagnosis:
        self._recent.append(None)
        bad = [one for one in self._recent if one is not None]
        if not bad:
            self._recent.clear()
            self._failed, self._suspect_from = "", None
            return _HEALTHY
        if not self._failed:
            return Diagnosis(SUSPECT, self.diagnosis.reason)
        return Diagnosis(SUSPECT, f"{self._failed}; the last bad value was at step {bad[-1].step}", self._suspect_from)

    def _after_bad(self, step: int, value: float) -> Diagnosis:
        self._recent.append(_Bad(0 if self._good_step is None else min(step, self._good_step + 1), step))
        bad = [one for one in self._recent if one is not None]
        if math.isfinite(value):
            reason = f"the loss is {value:.4g} at step {step}, {self._level:.4g} is usual"
            if not self._failed and len(bad) < _TOO_MANY:
                return Diagnosis(SUSPECT, reason)
            reason += f"; it was too high at {len(bad)} of the last {len(self._recent)} steps"
        else:
            reason = f"the loss is {value} at step {step}"
        if not self._failed:
            self._failed, self._suspect_from = reason, max(0, bad[0].since - self._shortly)
        return Diagnosis(FAILING, self._failed, self._suspect_from)
