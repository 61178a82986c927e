"""An end that is given as a time of day, counted down on a clock that does not jump."""

from holdfast.core.clock import Clock

__all__ = ["WallDeadline"]


class WallDeadline:
    """The seconds until a moment of wall-clock time.

    Two clocks tell: the wall clock as it is now, and as it was at the beginning plus the time that has passed since.
    The one that leaves less counts. So a clock that is set back promises no time that the scheduler will not give, and
    a machine that slept, which the monotonic clock does not see, knows that it is late.
    """

    def __init__(self, clock: Clock, *, not_before_s: float = 0.0) -> None:
        """`not_before_s`: a moment that has surely passed, as the job's start, whatever this machine's clock says."""
        self._clock = clock
        # A clock that is behind the scheduler's by so much stays behind.
        self._behind_s = max(not_before_s - clock.utc_s(), 0.0)
        self._offset_s = self._now_s() - clock.monotonic_s()

    def left_s(self, end_utc_s: float) -> float:
        """From now to then; negative where it has passed."""
        return end_utc_s - max(self._now_s(), self._offset_s + self._clock.monotonic_s())

    def _now_s(self) -> float:
        return self._clock.utc_s() + self._behind_s
