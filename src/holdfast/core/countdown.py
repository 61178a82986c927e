"""Time that is left, without the time that this process was stopped (SIGSTOP) or the machine asleep."""

import time
from collections.abc import Callable

__all__ = ["Countdown"]

_STEP_S = 1.0


class Countdown:
    """Asked at least once a second, it counts real time; a longer gap counts as one second."""

    def __init__(self, seconds: float, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._left_s = seconds
        self._monotonic_s = monotonic_s
        self._last_s = monotonic_s()

    def step_s(self) -> float:
        """How long to wait before asking again; 0 where nothing is left."""
        now_s = self._monotonic_s()
        self._left_s -= min(now_s - self._last_s, _STEP_S)
        self._last_s = now_s
        return max(0.0, min(self._left_s, _STEP_S))
