"""What a program finds: its input, descriptors, environment and signals as without a supervisor; and process 1."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.supervising.conftest import DEADLINE_S, Supervise, counting


def test_the_input_is_the_programs(supervise: Supervise) -> None:
    job = supervise(command=["cat"], stdin=subprocess.PIPE)
    assert job.process.stdin is not None

    job.process.stdin.write(b"typed\n")
    job.process.stdin.close()

    assert job.end() == 0
    assert job.out.read_text() == "typed\n"


def test_descriptors_of_the_shell_reach_the_program(supervise: Supervise, tmp_path: Path) -> None:
    with open(tmp_path / "third", "wb") as third:
        os.set_inheritable(third.fileno(), True)

        job = supervise(command=["bash", "-c", f"echo here >&{third.fileno()}"], close_fds=False)

        assert job.end() == 0
    assert (tmp_path / "third").read_text() == "here\n"


def test_closed_streams_are_closed_for_the_program_and_nothing_of_ours_takes_their_place(tmp_path: Path) -> None:
    look = "ls /proc/$$/fd > theirs; for n in 0 1 2; do readlink /proc/$PPID/fd/$n >> ours; done"
    command = [sys.executable, "-m", "holdfast", "run", "--", "bash", "-c", look]

    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], cwd=tmp_path, timeout=DEADLINE_S, check=False
    )

    assert done.returncode == 0
    assert not {"0", "2"} & set((tmp_path / "theirs").read_text().split())
    assert (tmp_path / "ours").read_text().split() == [os.devnull] * 3


def test_the_program_has_the_signals_it_would_have_without_a_supervisor(supervise: Supervise) -> None:
    show = ["grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"]

    job = supervise(command=show)

    assert job.end() == 0
    alone = subprocess.run(show, capture_output=True, text=True, check=True).stdout
    assert _signals(job.out.read_text()) == _signals(alone)


def test_the_environment_is_the_users_and_what_it_is_told(supervise: Supervise) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG"))}

    job = supervise("--grace", "90s", command=["env"], env=environment)

    assert job.end() == 0
    found = dict(line.split("=", 1) for line in job.out.read_text().splitlines() if "=" in line)
    told = {name: found.pop(name) for name in ("HOLDFAST_BEATS", "HOLDFAST_RESTARTS", "HOLDFAST_GRACE")}
    assert (told["HOLDFAST_RESTARTS"], told["HOLDFAST_GRACE"]) == ("0", "90")
    assert not os.path.exists(told["HOLDFAST_BEATS"])  # it goes with the supervisor
    assert "LC_CTYPE" not in found
    assert {name: found.get(name) for name in environment if "\n" not in environment[name]} == {
        name: value for name, value in environment.items() if "\n" not in value
    }


def test_without_a_grace_the_program_goes_by_its_own(supervise: Supervise) -> None:
    job = supervise(command=["env"])

    assert job.end() == 0
    assert "HOLDFAST_GRACE" not in job.out.read_text()


def test_an_error_stream_that_nobody_reads_holds_up_neither_signals_nor_the_end(supervise: Supervise) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)

    job = supervise(command=counting(), stderr=writing)
    job.wait_for("start 1")
    job.send(signal.SIGTERM)

    assert job.end() == 85
    os.close(reading)
    os.close(writing)


def test_an_error_stream_whose_reader_is_gone_is_no_reason_to_end(supervise: Supervise) -> None:
    reading, writing = os.pipe()
    os.close(reading)

    job = supervise("--backoff", "0", command=counting(steps=10, crash_at=5, starts=[1]), stderr=writing)

    os.close(writing)
    assert job.end() == 0


def test_as_process_1_it_reaps_orphans_and_passes_signals_on(supervise: Supervise, pid_namespace: list[str]) -> None:
    # Each of these is orphaned at once, and ends later: only process 1 can reap it.
    orphans = "for n in 1 2 3 4 5; do (sleep 0.1 &) ; done"
    script = f'{orphans}; "$@" | cat; exit ${{PIPESTATUS[0]}}'
    command = [*pid_namespace, sys.executable, "-m", "holdfast", "run", "--", "bash", "-c", script, "bash", *counting()]
    with open("/dev/null", "rb") as nothing:
        job = supervise("--on-85", "exit", command=command, stdin=nothing)
    job.wait_for("start 1")
    (namespace,) = (pid for pid in _children_of(job.process.pid) if b"unshare" in _command_line(pid))
    (inner,) = _children_of(namespace)

    _wait_until_no_zombies_below(inner)
    os.kill(inner, signal.SIGTERM)

    assert job.end() == 85
    assert "saved after SIGTERM" in job.out.read_text()


def test_process_1_ends_with_the_status_of_its_program(supervise: Supervise, pid_namespace: list[str]) -> None:
    inner = [sys.executable, "-m", "holdfast", "run", "--max-crashes", "1", "--", "bash", "-c", "exit 7"]

    job = supervise("--max-crashes", "1", command=[*pid_namespace, *inner])

    assert job.end() == 7


@pytest.fixture
def pid_namespace() -> list[str]:
    """The command that makes what follows process 1 of a namespace of its own."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        reason = f"no namespace of processes can be had here: {tried.stderr.strip()}"
        assert not os.environ.get("CI"), reason
        pytest.skip(reason)
    return command


def _signals(status: str) -> list[int]:
    """The sets of signals; 32 and 33 are the C library's own affair."""
    return [int(line.split()[1], 16) & 0x7FFFFFFF for line in status.splitlines()]


def _command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def _children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""  # it was reaped since it was listed


def _wait_until_no_zombies_below(pid: int) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while "sleep" in (found := " ".join(_state_of(child) for child in _children_of(pid))):
        assert time.monotonic() < deadline_s, found
        time.sleep(0.01)
