"""Memory errors: what the memory controllers corrected, and what they could not (EDAC)."""

from pathlib import Path

from holdfast.core.clock import Clock, SystemClock
from holdfast.engine.sensors.sensor import number_in
from holdfast.policy.risk import CALM, IMMINENT, SERIOUS, SLIGHT, Lingering, Reading

__all__ = ["MemoryErrorSensor"]

_HOLD_S = 3600.0
_MANY = 100


class MemoryErrorSensor:
    """Whether a memory module is dying: corrected errors come before those that cannot be."""

    name = "memory_errors"

    def __init__(self, edac: Path = Path("/sys/devices/system/edac"), *, clock: Clock | None = None) -> None:
        self._controllers = edac / "mc"
        self._clock = clock or SystemClock()
        self._before: tuple[int, int] | None = None
        self._trouble = Lingering(_HOLD_S)

    def missing(self) -> str:
        """Why it cannot be had here; empty where it can."""
        return "" if self._counts("ce_count") is not None else f"{self._controllers} has no memory controller"

    def read(self) -> Reading:
        now_s = self._clock.monotonic_s()
        corrected, uncorrected = self._counts("ce_count") or 0, self._counts("ue_count") or 0
        text = f"{corrected} corrected, {uncorrected} uncorrected since the start of the machine"
        if self._before is not None:
            new_corrected, new_uncorrected = corrected - self._before[0], uncorrected - self._before[1]
            if new_uncorrected > 0:
                self._trouble.happened(now_s, IMMINENT, "memory errors that could not be corrected")
            elif new_corrected >= _MANY:
                self._trouble.happened(now_s, SERIOUS, "many memory errors were corrected")
            elif new_corrected > 0:
                self._trouble.happened(now_s, SLIGHT, "memory errors were corrected")
        self._before = corrected, uncorrected
        found = self._trouble.reading(now_s, text)
        if found.risk == CALM and uncorrected:
            return Reading(text, SLIGHT, "this machine has had memory errors that could not be corrected")
        return found

    def _counts(self, name: str) -> int | None:
        """Of all controllers together; None where there is none."""
        found = [number_in(path) for path in sorted(self._controllers.glob(f"mc*/{name}"))]
        numbers = [number for number in found if number is not None]
        return sum(numbers) if numbers else None
