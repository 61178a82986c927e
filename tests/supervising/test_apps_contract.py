"""What a supervisor does with an app: asks it, believes it, and leaves nothing running when it fails."""

import os
import signal
from pathlib import Path

import pytest

from tests.supervising.conftest import Supervise

SCRIPT = Path(__file__).parent / "supervised_app.py"


def test_the_app_is_asked_to_stop_the_program_and_says_how_it_ended(supervise: Supervise) -> None:
    job = supervise(script=SCRIPT)
    job.wait_for("1", job.folder / "step")

    job.send(signal.SIGTERM)
    job.wait_for("asked")
    job.send(signal.SIGUSR1)  # which would kill it

    assert job.end() == 85
    assert job.out.read_text().splitlines() == ["asked", "closed"]
    (line,) = (line for line in job.lines() if line.startswith("attempt 1"))
    assert line.endswith("has more to do (status 85), after SIGTERM (as asked)")
    assert "step 0 → 0" not in line
    assert "SIGTERM: the program is asked to save and end, which has 10 s" in job.lines()


def test_where_the_app_fails_the_program_is_ended_and_the_error_comes_out(supervise: Supervise) -> None:
    job = supervise("fails", script=SCRIPT)

    assert job.end() == 4

    assert job.out.read_text().splitlines() == ["the files make no sense", "closed"]
    with pytest.raises(ProcessLookupError):
        os.kill(int((job.folder / "program").read_text()), 0)


def test_a_signal_between_two_attempts_is_heard_also_where_the_next_would_follow_at_once(supervise: Supervise) -> None:
    job = supervise("late", script=SCRIPT)

    assert job.end() == 85
    assert job.out.read_text().splitlines() == ["begun", "closed"]
    assert [line for line in job.lines() if "again at once" in line] != [], job.lines()
