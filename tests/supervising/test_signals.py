"""Signals to the supervisor come to the program that they are meant for, once, and end what they should end."""

import json
import math
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.supervising.conftest import DEADLINE_S, Supervise, counting, left_of

STOPS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]
# Holds a second signal back for longer than a busy machine takes to end a program.
_PATIENT = """
from holdfast.cli.main import run
from holdfast.supervising import attending
attending._BETWEEN_S = 30.0
run()
"""


@pytest.mark.parametrize("number", STOPS)
def test_a_signal_makes_the_program_save_and_85_passes_through(supervise: Supervise, number: signal.Signals) -> None:
    job = supervise(command=counting())
    job.wait_for("start 1")

    job.send(number)

    assert job.end() == 85
    assert job.out.read_text().count("got ") == 1
    assert job.attempts() == [f"has more to do (status 85), after {number.name}"]


@pytest.mark.parametrize("number", STOPS)
@pytest.mark.parametrize("is_silent", [False, True])
def test_in_a_shell_with_a_pipeline_the_program_gets_it_and_the_rest_lives(
    supervise: Supervise, number: signal.Signals, is_silent: bool
) -> None:
    script = 'set -o pipefail; mkdir x; cd x; "$@" | tee ../tee.txt; status=$?; echo shell has $status; exit $status'
    job = supervise(command=["bash", "-c", script, "bash", *counting(silent=is_silent)])
    job.wait_for("start 1")

    job.send(number)

    assert job.end() == 85
    # The last words of the program came through the pipe: nothing in it was killed; nor was the shell.
    assert (job.folder / "tee.txt").read_text().splitlines()[-1] == f"saved after {number.name}"
    assert job.out.read_text().splitlines()[-1] == "shell has 85"


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1])
def test_one_that_would_kill_a_program_comes_as_sigterm_by_which_it_saves(
    supervise: Supervise, number: signal.Signals
) -> None:
    """A Checkpointer leaves SIGHUP alone."""
    job = supervise(command=counting(careless=[number.name]))
    job.wait_for("start 1")

    job.send(number)

    assert job.end() == 85
    assert "saved after SIGTERM" in job.out.read_text()


def test_a_launcher_that_passes_signals_on_itself_is_left_to_it(supervise: Supervise) -> None:
    """Like srun: its tasks would get the signal twice."""
    launcher = (
        "import signal, subprocess, sys\n"
        "task = subprocess.Popen(sys.argv[1:])\n"
        "signal.signal(signal.SIGUSR1, lambda number, frame: task.send_signal(number))\n"
        "print('launched', flush=True)\n"
        "sys.exit(task.wait())\n"
    )
    job = supervise(command=[sys.executable, "-c", launcher, *counting(silent=True, pause_s=0.5)])
    job.wait_for("launched")
    job.wait_for("start 1")

    job.send(signal.SIGUSR1)

    assert job.end() == 85
    assert job.out.read_text().count("got SIGUSR1") == 1


def test_so_is_another_supervisor(supervise: Supervise) -> None:
    """It would start its program again, if it did not know that somebody wants the end."""
    ours = [sys.executable, "-m", "holdfast", "run", "--"]
    job = supervise("--grace", "20", command=[*ours, *counting()])
    job.wait_for("start 1")

    job.send(signal.SIGTERM)

    assert job.end() == 85
    assert job.out.read_text().count("start ") == 1


def test_a_program_without_handlers_ends_as_it_would_alone(supervise: Supervise) -> None:
    job = supervise(command=["bash", "-c", "echo ready; exec sleep 1000"])
    job.wait_for("ready")

    job.send(signal.SIGTERM)

    assert job.end() == 128 + signal.SIGTERM
    assert job.attempts() == ["killed by SIGTERM, after SIGTERM"]


def test_a_program_that_ignores_sigterm_is_killed_after_the_grace(supervise: Supervise) -> None:
    job = supervise("--grace", "0.5", command=counting(deaf=["SIGTERM"]))
    job.wait_for("start 1")

    job.send(signal.SIGTERM)

    assert job.end() == 128 + signal.SIGKILL
    assert any(line.startswith("killed, for it has not ended within 500 ms: ") for line in job.lines())
    assert left_of(str(job.folder)) == []


def test_so_is_all_that_it_has_started(supervise: Supervise) -> None:
    mark = f"10{os.getpid()}"
    stubborn = f"trap '' TERM; setsid sleep {mark} & sleep {mark}"
    job = supervise("--grace", "0.5", command=["bash", "-c", f"{stubborn} & echo ready; {stubborn}"])
    job.wait_for("ready")
    _wait_for_number(f"sleep\0{mark}", 4)

    job.send(signal.SIGTERM)

    assert job.end() == 128 + signal.SIGKILL
    assert left_of(mark) == []


