"""Memory errors, as EDAC counts them."""

from pathlib import Path

import pytest

from holdfast.engine.sensors.memory_errors import MemoryErrorSensor
from holdfast.policy.risk import CALM, IMMINENT, SERIOUS, SLIGHT, Reading
from holdfast.testing import FakeClock
from tests.engine.sensors.trees import plant


class Board:
    """Two memory controllers."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = FakeClock()
        self.sensor = MemoryErrorSensor(root, clock=self.clock)

    def read(self, corrected: int, uncorrected: int = 0, *, after_s: float = 10) -> Reading:
        plant(
            self.root,
            {
                "mc/mc0/ce_count": corrected,
                "mc/mc0/ue_count": 0,
                "mc/mc1/ce_count": 3,
                "mc/mc1/ue_count": uncorrected,
            },
        )
        self.clock.advance(after_s)
        return self.sensor.read()


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path)


def test_what_was_corrected_before_says_nothing(board: Board) -> None:
    assert board.read(40) == Reading("43 corrected, 0 uncorrected since the start of the machine", CALM, "")
    assert board.sensor.missing() == ""


@pytest.mark.parametrize(
    ("corrected", "uncorrected", "risk"), [(40, 0, CALM), (41, 0, SLIGHT), (200, 0, SERIOUS), (40, 1, IMMINENT)]
)
def test_new_errors_are_a_risk(board: Board, corrected: int, uncorrected: int, risk: float) -> None:
    board.read(40)

    assert board.read(corrected, uncorrected).risk == risk
    assert board.read(corrected, uncorrected, after_s=3000).risk == risk


def test_after_an_hour_without_new_ones_it_is_calm_again(board: Board) -> None:
    board.read(40)
    board.read(41)

    assert board.read(41, after_s=3600).risk == CALM


def test_a_machine_that_had_uncorrected_ones_is_never_quite_trusted(board: Board) -> None:
    assert board.read(0, 1).risk == SLIGHT
    assert board.read(0, 1, after_s=10**6).risk == SLIGHT


def test_counters_that_went_back_are_no_errors(board: Board) -> None:
    board.read(40)

    assert board.read(0).risk == CALM


def test_this_machine() -> None:
    sensor = MemoryErrorSensor()

    assert sensor.missing() or "corrected" in sensor.read().text


def test_without_edac_it_is_missing(tmp_path: Path) -> None:
    sensor = MemoryErrorSensor(tmp_path)

    assert "no memory controller" in sensor.missing()
    assert sensor.read().risk == CALM
