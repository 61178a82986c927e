"""Which sensors there are here, and which of them the program wants."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import NamedTuple, cast

from holdfast.core.clock import Clock, SystemClock
from holdfast.core.errors import UsageError
from holdfast.engine.sensors.function import FunctionSensor
from holdfast.engine.sensors.sensor import Sensor
from holdfast.engine.sensors.storage import StorageSensor

__all__ = ["SENSOR_NAMES", "Found", "Wanted", "check_sensors", "find_sensors"]

_log = logging.getLogger("holdfast")

AUTO, OFF = "auto", "off"

Wanted = str | Sequence["str | Callable[[], object] | Sensor"] | None
"""What the program may say; `find_sensors` tells what it means."""


SENSOR_NAMES = ("memory", "disk", "storage", "network", "memory_errors", "smart", "heat", "nvidia", "spot")


class Found(NamedTuple):
    """What is there."""

    sensors: list[Sensor]
    storage: StorageSensor | None
    """The one of them that wants to be told of checkpoints."""
    missing: dict[str, str]
    """Those that cannot be had here, and why."""


def find_sensors(
    wanted: Wanted,
    run: str | PathLike[str],
    *,
    clock: Clock | None = None,
    environ: Mapping[str, str] | None = None,
) -> Found:
    """The sensors for a run: "auto" (or None) for all that can be had here, "off" for none, or a list.

    In a list, names choose; "-name" leaves one out of all; a function, or an object with `name` and `read`, comes in
    addition. A list without a name that chooses means all. UsageError for names that are not known.
    """
    # The families take longer to load than all else here; a program that only has its names checked does without.
    from holdfast.engine.sensors.families import make_sensors

    names, own = check_sensors(wanted)
    made, missing = make_sensors(names, Path(run), clock or SystemClock(), os.environ if environ is None else environ)
    for name in names:
        if name in missing and name in _entries(wanted):
            _log.warning("the sensor %r cannot be had here: %s", name, missing[name])
    storage = next((sensor for sensor in made if isinstance(sensor, StorageSensor)), None)
    return Found([*made, *own], storage, missing)


def check_sensors(wanted: Wanted) -> tuple[list[str], list[Sensor]]:
    """The names that are wanted, and the program's own sensors; UsageError where that makes no sense."""
    entries = _entries(wanted)
    names = _chosen([entry for entry in entries if isinstance(entry, str)])
    own = [_own_sensor(entry) for entry in entries if not isinstance(entry, str)]
    _check_own(own)
    return names, own


def _entries(wanted: Wanted) -> list[object]:
    if wanted is None or wanted == AUTO:
        return [AUTO]
    if wanted == OFF:
        return [OFF]
    if isinstance(wanted, str) or not isinstance(wanted, Sequence):
        raise UsageError(
            f'sensors is {wanted!r}, expected "auto", "off", or a list of names and functions',
            hint=f"sensors=[{wanted!r}]" if wanted in SENSOR_NAMES else f"there are {', '.join(SENSOR_NAMES)}",
        )
    return list(wanted)


def _chosen(words: Sequence[str]) -> list[str]:
    for word in words:
        if word.removeprefix("-") not in SENSOR_NAMES and word not in (AUTO, OFF):
            raise UsageError(f"there is no sensor {word!r}", hint=f"there are {', '.join(SENSOR_NAMES)}")
    if OFF in words:
        if len(words) > 1:
            raise UsageError(f'sensors has "off" beside {", ".join(word for word in words if word != OFF)}')
        return []
    left_out = {word.removeprefix("-") for word in words if word.startswith("-")}
    chosen = [word for word in words if not word.startswith("-") and word != AUTO]
    every = not chosen or AUTO in words
    return [name for name in SENSOR_NAMES if (every or name in chosen) and name not in left_out]


def _own_sensor(entry: object) -> Sensor:
    if isinstance(getattr(entry, "name", None), str) and callable(getattr(entry, "read", None)):
        return cast(Sensor, entry)
    if callable(entry):
        return FunctionSensor(entry)
    raise UsageError(
        f"sensors has {entry!r} ({type(entry).__name__}), expected a name or a function",
        hint=f"there are {', '.join(SENSOR_NAMES)}",
    )


def _check_own(own: Sequence[Sensor]) -> None:
    names = [sensor.name for sensor in own]
    for name in names:
        if name in SENSOR_NAMES or names.count(name) > 1:
            raise UsageError(f"two sensors are called {name!r}", hint="give the function another name")
