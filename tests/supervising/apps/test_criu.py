"""A real CRIU, and a program that counts and knows nothing of checkpoints."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.core.errors import UsageError
from holdfast.supervising.app import App
from holdfast.supervising.apps import criu_process, find_app
from tests.background.rig import until
from tests.supervising.apps.driving import attempt
from tests.supervising.test_terminal import Terminal

pytestmark = pytest.mark.slow

COUNT = """\
import sys, time
with open("counted.txt", "a") as file:
    for number in range(int(sys.argv[1])):
        print(number, file=file, flush=True)
        time.sleep(0.02)
print("counted")
sys.exit(int(sys.argv[2]))
"""
_DEADLINE_S = 120.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "count.py").write_text(COUNT)
    return folder


def counting(folder: Path, *, up_to: int = 150, status: int = 0) -> App:
    command = [sys.executable, "count.py", str(up_to), str(status)]
    return find_app("criu", command, run=str(folder / "kept"), folder=str(folder), restart_status=85)


def counted(folder: Path) -> list[int]:
    path = folder / "counted.txt"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_program_that_was_stopped_and_one_that_was_killed_count_on_without_a_gap(
    folder: Path, criu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CRIU_EVERY", "0.5 s")

    def stop_past_20(pid: int) -> bool:
        return len(counted(folder)) > 20 and app.ask_to_stop(pid)

    def kill_past_90(pid: int) -> bool:
        if len(counted(folder)) <= 90 or app.look(pid) in (None, began):
            return False
        os.killpg(os.getpgid(children(pid)[0]), signal.SIGKILL)
        return True

    app = counting(folder, up_to=500)
    stopped = attempt(app, folder, meanwhile=stop_past_20)
    app.close()
    began = stopped.step
    app = counting(folder, up_to=500)
    killed = attempt(app, folder, meanwhile=kill_past_90)
    at_kill = len(counted(folder))
    ended = attempt(app, folder)
    app.close()

    assert (stopped.outcome, stopped.status) == ("again", 85)
    assert (killed.outcome, killed.status) == ("failed", 137)
    assert (ended.outcome, ended.status) == ("done", 0)
    assert at_kill < 500
    assert counted(folder) == list(range(500))
    assert (folder / "output.txt").read_text() == "counted\n"


def test_the_status_of_a_restored_program_is_its_own(folder: Path, criu: Path) -> None:
    app = counting(folder, up_to=60, status=3)

    attempt(app, folder, meanwhile=lambda pid: len(counted(folder)) > 10 and app.ask_to_stop(pid))
    ended = attempt(app, folder)
    app.close()

    assert (ended.outcome, ended.status) == ("failed", 3)
    assert counted(folder) == list(range(60))


def test_a_program_that_cannot_be_dumped_runs_on_and_the_reason_is_said(
    folder: Path, criu: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOLDFAST_CRIU_EVERY", "0.5 s")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connected = COUNT.replace(
            "import sys", f"import socket; s = socket.create_connection(('127.0.0.1', {port}))\nimport sys"
        )
        (folder / "count.py").write_text(connected)
        app = counting(folder, up_to=400)

        def is_refused_twice(pid: int) -> bool:
            return len(caplog.messages) > 2 and not app.ask_to_stop(pid)

        ended = attempt(app, folder, meanwhile=is_refused_twice)
        app.close()

    assert (ended.outcome, ended.status, ended.step) == ("done", 0, None)
    assert counted(folder) == list(range(400))
    assert "CRIU cannot dump process" in caplog.text


def test_a_program_that_criu_cannot_bring_back_has_failed_with_what_criu_says(folder: Path, criu: Path) -> None:
    (folder / "input.txt").write_text("what it reads")
    (folder / "count.py").write_text(f"reading = open('input.txt')\n{COUNT}")
    app = counting(folder)
    attempt(app, folder, meanwhile=lambda pid: len(counted(folder)) > 10 and app.ask_to_stop(pid))
    (folder / "input.txt").unlink()

    ended = attempt(app, folder)
    app.close()

    assert (ended.outcome, ended.status) == ("failed", 79)
    assert "CRIU could not bring it back" in ended.why
    assert "Error" in ended.why


def test_ctrl_c_has_a_restored_program_dumped_as_it_has_one_that_was_started(folder: Path, criu: Path) -> None:
    ours = [sys.executable, "-m", "holdfast", "run", "--plain", "--app", "criu", "--run", "kept", "--on-85", "exit"]
    statuses = []

    for past in (20, 100):
        terminal = Terminal()
        run = subprocess.Popen(  # type: ignore[call-overload]
            [*ours, "--", sys.executable, "count.py", "5000", "0"], cwd=folder, **terminal.popen()
        )
        until(lambda past=past: len(counted(folder)) > past)
        terminal.type("\x03")
        statuses.append(run.wait(_DEADLINE_S))
        os.close(terminal.ours)
        os.close(terminal.theirs)

    assert statuses == [85, 85]
    assert "KeyboardInterrupt" not in (folder / "output.txt").read_text()


def test_a_program_hears_all_signals_that_it_would_hear_alone(folder: Path) -> None:
    waiter = [sys.executable, "-m", criu_process.__name__, "start", str(folder / "output.txt")]

    subprocess.run([*waiter, "grep", "SigIgn", "/proc/self/status"], check=True, start_new_session=True)

    ignored = int((folder / "output.txt").read_text().split()[1], 16)
    assert not ignored >> (signal.SIGPIPE - 1) & 1
    assert not ignored >> (signal.SIGXFSZ - 1) & 1


def test_a_criu_that_is_not_there_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CRIU", str(folder / "nowhere"))

    with pytest.raises(UsageError, match="there is no"):
        counting(folder)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
