"""Disk: how much is free, and until when."""

from pathlib import Path

import pytest

from holdfast.engine.sensors.space import DiskSensor
from holdfast.policy.risk import CALM, SERIOUS, SLIGHT, Reading
from holdfast.storage.files import Space
from holdfast.testing import FakeClock

GIB = 1 << 30


class Disk:
    """A disk of 100 GiB, looked at every ten seconds."""

    def __init__(self) -> None:
        self.free = 50.0
        self.inodes = 10**6
        self.clock = FakeClock()
        self.sensor = DiskSensor(Path("/nowhere"), clock=self.clock, space=self._space)

    def _space(self, _: Path) -> Space:
        return Space(int(self.free * GIB), self.inodes, 100 * GIB)

    def read(self, *, times: int = 1, grow: float = 0.0) -> Reading:
        for _ in range(times):
            self.clock.advance(10)
            self.free -= grow
            reading = self.sensor.read()
        return reading


def test_a_disk_with_room_is_calm() -> None:
    assert Disk().read(times=20) == Reading("50.00 GiB free", CALM, "")


@pytest.mark.parametrize(("grow", "risk"), [(0.005, CALM), (0.15, SLIGHT), (1.5, SERIOUS)])
def test_the_time_until_it_is_full_counts(grow: float, risk: float) -> None:
    disk = Disk()

    assert disk.read(times=20, grow=grow).risk == risk


def test_the_conclusion_does_not_change_with_every_figure() -> None:
    disk = Disk()

    first, second = disk.read(times=10, grow=1), disk.read(grow=1)

    assert first.concluded == second.concluded == "the file system will be full soon"
    assert first.text != second.text


@pytest.mark.parametrize(("free", "risk"), [(10, CALM), (2, SLIGHT), (0.5, SERIOUS), (0, SERIOUS)])
def test_little_that_is_left_counts_without_a_trend(free: float, risk: float) -> None:
    disk = Disk()
    disk.free = free

    assert disk.read(times=20).risk == risk


def test_inodes_count_too() -> None:
    disk = Disk()
    disk.inodes = 3

    assert disk.read() == Reading("50.00 GiB free, 3 inodes", SERIOUS, "the file system has hardly any inodes left")


def test_the_real_disk(tmp_path: Path) -> None:
    sensor = DiskSensor(tmp_path)

    assert sensor.missing() == ""
    assert "GiB free" in sensor.read().text
    assert "No such file" in DiskSensor(tmp_path / "none").missing()
