"""The sensors that holdfast has, made for a run; those that cannot be had here are told with the reason."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from holdfast.core.clock import Clock
from holdfast.engine.sensors.heat import HeatSensor
from holdfast.engine.sensors.memory_errors import MemoryErrorSensor
from holdfast.engine.sensors.network import NetworkSensor
from holdfast.engine.sensors.notice import SpotSensor
from holdfast.engine.sensors.nvidia import NvidiaSensor
from holdfast.engine.sensors.pressure import MemorySensor
from holdfast.engine.sensors.sensor import Sensor
from holdfast.engine.sensors.smart import SmartSensor
from holdfast.engine.sensors.space import DiskSensor
from holdfast.engine.sensors.storage import StorageSensor

__all__ = ["make_sensors"]

_NOTICE_VARIABLE = "HOLDFAST_SPOT_NOTICE"


class _Builtin(Sensor, Protocol):
    def missing(self) -> str: ...


_MAKERS: Mapping[str, Callable[[Path, Clock], _Builtin]] = {
    MemorySensor.name: lambda _, clock: MemorySensor(clock=clock),
    DiskSensor.name: lambda run, clock: DiskSensor(run, clock=clock),
    StorageSensor.name: lambda _, clock: StorageSensor(clock=clock),
    NetworkSensor.name: lambda _, clock: NetworkSensor(clock=clock),
    MemoryErrorSensor.name: lambda _, clock: MemoryErrorSensor(clock=clock),
    SmartSensor.name: lambda _, clock: SmartSensor(clock=clock),
    HeatSensor.name: lambda _, clock: HeatSensor(clock=clock),
    NvidiaSensor.name: lambda _, clock: NvidiaSensor(clock=clock),
}


def make_sensors(
    names: Sequence[str], run: Path, clock: Clock, environ: Mapping[str, str]
) -> tuple[list[Sensor], dict[str, str]]:
    """Those that can be had, and why the others cannot."""
    made: list[Sensor] = []
    missing: dict[str, str] = {}
    for name in names:
        if name == SpotSensor.name:
            place = environ.get(_NOTICE_VARIABLE, "")
            if place:
                made.append(SpotSensor(place))
            else:
                missing[name] = f"{_NOTICE_VARIABLE} is not set"
            continue
        sensor = _MAKERS[name](run, clock)
        why = sensor.missing()
        if why:
            missing[name] = why
        else:
            made.append(sensor)
    return made, missing
