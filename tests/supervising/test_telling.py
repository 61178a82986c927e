"""What is said of progress, and how: once a minute where nobody looks at a terminal, and in words that fit."""

import pytest

from holdfast.supervising.deciding import Tried, Verdict
from holdfast.supervising.telling import Teller
from holdfast.supervising.watching import Progress
from holdfast.supervising.words import attempt_line, ending_words, live_words
from holdfast.testing import FakeClock


def test_progress_is_told_once_a_minute_and_only_if_there_is_any(capfd: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    teller = Teller(log=None, as_json=False, quiet=False, plain=False, unicode=True, clock=clock)

    for second in range(200):
        teller.show(f"step {min(second, 130)}")
        clock.advance(1)
    teller.close()

    assert capfd.readouterr().err.splitlines() == [f"holdfast: step {step}" for step in (60, 120, 130)]


def test_what_a_program_is_called_cannot_forge_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    teller = Teller(log=None, as_json=False, quiet=False, plain=False, unicode=False, clock=FakeClock())

    teller.tell("note", "waits for x\nholdfast: done\x1b[2J → end")
    teller.close()

    assert capfd.readouterr().err == "holdfast: waits for x\\nholdfast: done\\x1b[2J -> end\n"


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        (Progress(), "attempt 2"),
        (Progress(0, 7), "attempt 2  step 7"),
        (Progress(0, 3400, 3300, 5000, 12.08), "attempt 2  step 3400 of 5000  12.1 steps/s  last durable 3300"),
        (Progress(0, 7, None, None, 1 / 90), "attempt 2  step 7  1 min 30 s a step"),
    ],
)
def test_the_live_line_says_what_is_known(progress: Progress, words: str) -> None:
    assert live_words(2, progress) == words


@pytest.mark.parametrize(
    ("tried", "words"),
    [
        (Tried("done", 0, 1.0), "done"),
        (Tried("again", 85, 1.0), "has more to do (status 85)"),
        (Tried("failed", 1, 1.0), "status 1"),
        (Tried("failed", 137, 1.0), "killed by SIGKILL"),
        (Tried("failed", 255, 1.0), "status 255"),
        (Tried("again", 85, 1.0, stopped_by="SIGUSR1"), "has more to do (status 85), after SIGUSR1"),
        (Tried("failed", 137, 1.0, is_hung=True), "no step for 30 min, ended; killed by SIGKILL"),
    ],
)
def test_an_end_in_words(tried: Tried, words: str) -> None:
    assert ending_words(tried, hang_s=1800.0) == words


def test_the_line_of_an_attempt() -> None:
    tried = Tried("failed", 137, 200.0, from_step=1200, step=3400)
    verdict = Verdict(goes_on=True, status=137, after_s=2.0)

    line = attempt_line(2, 0.0, tried, ending=ending_words(tried), verdict=verdict)

    number, _, took, *rest = line.split("  ")
    assert (number, took) == ("attempt 2", "3 min 20 s")
    assert rest == ["step 1200 → 3400", "killed by SIGKILL; again in 2 s"]
