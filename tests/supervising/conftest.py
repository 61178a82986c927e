"""`holdfast run` as a process of its own, and programs for it; whatever a test leaves running is killed."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.proving.processes import end_marked
from tests.measured import measured

PROGRAM = Path(__file__).parent / "counting_program.py"
DEADLINE_S = 60.0


class Supervised:
    """One `holdfast run`, in a directory of its own."""

    def __init__(self, folder: Path, arguments: list[str], **popen: Any) -> None:
        self.folder = folder
        self.out, self.err, self.log = folder / "out.txt", folder / "err.txt", folder / "run.log"
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, *measured(), *arguments],
                cwd=folder,
                **{"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err, **popen},
            )

    def wait_for(self, text: str, path: Path | None = None) -> str:
        """Until it is in what the program has printed, or in another file; the file's text."""
        where = path or self.out
        deadline_s = time.monotonic() + DEADLINE_S
        while text not in (found := where.read_text() if where.exists() else ""):
            assert time.monotonic() < deadline_s, f"{text!r} does not come\n{found}\n{self.err.read_text()}"
            time.sleep(0.01)
        return found

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Its status, when it has ended."""
        return self.process.wait(DEADLINE_S)

    def lines(self) -> list[str]:
        """What it has logged, without the times."""
        return [line.split("  ", 1)[1] for line in self.log.read_text().splitlines()]

    def attempts(self) -> list[str]:
        """How each attempt has ended, and what came next."""
        return [line.rsplit("  ", 1)[1] for line in self.lines() if line.startswith("attempt ")]


Supervise = Callable[..., Supervised]


@pytest.fixture
def supervise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervise]:
    """`supervise("--grace", "1", command=[…])`; each call works in a directory of its own.

    With a `script`, that is run instead of `holdfast run`.
    """
    mark = f"HOLDFAST_TEST_OF_RUN={secrets.token_hex(8)}"
    monkeypatch.setenv(*mark.split("="))
    for name in ("SLURM_JOB_ID", "_CONDOR_JOB_AD", "HOLDFAST_JOB"):
        monkeypatch.delenv(name, raising=False)
    started: list[Supervised] = []

    def start(*options: str, command: Sequence[str] = (), script: Path | None = None, **popen: Any) -> Supervised:
        folder = tmp_path / f"job-{len(started)}"
        folder.mkdir()
        ours = ["-m", "holdfast", "run", "--log", "run.log", *options, "--", *command]
        started.append(Supervised(folder, ours if script is None else [str(script), *options], **popen))
        return started[-1]

    yield start

    end_marked(mark.encode())
    for one in started:
        one.process.wait(DEADLINE_S)


def counting(**wishes: object) -> list[str]:
    """The command of a program that counts steps and tells them; see counting_program.py."""
    return [sys.executable, str(PROGRAM), json.dumps(wishes)]


def left_of(mark: str) -> list[int]:
    """The processes whose command line has the text."""
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
        try:
            if mark.encode() in Path(f"/proc/{pid}/cmdline").read_bytes() and pid != os.getpid():
                found.append(pid)
        except OSError:
            continue
    return found
