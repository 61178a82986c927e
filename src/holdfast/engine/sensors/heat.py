"""Heat: temperatures near the point at which the machine switches itself off, and processors that were slowed down."""

from pathlib import Path

from holdfast.core.clock import Clock, SystemClock
from holdfast.engine.sensors.sensor import number_in, text_of
from holdfast.policy.risk import CALM, SERIOUS, SLIGHT, Lingering, Reading

__all__ = ["HeatSensor"]

_NEAR_DEGREES = ((5.0, SERIOUS), (10.0, SLIGHT))
_PLAUSIBLE_DEGREES = (-20.0, 150.0)  # firmware without a sensor says 0, -273 or 255
_HOLD_S = 300.0
_MOST_ZONES = 64
_MOST_PROCESSORS = 32  # of hundreds, evenly spread: they share their packages


class HeatSensor:
    """Whether the machine is too hot."""

    name = "heat"

    def __init__(
        self,
        thermal: Path = Path("/sys/class/thermal"),
        processors: Path = Path("/sys/devices/system/cpu"),
        *,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._before: int | None = None
        self._throttled = Lingering(_HOLD_S)
        zones = ((zone, _critical_degrees(zone)) for zone in sorted(thermal.glob("thermal_zone*"))[:_MOST_ZONES])
        self._zones = [(zone, degrees) for zone, degrees in zones if degrees is not None]
        counters = sorted(processors.glob("cpu[0-9]*/thermal_throttle"))
        counters = counters[:: max(1, len(counters) // _MOST_PROCESSORS)]
        self._counters = [
            place / f"{what}_throttle_count"
            for place in counters
            for what in ("core", "package")
            if (place / f"{what}_throttle_count").exists()
        ]

    def missing(self) -> str:
        """Why it cannot be had here; empty where it can."""
        return "" if self._zones or self._counters else "no temperature with a limit, and no count of slow-downs"

    def read(self) -> Reading:
        now_s = self._clock.monotonic_s()
        throttled = sum(number_in(path) or 0 for path in self._counters)
        if self._before is not None and throttled > self._before:
            self._throttled.happened(now_s, SLIGHT, "a processor was slowed down because it was too hot")
        self._before = throttled
        margin, text = self._hottest()
        text = "; ".join(part for part in (text, f"{throttled} slow-downs" if self._counters else "") if part)
        risk = next((risk for most, risk in _NEAR_DEGREES if margin <= most), CALM)
        found = self._throttled.reading(now_s, text)
        if risk > CALM and risk >= found.risk:
            return Reading(text, risk, "the machine is close to the temperature at which it switches itself off")
        return found

    def _hottest(self) -> tuple[float, str]:
        """How far the zone that is closest to its critical temperature is from it, and what it says."""
        found = [(critical - degrees, zone, degrees) for zone, critical in self._zones for degrees in _degrees(zone)]
        if not found:
            return 1000.0, ""
        margin, zone, degrees = min(found)
        kind = text_of(zone / "type").strip() or zone.name
        return margin, f"{kind} {degrees:.0f} °C, critical at {degrees + margin:.0f} °C"


def _critical_degrees(zone: Path) -> float | None:
    for kind in sorted(zone.glob("trip_point_*_type")):
        if text_of(kind).strip() == "critical":
            found = number_in(kind.with_name(kind.name.removesuffix("_type") + "_temp"))
            if found is not None and 0 < found / 1000 <= _PLAUSIBLE_DEGREES[1]:
                return found / 1000
    return None


def _degrees(zone: Path) -> list[float]:
    """The temperature of the zone, unless it cannot be one."""
    found = number_in(zone / "temp")
    least, most = _PLAUSIBLE_DEGREES
    return [found / 1000] if found is not None and found and least < found / 1000 < most else []
