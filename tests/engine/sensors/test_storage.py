"""Storage: what the checkpoints themselves tell of it."""

import pytest

from holdfast.engine.sensors.storage import StorageSensor
from holdfast.policy.risk import CALM, SERIOUS, SLIGHT
from holdfast.testing import FakeClock

MIB = 1 << 20


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def sensor(clock: FakeClock) -> StorageSensor:
    return StorageSensor(clock=clock)


def test_a_storage_that_works_is_calm(sensor: StorageSensor) -> None:
    assert sensor.read().risk == CALM

    for _ in range(20):
        sensor.note_durable(2.0, 100 * MIB)

    assert sensor.read().risk == CALM
    assert sensor.read().text.startswith("none failed")


def test_one_failure_is_slight_and_the_second_in_a_row_is_not(sensor: StorageSensor, clock: FakeClock) -> None:
    sensor.note_failed()
    assert sensor.read().risk == SLIGHT

    sensor.note_failed()
    reading = sensor.read()
    assert (reading.risk, reading.concluded) == (SERIOUS, "checkpoints fail one after the other")

    clock.advance(1000)
    assert sensor.read().risk == CALM
    assert "2 failed" in sensor.read().text


def test_a_failure_after_one_that_worked_is_the_first(sensor: StorageSensor) -> None:
    sensor.note_failed()
    sensor.note_durable(1.0, MIB)
    sensor.note_failed()

    assert sensor.read().risk == SLIGHT


def test_a_storage_that_has_become_slow(sensor: StorageSensor) -> None:
    for _ in range(10):
        sensor.note_durable(2.0, 100 * MIB)
    sensor.note_durable(30.0, 100 * MIB)
    assert sensor.read().risk == CALM  # once is chance

    sensor.note_durable(30.0, 100 * MIB)
    sensor.note_durable(30.0, 100 * MIB)

    reading = sensor.read()
    assert (reading.risk, reading.concluded) == (SLIGHT, "the storage has become slow")


def test_larger_checkpoints_take_longer(sensor: StorageSensor) -> None:
    for size in (100, 100, 100, 100, 100, 1000, 1000, 1000):
        sensor.note_durable(size / 50, size * MIB)

    assert sensor.read().risk == CALM


def test_milliseconds_are_not_worth_a_word(sensor: StorageSensor) -> None:
    for seconds in (0.001, 0.001, 0.001, 0.001, 0.001, 0.1, 0.1, 0.1):
        sensor.note_durable(seconds, MIB)

    assert sensor.read().risk == CALM
