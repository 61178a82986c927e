"""A program that makes no more steps is ended and started again, where that is asked for."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from holdfast.engine.beats import read_beats
from tests.background.rig import until
from tests.supervising.conftest import Supervise, counting


@pytest.mark.slow
def test_a_program_that_hangs_is_ended_and_started_again(supervise: Supervise) -> None:
    job = supervise("--hang", "12", "--backoff", "0", command=counting(steps=20, hang_at=10, starts=[1]))

    assert job.end() == 0

    assert "no step for 12 s: it is ended" in job.lines()
    assert job.attempts() == ["no step for 12 s, ended; has more to do (status 85); again at once", "done"]
    assert "start 2 from 10" in job.out.read_text()


@pytest.mark.slow
def test_one_that_hangs_is_not_done_whatever_status_it_ends_with_when_it_is_ended(supervise: Supervise) -> None:
    command = counting(steps=20, hang_at=10, starts=[1], quits=True)
    job = supervise("--hang", "12", "--backoff", "0", command=command)

    assert job.end() == 0

    assert job.attempts() == ["no step for 12 s, ended; has more to do (status 85); again at once", "done"]
    assert "start 2 from 10" in job.out.read_text()


def test_one_that_is_deaf_as_well_is_killed(supervise: Supervise) -> None:
    command = counting(steps=20, hang_at=10, starts=[1], deaf=["SIGTERM"])
    job = supervise("--hang", "2", "--grace", "0.2", "--backoff", "0", command=command)

    assert job.end() == 0

    assert job.attempts()[0].startswith("no step for 2 s, ended; killed by SIGKILL; again")
    assert job.attempts()[-1] == "done"


@pytest.mark.slow
def test_hanging_again_and_again_is_a_crash_loop(supervise: Supervise) -> None:
    command = counting(steps=20, hang_at=0)
    job = supervise("--hang", "12", "--backoff", "0", "--max-crashes", "2", command=command)

    assert job.end() == 85

    assert len(job.attempts()) == 2
    assert "given up" in job.attempts()[-1]


def test_a_program_that_tells_no_steps_is_left_alone_and_that_is_said(supervise: Supervise) -> None:
    job = supervise("--hang", "0.5", command=counting(silent=True))
    job.wait_for("it tells no steps", job.log)
    job.wait_for("start 1")

    job.send(signal.SIGTERM)

    assert job.end() == 85
    assert job.attempts() == ["has more to do (status 85), after SIGTERM"]


def test_one_whose_signs_of_life_somebody_has_removed_does_not_hang(
    supervise: Supervise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    job = supervise("--hang", "3", command=counting(pause_s=0.1, steps=80))
    job.wait_for("start 1")
    (folder,) = (tmp_path / "temporary").iterdir()
    until(lambda: any(beat.step >= 20 for beat in read_beats(str(folder / "1"))))  # which the supervisor has seen, too

    shutil.rmtree(folder)

    assert job.end() == 0
    assert job.attempts() == ["done"]


@pytest.mark.slow
def test_the_time_in_which_a_job_is_suspended_does_not_count(supervise: Supervise) -> None:
    job = supervise("--hang", "12", command=counting(hang_at=10))
    job.wait_for("hangs")
    time.sleep(1.5)  # until its last step was seen
    both = (int(Path(job.folder / "pid").read_text()), job.process.pid)

    for pid in both:  # as Slurm does
        os.kill(pid, signal.SIGSTOP)
    time.sleep(12.2)  # longer than it may take for a step
    for pid in both:
        os.kill(pid, signal.SIGCONT)
    job.send(signal.SIGTERM)

    assert job.end() == 85
    assert job.attempts() == ["has more to do (status 85), after SIGTERM"]
    assert "no step" not in job.log.read_text()


@pytest.mark.slow
def test_nor_does_the_time_in_which_it_was_halted_at_the_terminal(supervise: Supervise) -> None:
    # Halted by the terminal's signal can only be what has a shell that could wake it.
    job = supervise("--hang", "12", command=counting(hang_at=10), start_new_session=False, process_group=0)
    job.wait_for("hangs")
    time.sleep(1.5)  # until its last step was seen

    job.send(signal.SIGTSTP)
    time.sleep(12.2)  # longer than it may take for a step
    job.send(signal.SIGCONT)
    time.sleep(2)  # in which it would be found to hang
    job.send(signal.SIGTERM)

    assert job.end() == 85
    assert job.attempts() == ["has more to do (status 85), after SIGTERM"]
    assert "no step" not in job.log.read_text()
