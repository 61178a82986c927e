"""Network: errors and drops since the last look."""

from pathlib import Path

import pytest

from holdfast.engine.sensors.network import NetworkSensor
from holdfast.policy.risk import CALM, SERIOUS, SLIGHT, Reading
from holdfast.testing import FakeClock

_HEAD = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier
"""


class Node:
    """A node with two interfaces, looked at every ten seconds."""

    def __init__(self, root: Path) -> None:
        self.table = root / "dev"
        self.clock = FakeClock()
        self.sensor = NetworkSensor(self.table, clock=self.clock)

    def read(self, packets: int, errors: int = 0, drops: int = 0, *, name: str = "ib0", after_s: float = 10) -> Reading:
        rows = [
            "    lo: 1 1 500 500 0 0 0 0 1 1 500 500 0 0 0 0",
            f"  {name}: 999 {packets} {errors} 0 0 0 0 0 999 0 0 {drops} 0 0 0 0",
        ]
        self.table.write_text(_HEAD + "\n".join(rows) + "\n")
        self.clock.advance(after_s)
        return self.sensor.read()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_what_was_counted_before_says_nothing(node: Node) -> None:
    reading = node.read(1000, errors=1000)

    assert reading == Reading("1 interfaces, 1000 errors and 0 drops so far", CALM, "")


@pytest.mark.parametrize(
    ("packets", "errors", "drops", "risk"),
    [
        (100_000, 5, 0, CALM),  # too few to mean anything
        (100_000, 20, 0, SLIGHT),
        (1_000_000_000, 20, 0, CALM),  # of so many
        (10_000, 1000, 0, SERIOUS),
        (100_000, 0, 20, CALM),  # drops are part of a network's life
        (10_000, 0, 100, SLIGHT),
        (10_000, 0, 5000, SERIOUS),
        (0, 200, 0, SERIOUS),
    ],
)
def test_errors_and_drops_count_beside_the_packets(
    node: Node, packets: int, errors: int, drops: int, risk: float
) -> None:
    node.read(500, errors=7)

    reading = node.read(500 + packets, errors=7 + errors, drops=drops)

    assert reading.risk == risk
    assert ("ib0" in reading.concluded) == (risk > CALM)


def test_it_counts_for_five_minutes(node: Node) -> None:
    node.read(0)
    node.read(1000, errors=500)

    assert node.read(2000, errors=500, after_s=290).risk == SERIOUS
    assert node.read(3000, errors=500, after_s=20).risk == CALM


def test_an_interface_that_was_made_anew_counts_from_zero(node: Node) -> None:
    node.read(10**6, errors=50)

    assert node.read(10, errors=200).risk == CALM


@pytest.mark.parametrize("text", ["", "no table", "eth0: 1 2 3", "eth0: a b c d e f g h i j k l"])
def test_a_table_that_cannot_be_understood_lists_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "dev").write_text(text)
    sensor = NetworkSensor(tmp_path / "dev")

    assert sensor.missing()
    assert sensor.read().risk == CALM


def test_this_machine() -> None:
    sensor = NetworkSensor()

    assert sensor.missing() or "interfaces" in sensor.read().text
