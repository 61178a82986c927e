"""Drives: answers in the form that smartctl gives, from a program that stands in for it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.engine.sensors.smart import SmartSensor
from holdfast.policy.risk import CALM, SERIOUS, SLIGHT, Reading
from holdfast.testing import FakeClock

_LOOKS = 200

SATA: dict[str, Any] = {
    "json_format_version": [1, 0],
    "smartctl": {"version": [7, 3], "exit_status": 0},
    "device": {"name": "/dev/sda", "type": "sat", "protocol": "ATA"},
    "smart_status": {"passed": True},
    "ata_smart_attributes": {
        "revision": 16,
        "table": [
            {"id": 5, "name": "Reallocated_Sector_Ct", "value": 100, "thresh": 10, "raw": {"value": 0, "string": "0"}},
            {"id": 9, "name": "Power_On_Hours", "value": 95, "thresh": 0, "raw": {"value": 24031, "string": "24031"}},
            {"id": 197, "name": "Current_Pending_Sector", "value": 100, "thresh": 0, "raw": {"value": 0}},
            {"id": 198, "name": "Offline_Uncorrectable", "value": 100, "thresh": 0, "raw": {"value": 0}},
        ],
    },
}
NVME: dict[str, Any] = {
    "smartctl": {"version": [7, 3], "exit_status": 0},
    "device": {"name": "/dev/nvme0", "type": "nvme", "protocol": "NVMe"},
    "smart_status": {"passed": True, "nvme": {"value": 0}},
    "nvme_smart_health_information_log": {
        "critical_warning": 0,
        "temperature": 38,
        "available_spare": 100,
        "available_spare_threshold": 10,
        "percentage_used": 4,
        "media_errors": 0,
        "num_err_log_entries": 12,
    },
}
SCSI: dict[str, Any] = {"smart_status": {"passed": True}, "scsi_grown_defect_list": 2}

_SCRIPT = """
import json, sys
answers = json.load(open({answers!r}))
if "--scan" in sys.argv:
    print(json.dumps({{"devices": [{{"name": name, "type": "x"}} for name in answers]}}))
else:
    answer = answers[sys.argv[-1]]
    print(answer if isinstance(answer, str) else json.dumps(answer))
    sys.exit(answer.get("smartctl", {{}}).get("exit_status", 0) if isinstance(answer, dict) else 0)
"""


class Drives:
    """A machine whose drives say what the test wants."""

    def __init__(self, install: Callable[[str, str], Path], root: Path) -> None:
        self.answers = root / "answers.json"
        install("smartctl", _SCRIPT.format(answers=str(self.answers)))
        self.clock = FakeClock()
        self.sensor = SmartSensor(clock=self.clock, every_s=300)

    def read(self, **drives: object) -> Reading:
        """What the sensor says once it has asked each drive."""
        self.answers.write_text(json.dumps({f"/dev/{name}": answer for name, answer in drives.items()}))
        asked = self.sensor.read()
        for _ in range(_LOOKS):
            self.clock.advance(300)
            before, asked = asked, self.sensor.read()
            if (
                asked == before
                and "no drive has answered" not in asked.text
                and asked.text.count("/dev") == len(drives)
            ):
                return asked
        return asked


@pytest.fixture
def drives(install: Callable[[str, str], Path], tmp_path: Path) -> Iterator[Drives]:
    made = Drives(install, tmp_path)
    yield made
    made.sensor.close()


def _with(drive: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """A copy of the answer with one value changed."""
    copy: dict[str, Any] = json.loads(json.dumps(drive))
    *parents, last = path.split(".")
    place: Any = copy
    for name in parents:
        place = place[int(name)] if name.isdecimal() else place[name]
    place[last] = value
    return copy


def test_healthy_drives_are_calm(drives: Drives) -> None:
    reading = drives.read(sda=SATA, nvme0=NVME)

    assert (reading.risk, reading.concluded) == (CALM, "")
    assert reading.text == "/dev/sda: no bad places; /dev/nvme0: no bad places"
    assert drives.sensor.missing() == ""


@pytest.mark.parametrize(
    ("answer", "risk", "concluded"),
    [
        (_with(SATA, "smart_status.passed", False), SERIOUS, "says that it is failing"),
        (_with(SATA, "ata_smart_attributes.table.2.raw.value", 8), SLIGHT, "has bad places"),
        (_with(NVME, "nvme_smart_health_information_log.critical_warning", 4), SERIOUS, "warns: critical warning 4"),
        (_with(NVME, "nvme_smart_health_information_log.available_spare", 5), SERIOUS, "warns: 5 % of the spare"),
        (_with(NVME, "nvme_smart_health_information_log.media_errors", 3), SLIGHT, "has bad places"),
        (SCSI, SLIGHT, "has bad places"),
    ],
)
def test_a_drive_that_says_it_is_not_well(drives: Drives, answer: object, risk: float, concluded: str) -> None:
    reading = drives.read(sda=answer)

    assert reading.risk == risk
    assert concluded in reading.concluded


def test_bad_places_that_become_more_are_serious_and_say_which(drives: Drives) -> None:
    drives.read(sda=_with(SATA, "ata_smart_attributes.table.0.raw.value", 8))

    reading = drives.read(sda=_with(SATA, "ata_smart_attributes.table.0.raw.value", 16))

    assert (reading.risk, reading.concluded) == (SERIOUS, "the reallocated sectors of /dev/sda become more")


@pytest.mark.parametrize(
    "answer",
    [
        _with(_with(SATA, "smartctl.exit_status", 2), "smart_status.passed", False),  # it could not be opened
        "not JSON",
        "[]",
        {"ata_smart_attributes": {"table": "?"}, "smart_status": 7},
        {"ata_smart_attributes": {"table": [None, {"id": 5}, {"id": 5, "raw": 3}]}, "smart_status": {}},
        {"nvme_smart_health_information_log": {"critical_warning": "x", "media_errors": None}},
    ],
)
def test_a_drive_that_cannot_be_asked_or_understood_says_nothing(drives: Drives, answer: object) -> None:
    assert drives.read(sda=answer).risk == CALM


def test_a_machine_without_drives(drives: Drives) -> None:
    drives.read()

    assert drives.sensor.read().text == "smartctl knows of no drive"


def test_this_machine() -> None:
    sensor = SmartSensor()

    assert sensor.missing() or sensor.read().risk >= CALM
    sensor.close()
