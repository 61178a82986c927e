"""On a terminal: Ctrl-C comes once, Ctrl-Z halts, a line at the bottom shows how far it is and goes again."""

import fcntl
import os
import re
import select
import shlex
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.supervising.conftest import DEADLINE_S, Supervise, Supervised, counting

_REGION = "\x1b[1;23r"
_GIVEN_BACK = "\x1b[r"


class Terminal:
    """What somebody in front of it types and sees."""

    def __init__(self) -> None:
        self.ours, self.theirs = os.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def wait_for(self, text: str) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while text not in self.seen:
            assert time.monotonic() < deadline_s, f"{text!r} does not come: {self.seen!r}"
            if select.select([self.ours], [], [], 0.1)[0]:
                self.seen += os.read(self.ours, 65536).decode(errors="replace")

    def popen(self) -> dict[str, object]:
        """For a process whose terminal it is, in the foreground."""
        return {
            "stdin": self.theirs,
            "stdout": self.theirs,
            "stderr": self.theirs,
            "start_new_session": True,
            "preexec_fn": lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        }


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm")
    made = Terminal()
    yield made
    os.close(made.ours)
    os.close(made.theirs)


def end(job: Supervised, terminal: Terminal) -> int:
    """Its status; what it still says is read, since a terminal holds only so much."""
    deadline_s = time.monotonic() + DEADLINE_S
    while job.process.poll() is None or select.select([terminal.ours], [], [], 0)[0]:
        assert time.monotonic() < deadline_s
        if select.select([terminal.ours], [], [], 0.05)[0]:
            terminal.seen += os.read(terminal.ours, 65536).decode(errors="replace")
    return job.end()


def test_ctrl_c_comes_to_the_program_once(supervise: Supervise, terminal: Terminal) -> None:
    # Steps that are long enough for a second one to be seen.
    job = supervise(command=counting(pause_s=0.5), **terminal.popen())
    terminal.wait_for("start 1")

    terminal.type("\x03")

    assert end(job, terminal) == 85
    assert terminal.seen.count("got SIGINT") == 1
    assert any(line.startswith("SIGINT has reached ") for line in job.lines())


def test_a_program_in_a_session_of_its_own_gets_ctrl_c_from_us(supervise: Supervise, terminal: Terminal) -> None:
    job = supervise(command=["setsid", "--wait", *counting()], **terminal.popen())
    terminal.wait_for("start 1")

    terminal.type("\x03")

    # setsid itself is in the foreground, and ends by it as it would alone; the program is not left behind.
    assert end(job, terminal) in (85, 130)
    assert "saved after" in terminal.seen


def test_the_line_at_the_bottom_shows_how_far_it_is_and_is_given_back(supervise: Supervise, terminal: Terminal) -> None:
    job = supervise(command=counting(steps=300, pause_s=0.01), **terminal.popen())
    terminal.wait_for("of 300")

    assert end(job, terminal) == 0

    assert re.search(r"\x1b\[24;1H\x1b\[2K\x1b\[2mholdfast: attempt 1  step \d+ of 300", terminal.seen)
    assert terminal.seen.rindex(_GIVEN_BACK) > terminal.seen.rindex(_REGION)
    # Every change of the line leaves the cursor where it was.
    assert terminal.seen.count("\x1b7") == terminal.seen.count("\x1b8") >= 2


def test_a_line_of_ours_begins_a_new_one_where_the_program_has_not_ended_its_own(
    supervise: Supervise, terminal: Terminal
) -> None:
    job = supervise(command=["bash", "-c", "printf unfinished"], **terminal.popen())

    assert end(job, terminal) == 0

    # As many blanks as the terminal is wide lead to the next line, wherever the cursor was.
    assert "unfinished" + " " * 80 + "\r" in terminal.seen


@pytest.mark.parametrize("option", ["--plain", "--quiet", "--json"])
def test_those_who_want_no_such_line_have_none(supervise: Supervise, terminal: Terminal, option: str) -> None:
    job = supervise(option, command=counting(steps=150, pause_s=0.01), **terminal.popen())

    assert end(job, terminal) == 0

    assert _REGION not in terminal.seen


def test_a_terminal_that_is_dumb_has_none(
    supervise: Supervise, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")

    job = supervise(command=counting(steps=150, pause_s=0.01), **terminal.popen())

    assert end(job, terminal) == 0
    assert "\x1b" not in terminal.seen


def test_the_line_tells_of_the_next_attempt_before_its_first_step(supervise: Supervise, terminal: Terminal) -> None:
    crashing = shlex.join(counting(crash_at=30, pause_s=0.1))
    command = ["bash", "-c", f'[ "$HOLDFAST_RESTARTS" = 0 ] || exec sleep 600; {crashing}']
    job = supervise(command=command, **terminal.popen())
    terminal.wait_for("again in")

    terminal.wait_for("holdfast: attempt 2")

    terminal.type("\x03")
    assert end(job, terminal) == 130


def test_ctrl_z_and_fg_in_a_shell(tmp_path: Path, terminal: Terminal) -> None:
    shell = subprocess.Popen(["bash", "--norc", "-i"], cwd=tmp_path, **terminal.popen())  # type: ignore[call-overload]
    words = " ".join(f"'{word}'" for word in counting(pause_s=0.01))
    terminal.type(f"{sys.executable} -m holdfast run -- {words}\n")
    terminal.wait_for("start 1")

    terminal.type("\x1a")
    terminal.wait_for("Stopped")
    terminal.type("echo a$((1+1))b; fg\n")
    terminal.wait_for("a2b")
    terminal.seen = ""
    terminal.wait_for("steps/s")  # it goes on
    terminal.type("\x03")
    terminal.wait_for("saved after SIGINT")
    terminal.wait_for("has more to do")
    terminal.type("echo status $?; exit\n")

    terminal.wait_for("status 85")
    shell.wait(DEADLINE_S)
