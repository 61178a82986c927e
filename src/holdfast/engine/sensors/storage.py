"""Storage: errors and slow-downs of the checkpoints themselves, as whoever writes them reports."""

from collections import deque
from statistics import median

from holdfast.core.clock import Clock, SystemClock
from holdfast.policy.risk import CALM, SERIOUS, SLIGHT, Lingering, Reading

__all__ = ["StorageSensor"]

_HISTORY = 30
_LEAST = 5
_LATEST = 3
_SLOWER = 4.0
_LEAST_S = 1.0  # what takes less is not worth a word, however much faster it once was
_OVERHEAD_BYTES = 8 << 20  # what a small checkpoint costs beside its bytes, told as bytes
_FAILED_HOLD_S = 900.0


class StorageSensor:
    """Told of every checkpoint; the calls come from other threads than `read`, and cost next to nothing."""

    name = "storage"

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._seconds: deque[float] = deque(maxlen=_LATEST)
        self._costs: deque[float] = deque(maxlen=_HISTORY)
        self._failed_in_a_row = 0
        self._failures = 0
        self._trouble = Lingering(_FAILED_HOLD_S)

    def missing(self) -> str:
        """It is always there."""
        return ""

    def note_durable(self, seconds: float, size_bytes: int) -> None:
        """A checkpoint of that size became durable so long after it was begun."""
        self._failed_in_a_row = 0
        self._seconds.append(seconds)
        self._costs.append(seconds / (size_bytes + _OVERHEAD_BYTES))

    def note_failed(self) -> None:
        """One did not become durable."""
        self._failures += 1
        self._failed_in_a_row += 1
        risk = SERIOUS if self._failed_in_a_row > 1 else SLIGHT
        several = "checkpoints fail one after the other" if risk == SERIOUS else "a checkpoint failed"
        self._trouble.happened(self._clock.monotonic_s(), risk, several)

    def read(self) -> Reading:
        costs, seconds = list(self._costs), list(self._seconds)
        text = f"{self._failures} failed" if self._failures else "none failed"
        slower = 1.0
        if len(costs) >= _LEAST + _LATEST:
            slower = median(costs[-_LATEST:]) / max(median(costs[:-_LATEST]), 1e-15)
            text += f", the last {_LATEST} took {slower:.1f} times as long as those before"
        trouble = self._trouble.reading(self._clock.monotonic_s(), text)
        if trouble.risk == CALM and slower > _SLOWER and median(seconds) > _LEAST_S:
            return Reading(text, SLIGHT, "the storage has become slow")
        return trouble
