"""Cards: a program that stands in for nvidia-smi, and a file for the kernel's log."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.engine.sensors.nvidia import NvidiaSensor
from holdfast.policy.risk import CALM, IMMINENT, SERIOUS, SLIGHT, Reading
from holdfast.testing import FakeClock

_LOOKS = 100
_SCRIPT = """
import sys
answer = open({answer!r}).read()
query = sys.argv[1]
assert query == ("--query-gpu=index,temperature.gpu,ecc.errors.corrected.volatile.total,"
                 "ecc.errors.uncorrected.volatile.total"), query
if answer.startswith("ERROR"):
    print(answer)
    sys.exit(9)
print(answer, end="")
"""


class Node:
    """A node whose cards say what the test wants."""

    def __init__(self, install: Callable[[str, str], Path], root: Path) -> None:
        self.answer = root / "answer"
        self.log = root / "kmsg"
        self.log.write_text("6,1,1,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n")
        install("nvidia-smi", _SCRIPT.format(answer=str(self.answer)))
        self.clock = FakeClock()
        self.sensor = NvidiaSensor(kernel_log=self.log, clock=self.clock, every_s=60)

    def read(self, *rows: str) -> Reading:
        """What the sensor says once the program has answered."""
        self.answer.write_text("".join(f"{row}\n" for row in rows))
        self.clock.advance(60)
        for _ in range(_LOOKS):
            reading = self.sensor.read()
            if not self.sensor.is_asking:
                return reading
        raise AssertionError("it has not answered")

    def logs(self, message: str) -> Reading:
        with open(self.log, "a") as log:
            log.write(f"3,900,5000000,-;{message}\n")
        return self.sensor.read()


@pytest.fixture
def node(install: Callable[[str, str], Path], tmp_path: Path) -> Iterator[Node]:
    made = Node(install, tmp_path)
    yield made
    made.sensor.close()


def test_cards_without_trouble_are_calm(node: Node) -> None:
    reading = node.read("0, 45, 0, 0", "1, 50, [N/A], [N/A]")

    assert (reading.risk, reading.concluded) == (CALM, "")
    assert reading.text == "card 0: 45 °C, 0 corrected and 0 uncorrected memory errors, card 1: 50 °C"
    assert node.sensor.missing() == ""


@pytest.mark.parametrize(
    ("row", "risk"),
    [("0, 45, 7, 2", CALM), ("0, 45, 8, 2", SLIGHT), ("0, 45, 8, 3", IMMINENT), ("0, 93, 7, 2", SLIGHT)],
)
def test_new_memory_errors_and_heat_are_a_risk(node: Node, row: str, risk: float) -> None:
    node.read("0, 45, 7, 2")

    assert node.read(row).risk == risk


def test_a_card_that_is_gone_is_the_end(node: Node) -> None:
    node.read("0, 45, 0, 0", "1, 45, 0, 0")

    assert node.read("0, 45, 0, 0").concluded == "a card does not answer any more"


def test_a_program_that_fails_after_it_worked_is_as_bad(node: Node) -> None:
    node.read("0, 45, 0, 0")

    assert node.read("ERROR Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error").risk == IMMINENT


def test_a_program_that_never_worked_says_nothing(node: Node) -> None:
    reading = node.read("ERROR No devices were found")

    assert (reading.text, reading.risk) == ("no card has answered", CALM)


@pytest.mark.parametrize(("xid", "risk"), [(13, CALM), (31, CALM), (63, SERIOUS), (48, IMMINENT), (79, IMMINENT)])
def test_xid_messages_are_taken_by_their_number(node: Node, xid: int, risk: float) -> None:
    assert node.read("0, 45, 0, 0").risk == CALM  # the one of before it was watched does not count

    reading = node.logs(f"NVRM: Xid (PCI:0000:3b:00): {xid}, pid=123, name=python")

    assert reading.risk == risk
    assert "1 Xid messages" in reading.text
    assert (f"Xid {xid} of PCI:0000:3b:00" in reading.concluded) == (risk > CALM)


def test_other_messages_of_the_kernel_are_none_of_its_business(node: Node) -> None:
    node.read("0, 45, 0, 0")

    assert "Xid" not in node.logs("usb 1-1: new high-speed USB device").text


@pytest.mark.parametrize("rows", [("",), ("0, 45",), ("a, b, c, d",), ("0, 45, 1, 1, 1",), ("\0\0",)])
def test_what_it_cannot_understand_says_nothing(node: Node, rows: tuple[str, ...]) -> None:
    assert node.read(*rows).risk == CALM


def test_a_log_that_may_not_be_read_is_done_without(node: Node, tmp_path: Path) -> None:
    sensor = NvidiaSensor(kernel_log=tmp_path / "none", clock=node.clock)

    assert sensor.read().risk == CALM
    sensor.close()


def test_this_machine() -> None:
    sensor = NvidiaSensor()

    assert sensor.missing() or sensor.read().risk >= CALM
    sensor.close()
