"""When a program is started again, and when not: real programs, real ends."""

import json
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.supervising.conftest import Supervise, counting

QUICK = ("--backoff", "10ms")


def test_a_program_that_is_done_ends_it_with_status_0(supervise: Supervise) -> None:
    job = supervise(command=counting(steps=3))

    assert job.end() == 0

    assert job.attempts() == ["done"]
    assert job.out.read_text().splitlines()[-1] == "done"


def test_a_crash_is_followed_by_a_restart_that_goes_on(supervise: Supervise) -> None:
    job = supervise(*QUICK, command=counting(steps=10, crash_at=5, status=3, starts=[1]))

    assert job.end() == 0

    assert job.attempts() == ["status 3; again in 10 ms", "done"]
    assert job.out.read_text().splitlines() == ["start 1 from 0 restarts 0", "start 2 from 5 restarts 1", "done"]


@pytest.mark.parametrize("number", ["SIGKILL", "SIGSEGV"])
def test_so_is_a_signal_that_killed_it(supervise: Supervise, number: str) -> None:
    command = f"[ -e once ] || {{ touch once; kill -{number.removeprefix('SIG')} $$; }}"
    job = supervise(*QUICK, command=["bash", "-c", command])

    assert job.end() == 0

    assert job.attempts() == [f"killed by {number}; again in 10 ms", "done"]


def test_85_is_followed_by_a_restart_at_once(supervise: Supervise) -> None:
    job = supervise(command=counting(steps=10, crash_at=5, status=85, starts=[1]))

    assert job.end() == 0

    assert job.attempts() == ["has more to do (status 85); again at once", "done"]


@pytest.mark.parametrize("environment", [{"SLURM_JOB_ID": "77"}, {"_CONDOR_JOB_AD": "ad"}])
def test_in_a_schedulers_job_85_is_for_the_scheduler(
    supervise: Supervise, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "ad").write_text("ClusterId = 12\nProcId = 0\n")
    for name, value in environment.items():
        monkeypatch.setenv(name, str(tmp_path / "ad") if value == "ad" else value)

    passed_on = supervise(command=["bash", "-c", "exit 85"])
    insisted = supervise("--on-85", "restart", *QUICK, "--max-restarts", "1", command=["bash", "-c", "exit 85"])

    assert passed_on.end() == 85
    assert passed_on.attempts() == ["has more to do (status 85); left to the scheduler"]
    assert insisted.end() == 85
    assert len(insisted.attempts()) == 2


def test_the_status_that_asks_for_a_restart_can_be_another(supervise: Supervise) -> None:
    job = supervise("--exit-code", "99", *QUICK, command=["bash", "-c", "[ -e once ] || { touch once; exit 99; }"])

    assert job.end() == 0

    assert job.attempts() == ["has more to do (status 99); again in 10 ms", "done"]


def test_crashes_that_lead_nowhere_end_it_with_the_programs_status(supervise: Supervise) -> None:
    job = supervise(*QUICK, "--max-crashes", "3", command=counting(steps=10, crash_at=5, status=7))

    assert job.end() == 7

    assert len(job.attempts()) == 4  # the first came to step 5, the others did not come any further
    assert "given up: it ended 3 times in a row without coming any further" in job.attempts()[-1]
    assert "start the same command again: it goes on from its last checkpoint" in job.lines()[-1]


def test_the_number_of_restarts_is_limited(supervise: Supervise) -> None:
    job = supervise(*QUICK, "--max-restarts", "2", command=["bash", "-c", "exit 85"])

    assert job.end() == 85

    assert len(job.attempts()) == 3
    assert "(--max-restarts)" in job.attempts()[-1]


def test_until_done_has_no_limits(supervise: Supervise) -> None:
    command = "echo >> starts; [ $(wc -l < starts) -gt 8 ] || exit 2"
    job = supervise("--until-done", "--backoff", "0", command=["bash", "-c", command])

    assert job.end() == 0

    assert len(job.attempts()) == 9


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        (["nowhere-to-be-found"], 127, "nowhere-to-be-found cannot be started: No such file or directory"),
        (["/etc/passwd"], 126, "/etc/passwd cannot be started: Permission denied"),
        (["bash", "-c", "nowhere-to-be-found"], 127, "not tried again: what it would start is not there"),
        ([sys.executable, "nowhere-to-be-found.py"], 2, "not tried again: status 2 is that of a wrong command line"),
    ],
)
def test_what_cannot_be_started_is_said_at_once(
    supervise: Supervise, command: list[str], status: int, words: str
) -> None:
    job = supervise(command=command)

    assert job.end() == status

    assert len(job.attempts()) == 1
    assert words in job.err.read_text()
    assert "Traceback" not in job.err.read_text()


def test_a_mistyped_command_is_not_tried_for_ever_even_if_asked_for(supervise: Supervise) -> None:
    assert supervise("--until-done", command=["nowhere-to-be-found"]).end() == 127


def test_a_pipeline_that_hides_the_status_of_a_program_that_stopped_is_not_done(supervise: Supervise) -> None:
    """Its own status is that of `cat`, 0."""
    program = counting(steps=1000)
    job = supervise(command=["bash", "-c", '"$@" | cat', "bash", *program])
    job.wait_for("start 1")

    job.send(signal.SIGTERM)

    assert job.end() == 85
    assert "has more to do (status 85), after SIGTERM" in job.attempts()[-1]


def test_the_lines_are_the_same_in_the_log_and_on_the_error_stream(supervise: Supervise) -> None:
    job = supervise(*QUICK, command=counting(steps=10, crash_at=5, starts=[1]))

    job.end()

    assert [line.removeprefix("holdfast: ") for line in job.err.read_text().splitlines()] == job.lines()
    first, second = job.lines()
    assert re.fullmatch(r"attempt 1  \d\d:\d\d:\d\d  .*  step 0 → 5  status 1; again in 10 ms", first)
    assert re.fullmatch(r"attempt 2  \d\d:\d\d:\d\d  .*  step 5 → 10  done", second)


def test_the_log_is_appended_to(supervise: Supervise, tmp_path: Path) -> None:
    log = tmp_path / "all.log"

    for _ in range(2):
        supervise("--log", str(log), command=["true"]).end()

    assert len(log.read_text().splitlines()) == 2


def test_with_json_the_lines_are_documents_and_the_output_is_the_programs(supervise: Supervise) -> None:
    job = supervise("--json", *QUICK, command=counting(steps=10, crash_at=5, starts=[1]))

    job.end()

    events = [json.loads(line) for line in job.err.read_text().splitlines()]
    assert [event["event"] for event in events] == ["attempt", "attempt", "end"]
    assert events[0]["attempt"] == 1
    assert (events[0]["from_step"], events[0]["step"], events[0]["status"]) == (0, 5, 1)
    assert (events[0]["goes_on"], events[0]["after_s"]) == (True, 0.01)
    assert events[2]["status"] == 0
    assert "holdfast" not in job.out.read_text()


def test_quiet_says_only_what_went_wrong_in_the_end(supervise: Supervise) -> None:
    fine = supervise("--quiet", *QUICK, command=counting(steps=10, crash_at=5, starts=[1]))
    failed = supervise("--quiet", *QUICK, "--max-crashes", "2", command=["bash", "-c", "exit 1"])

    assert (fine.end(), failed.end()) == (0, 1)

    assert fine.err.read_text() == ""
    assert len(fine.attempts()) == 2  # in the log it is
    assert "given up" in failed.err.read_text()
