"""A clock that stands still until it is told to go on, so that tests wait for nothing."""

__all__ = ["FakeClock"]


class FakeClock:
    """Time passes only by `sleep` and `advance`. `slept_s` lists the pauses that were asked for."""

    def __init__(self, utc_s: float = 1_794_768_121.0) -> None:
        self._utc_s = utc_s
        self._monotonic_s = 0.0
        self.slept_s: list[float] = []

    def utc_s(self) -> float:
        return self._utc_s

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._utc_s += seconds
        self._monotonic_s += seconds
