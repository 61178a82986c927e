"""Real trainings in processes of their own, and a look at what is left of them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import holdfast

DEADLINE_S = 60  # for what takes a second; the machine may be busy
PATH = os.pathsep.join([str(Path(__file__).parents[2]), str(Path(holdfast.__file__).parents[1])])
_PRELUDE = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
import holdfast
from holdfast import Checkpointer
from tests.background.rig import agents_of, arenas, until, use_root
use_root(Path(sys.argv[2]))
RUN, ROOT = Path(sys.argv[1]), Path(sys.argv[2])
def say(*words):
    print(*words, flush=True)
def hear():
    return sys.stdin.readline()
"""


def use_root(root: Path) -> None:
    """Have arenas of this process made below that directory, and a busy machine not taken for one that hangs.

    And every overlapped snapshot written while it is copied, as large ones are that somebody waits for.
    """
    from holdfast.agent import background
    from holdfast.engine.outcome import PendingCheckpoint
    from holdfast.tiers import arena, finding

    arena.DEFAULT_ROOT = finding.DEFAULT_ROOT = root
    background._PATIENCE_S = 60.0
    background._LEAST_AHEAD_BYTES = 1
    PendingCheckpoint.is_awaited = True


class Program:
    """A program that says and hears lines; killed at the end of the test, if it is still there."""

    def __init__(self, code: str, run: Path, root: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PRELUDE + code, str(run), str(root)],
            env={**os.environ, "PYTHONPATH": PATH, "HOLDFAST_BACKGROUND": "process"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)  # with its forked children, which have our end of the pipe
        except ProcessLookupError:
            pass
        self._process.communicate()

    def hear(self, word: str) -> list[str]:
        """The rest of the next line, which begins with that word."""
        line = self._process.stdout.readline()
        found, _, rest = line.partition(" ")
        assert found.strip() == word, (line, "" if line else self._process.stderr.read())
        return rest.split()

    def say(self, line: str = "") -> None:
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def kill(self, number: int = signal.SIGKILL) -> None:
        self._process.send_signal(number)
        if number == signal.SIGKILL:
            self._process.wait(DEADLINE_S)

    def end(self) -> tuple[int, str, str]:
        """Its status, and what it said to the end on both streams."""
        out, err = self._process.communicate(timeout=DEADLINE_S)
        return self._process.returncode, out, err


def run_program(code: str, run: Path, root: Path) -> str:
    """What it said; it must end well."""
    with Program(code, run, root) as program:
        status, out, err = program.end()
    assert status == 0, err
    return out


def agents_of(pid: int) -> list[int]:
    """The agents among the children of a process."""
    # Not from /proc/PID/task/*/children, which may leave some out while others come and go.
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and b"holdfast.agent" in command_of(int(entry.name)):
            try:
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if int(parent) == pid:
                found.append(int(entry.name))
    return found


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def arenas(root: Path) -> list[Path]:
    """The directories of arenas below the root."""
    return sorted(root.glob("holdfast-*/*"))


def events(run: Path, kind: str = "") -> list[dict[str, object]]:
    lines = (run / "journal.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [event for event in found if kind in ("", event["event"])]


def steps(run: Path) -> list[int]:
    """Of the checkpoints on the disk, in order."""
    return sorted(int(path.parent.name.partition("-")[0]) for path in run.glob("0*/manifest.json"))


def garbage(run: Path) -> list[str]:
    """Directories of checkpoints that are none."""
    return [path.name for path in run.glob("0*") if path.is_dir() and not (path / "manifest.json").exists()]


def until(condition: Callable[[], object]) -> None:
    """Wait for it; fails where it does not come."""
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s, "it did not come"
        time.sleep(0.002)
