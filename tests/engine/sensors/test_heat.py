"""Temperatures, and processors that were slowed down."""

from pathlib import Path

import pytest

from holdfast.engine.sensors.heat import HeatSensor
from holdfast.policy.risk import CALM, SERIOUS, SLIGHT
from holdfast.testing import FakeClock
from tests.engine.sensors.trees import plant


def _zone(root: Path, degrees: object, *, critical: int | None = 100, number: int = 0) -> None:
    place = f"thermal/thermal_zone{number}"
    plant(root, {f"{place}/type": "x86_pkg_temp", f"{place}/temp": degrees})
    plant(root, {f"{place}/trip_point_0_type": "passive", f"{place}/trip_point_0_temp": 80_000})
    if critical is not None:
        plant(root, {f"{place}/trip_point_1_type": "critical", f"{place}/trip_point_1_temp": critical * 1000})


def _throttled(root: Path, count: int, processor: int = 0) -> None:
    plant(root, {f"cpu/cpu{processor}/thermal_throttle/{kind}_throttle_count": count for kind in ("core", "package")})


def _sensor(root: Path, clock: FakeClock | None = None) -> HeatSensor:
    return HeatSensor(root / "thermal", root / "cpu", clock=clock)


@pytest.mark.parametrize(("degrees", "risk"), [(60, CALM), (89, CALM), (91, SLIGHT), (96, SERIOUS), (105, SERIOUS)])
def test_the_distance_from_the_critical_temperature_counts(tmp_path: Path, degrees: int, risk: float) -> None:
    _zone(tmp_path, degrees * 1000)
    _zone(tmp_path, 30_000, number=1)

    reading = _sensor(tmp_path).read()

    assert reading.risk == risk
    assert reading.text == f"x86_pkg_temp {degrees} °C, critical at 100 °C"


@pytest.mark.parametrize("degrees", [0, -273_000, 255_000, "broken", ""])
def test_temperatures_that_cannot_be_are_none(tmp_path: Path, degrees: object) -> None:
    _zone(tmp_path, degrees)

    assert _sensor(tmp_path).read().risk == CALM


def test_a_zone_without_a_critical_temperature_is_not_watched(tmp_path: Path) -> None:
    _zone(tmp_path, 99_000, critical=None)

    assert _sensor(tmp_path).missing()


def test_a_processor_that_is_slowed_down_is_a_risk_for_a_while(tmp_path: Path) -> None:
    clock = FakeClock()
    _throttled(tmp_path, 7)
    sensor = _sensor(tmp_path, clock)
    assert sensor.missing() == ""
    assert sensor.read().risk == CALM

    _throttled(tmp_path, 8)
    reading = sensor.read()
    assert (reading.risk, reading.text) == (SLIGHT, "16 slow-downs")

    clock.advance(301)
    assert sensor.read().risk == CALM


def test_of_hundreds_of_processors_a_few_are_asked(tmp_path: Path) -> None:
    for processor in range(256):
        _throttled(tmp_path, 1, processor)

    assert 64 <= int(_sensor(tmp_path).read().text.split()[0]) <= 70


def test_this_machine() -> None:
    sensor = HeatSensor()

    assert sensor.missing() or sensor.read().text