def test_a_signal_without_hurry_waits_as_long_as_the_program_needs(supervise: Supervise) -> None:
    """USR1 announces a limit that is minutes away: nothing is killed for it."""
    job = supervise("--grace", "0", command=counting(deaf=["SIGUSR1"]))
    job.wait_for("start 1")

    job.send(signal.SIGUSR1)
    job.wait_for("SIGUSR1 passed on", job.log)
    job.send(signal.SIGUSR2)

    assert job.end() == 85
    assert "killed" not in job.log.read_text()


def test_a_supervisor_that_is_killed_takes_its_program_to_a_save_and_an_end(supervise: Supervise) -> None:
    job = supervise(command=counting())
    job.wait_for("start 1")

    job.send(signal.SIGKILL)

    job.wait_for("saved after SIGTERM")


def test_also_when_a_shell_with_a_pipeline_is_between_them(supervise: Supervise) -> None:
    """The shell dies by it, and could not tell its program."""
    script = '"$@" | tee tee.txt; echo not reached'
    job = supervise(command=["bash", "-c", script, "bash", *counting(pause_s=0.5)])
    job.wait_for("start 1")

    job.send(signal.SIGKILL)

    job.wait_for("saved after SIGTERM", job.folder / "tee.txt")
    assert (job.folder / "tee.txt").read_text().count("got SIGTERM") == 1


def test_also_when_somebody_has_removed_the_temporary_files(
    supervise: Supervise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    job = supervise(command=["bash", "-c", '"$@"; echo not reached', "bash", *counting(pause_s=0.5)])
    job.wait_for("start 1")
    job.process.send_signal(signal.SIGSTOP)  # or it would make them anew
    shutil.rmtree(tmp_path / "temporary")

    job.send(signal.SIGKILL)

    job.wait_for("saved after SIGTERM")


def test_also_when_the_program_knows_nothing_of_signals(supervise: Supervise) -> None:
    mark = f"30{os.getpid()}"
    job = supervise(command=["bash", "-c", f"echo ready; sleep {mark} | cat; echo not reached"])
    job.wait_for("ready")
    _wait_for_number(f"sleep\0{mark}", 1)

    job.send(signal.SIGKILL)

    _wait_for_number(mark, 0)


def test_the_guard_and_its_directory_go_with_the_supervisor(
    supervise: Supervise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))

    ended = supervise(command=["true"])
    assert ended.end() == 0
    assert left_of(str(tmp_path / "temporary")) == []
    killed = supervise(command=counting())
    killed.wait_for("start 1")
    killed.send(signal.SIGKILL)

    _wait_for_number(str(tmp_path / "temporary"), 0)
    assert os.listdir(tmp_path / "temporary") == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 85), (signal.SIGUSR1, 85), (signal.SIGINT, 130)])
def test_a_signal_between_two_attempts_ends_the_wait(supervise: Supervise, number: signal.Signals, status: int) -> None:
    job = supervise("--backoff", "1h", command=["bash", "-c", "exit 1"])
    job.wait_for("again in 1 h", job.log)

    job.send(number)

    assert job.end() == status
    assert job.lines()[-1] == f"{number.name}: not started again"


def test_a_signal_at_any_moment_of_the_start_ends_it(supervise: Supervise) -> None:
    jobs = [supervise(command=counting()) for _ in range(8)]

    for number, job in enumerate(jobs):
        time.sleep(0.02 * number)  # to be early, late and in between
        job.send(signal.SIGTERM)

    # Before the supervisor was one; before the program had its handlers; after.
    assert {job.end() for job in jobs} <= {-signal.SIGTERM, 128 + signal.SIGTERM, 85}


def test_twenty_signals_at_once_do_no_harm(supervise: Supervise) -> None:
    job = supervise(command=counting())
    job.wait_for("start 1")

    for number in STOPS * 4:
        job.send(number)

    assert job.end() == 85
    assert job.out.read_text().count("saved after") == 1


@pytest.mark.parametrize("wishes", [{"silent": True, "slow_end_s": 0.3}, {"slow_end_s": 1.5}])
def test_a_signal_that_follows_does_not_spoil_the_status_of_a_program_that_ends(
    supervise: Supervise, tmp_path: Path, wishes: dict[str, object]
) -> None:
    """It has no handlers any more. One is held back for a moment; one that says so gets none at all."""
    patient = tmp_path / "patient.py"
    patient.write_text(_PATIENT)
    if "silent" in wishes:
        job = supervise("run", "--log", "run.log", "--", *counting(**wishes), script=patient)
    else:
        job = supervise(command=counting(**wishes))
    job.wait_for("start 1")

    job.send(signal.SIGUSR1)
    job.wait_for("saved after SIGUSR1")
    job.send(signal.SIGTERM)

    assert job.end() == 85


