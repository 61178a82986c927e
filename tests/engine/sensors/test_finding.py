"""Which sensors a program gets."""

import os
import random
from pathlib import Path

import pytest

from holdfast.core.errors import UsageError
from holdfast.engine.sensors.finding import SENSOR_NAMES, find_sensors
from holdfast.engine.sensors.heat import HeatSensor
from holdfast.engine.sensors.memory_errors import MemoryErrorSensor
from holdfast.engine.sensors.network import NetworkSensor
from holdfast.engine.sensors.pressure import MemorySensor
from holdfast.engine.sensors.sensor import Sensor
from holdfast.engine.sensors.storage import StorageSensor
from holdfast.policy.risk import CALM, MOST, Reading


class Own:
    """A sensor of the program's own."""

    name = "own"

    def read(self) -> Reading:
        return Reading("nothing")


def pump() -> bool:
    return False


def _names(wanted: object, run: Path, **environ: str) -> list[str]:
    return [sensor.name for sensor in find_sensors(wanted, run, environ=environ).sensors]  # type: ignore[arg-type]


@pytest.mark.parametrize("wanted", ["auto", None, [], ["auto"]])
def test_by_default_all_that_can_be_had_here(tmp_path: Path, wanted: object) -> None:
    found = find_sensors(wanted, tmp_path, environ={})  # type: ignore[arg-type]

    assert {"memory", "disk", "storage"} <= {sensor.name for sensor in found.sensors}
    assert {sensor.name for sensor in found.sensors} | found.missing.keys() == set(SENSOR_NAMES)
    assert found.missing["spot"] == "HOLDFAST_SPOT_NOTICE is not set"
    assert isinstance(found.storage, StorageSensor)
    assert found.storage in found.sensors


@pytest.mark.parametrize("wanted", ["off", ["off"]])
def test_off_is_none(tmp_path: Path, wanted: object) -> None:
    found = find_sensors(wanted, tmp_path)  # type: ignore[arg-type]

    assert (found.sensors, found.storage, found.missing) == ([], None, {})


def test_names_choose(tmp_path: Path) -> None:
    assert _names(["disk", "memory"], tmp_path) == ["memory", "disk"]
    assert find_sensors(["disk"], tmp_path).storage is None


def test_a_minus_leaves_one_out_of_all(tmp_path: Path) -> None:
    every = _names("auto", tmp_path)

    assert _names(["-disk"], tmp_path) == [name for name in every if name != "disk"]
    assert _names(["auto", "-disk", "-memory"], tmp_path) == [name for name in every if name not in ("disk", "memory")]


def test_functions_and_own_sensors_come_in_addition(tmp_path: Path) -> None:
    assert _names([pump, Own()], tmp_path) == [*_names("auto", tmp_path), "pump", "own"]
    assert _names(["disk", pump], tmp_path) == ["disk", "pump"]
    assert _names(["off", pump], tmp_path) == ["pump"]


def test_a_spot_notice_is_watched_where_the_environment_names_it(tmp_path: Path) -> None:
    assert "spot" in _names("auto", tmp_path, HOLDFAST_SPOT_NOTICE=str(tmp_path / "notice"))


def test_one_that_was_named_and_cannot_be_had_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert _names(["spot"], tmp_path) == []
    assert "the sensor 'spot' cannot be had here: HOLDFAST_SPOT_NOTICE is not set" in caplog.text

    caplog.clear()
    _names("auto", tmp_path)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (["heatt"], "there is no sensor 'heatt'"),
        (["-heatt"], "there is no sensor '-heatt'"),
        ("disk", "sensors is 'disk'"),
        (True, "sensors is True"),
        (pump, 'expected "auto", "off", or a list'),
        ([3], "sensors has 3 (int)"),
        (["off", "disk"], "beside disk"),
        ([pump, pump], "two sensors are called 'pump'"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, wanted: object, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_sensors(wanted, tmp_path)  # type: ignore[arg-type]

    assert message in str(caught.value)


def test_a_function_must_not_take_the_name_of_another_sensor(tmp_path: Path) -> None:
    def disk() -> bool:
        return False

    with pytest.raises(UsageError, match="two sensors are called 'disk'"):
        find_sensors([disk], tmp_path)


def test_each_one_can_be_asked_on_this_machine(tmp_path: Path) -> None:
    found = find_sensors("auto", tmp_path)

    for sensor in found.sensors:
        for _ in range(3):
            reading = sensor.read()
            assert reading.text
            assert CALM <= reading.risk <= MOST
        getattr(sensor, "close", bool)()


_FILES = {
    "proc": ["meminfo", "self/cgroup", "self/limits", "self/statm", "pressure/memory", "net/dev"],
    "cg": ["cgroup.controllers", "memory.max", "memory.current", "memory.stat", "memory.events", "memory.pressure"],
    "thermal": ["thermal_zone0/temp", "thermal_zone0/trip_point_0_type", "thermal_zone0/trip_point_0_temp"],
    "cpu": ["cpu0/thermal_throttle/core_throttle_count"],
    "edac": ["mc/mc0/ce_count", "mc/mc0/ue_count"],
}
_WORDS = ["MemAvailable:", "MemTotal:", "0::/", "4:memory:/", "max", "critical", "oom_kill", "full", "avg10=", "=", ":"]
_WORDS += [
    "Max address space",
    "eth0:",
    "inactive_file",
    "-1",
    "0",
    "5",
    str(10**30),
    "nan",
    "inf",
    "\0",
    "é",
    "\n",
    "\n",
]


@pytest.mark.parametrize("seed", range(60))
def test_whatever_the_files_of_the_system_say_no_sensor_raises(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    sensors: list[Sensor] = [
        MemorySensor(tmp_path / "proc", tmp_path / "cg"),
        NetworkSensor(tmp_path / "proc/net/dev"),
        MemoryErrorSensor(tmp_path / "edac"),
    ]
    for _ in range(4):
        for group, names in _FILES.items():
            for name in names:
                path = tmp_path / group / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(
                    " ".join(rng.choices(_WORDS, k=rng.randrange(9))).encode() + os.urandom(rng.choice((0, 0, 3)))
                )

        for sensor in [*sensors, HeatSensor(tmp_path / "thermal", tmp_path / "cpu")]:
            assert CALM <= sensor.read().risk <= MOST