def test_a_program_that_waits_for_its_step_after_one_signal_is_told_that_it_will_be_killed(
    supervise: Supervise,
) -> None:
    """SIGUSR1 comes long before the limit, SIGTERM at the limit; a program does not wait for its step after that."""
    job = supervise(command=counting(pause_s=20))
    job.wait_for("start 1")

    job.send(signal.SIGUSR1)
    job.wait_for("got SIGUSR1")
    job.send(signal.SIGTERM)

    assert job.end() == 85
    assert job.out.read_text().splitlines()[1:3] == ["got SIGUSR1", "got SIGTERM"]


def test_what_one_that_has_ended_said_does_not_keep_a_signal_from_the_next(supervise: Supervise) -> None:
    said = {"pid": 1 << 23, "run": "/run", "attempt": 1, "step": 1, "durable_step": 1, "total_steps": None}
    beat = json.dumps({**said, "stopping": "SIGUSR1", "from_step": 0})
    script = 'echo "$0" > "$HOLDFAST_BEATS/1-1.json"; "$@"; exit $?'
    job = supervise("--grace", "20", command=["bash", "-c", script, beat, *counting()])
    job.wait_for("start 1")

    job.send(signal.SIGTERM)

    assert job.end() == 85
    assert "saved after SIGTERM" in job.out.read_text()


@pytest.mark.parametrize("odd", ["mkfifo $HOLDFAST_BEATS/0.json", 'echo "$0" > $HOLDFAST_BEATS/0.json'])
def test_beats_that_make_no_sense_hold_nothing_up(supervise: Supervise, odd: str) -> None:
    said = {"pid": math.inf, "run": "/run", "attempt": 1, "step": 10**300, "durable_step": 1, "total_steps": None}
    beat = json.dumps({**said, "stopping": "", "from_step": 0})
    job = supervise(command=["bash", "-c", f'{odd}; "$@"; exit $?', beat, *counting()])
    job.wait_for("start 1")

    job.send(signal.SIGTERM)

    assert job.end() == 85


def test_under_nohup_a_hangup_is_not_heard(supervise: Supervise) -> None:
    job = supervise(command=counting(), preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    job.wait_for("start 1")

    job.send(signal.SIGHUP)
    job.send(signal.SIGTERM)

    assert job.end() == 85
    assert "SIGHUP" not in job.out.read_text() + job.log.read_text()


@pytest.mark.parametrize("how", ["ignored", "blocked"])
def test_a_supervisor_that_was_started_deaf_to_sigterm_hears_it_and_so_does_its_program(
    supervise: Supervise, how: str
) -> None:
    def deafen() -> None:
        if how == "ignored":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        else:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    job = supervise(command=["bash", "-c", "echo ready; exec sleep 1000"], preexec_fn=deafen)
    job.wait_for("ready")

    job.send(signal.SIGTERM)

    assert job.end() == 128 + signal.SIGTERM
    assert job.attempts() == ["killed by SIGTERM, after SIGTERM"]


def test_it_halts_and_goes_on_with_its_program(supervise: Supervise) -> None:
    # Halted by the terminal's signal can only be what has a shell that could wake it.
    job = supervise(command=counting(pause_s=0.01), start_new_session=False, process_group=0)
    job.wait_for("start 1")
    program = int((job.folder / "pid").read_text())

    job.send(signal.SIGTSTP)
    _wait_for_state(program, "T")
    _wait_for_state(job.process.pid, "T")
    job.send(signal.SIGCONT)
    _wait_for_state(program, "RSD")

    job.send(signal.SIGTERM)
    assert job.end() == 85


def test_what_a_program_leaves_behind_is_ended(supervise: Supervise) -> None:
    mark = f"20{os.getpid()}"
    job = supervise("--grace", "0.2", command=["bash", "-c", f"setsid sleep {mark} & exit 0"])

    assert job.end() == 0
    assert left_of(mark) == []


def test_what_a_program_leaves_behind_may_end_by_itself(supervise: Supervise) -> None:
    script = "(read; echo finished > late.txt) < fifo & exit 0"
    folder_made = "mkfifo fifo; " + script
    job = supervise(command=["bash", "-c", folder_made])
    job.wait_for("waits for what it has left behind", job.log)

    with open(job.folder / "fifo", "w") as fifo:
        fifo.write("go on\n")

    assert job.end() == 0
    assert (job.folder / "late.txt").read_text() == "finished\n"


def _wait_for_number(mark: str, number: int) -> None:
    """Until so many processes have it on their command line."""
    deadline_s = time.monotonic() + DEADLINE_S
    while len(found := left_of(mark)) != number:
        assert time.monotonic() < deadline_s, found
        time.sleep(0.01)


def _wait_for_state(pid: int, states: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while (found := Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]) not in states:
        assert time.monotonic() < deadline_s, found
        time.sleep(0.01)
