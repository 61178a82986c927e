"""Scripts of users, as processes of their own: started, waited for by what they print, sent signals."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue

from tests.measured import measured

__all__ = ["Ended", "Script", "run", "started", "write_counter"]

DEADLINE_S = 60.0

_COUNTER = """\
import signal
import sys
from pathlib import Path
from holdfast.doors.kit import Checkpointer

checkpointer = Checkpointer(
    local_checkpoint_file=Path("checkpoint.txt"),
    checkpoint_function=lambda path, value: path.write_text(str(value)),
    restore_function=lambda path: int(path.read_text()),
    checkpoint_every=3,
    {options}
)
start = checkpointer.restore(0)
print("starts at", start, flush=True)
for i in range(start, start + int(sys.argv[1])):
    checkpointer.step(i)
print("counted", flush=True)
for line in sys.stdin:
    checkpointer.step(int(line))
    print("stepped", flush=True)
print("done", flush=True)
"""
"""Counts that many steps, then one for each line that it is given: nothing happens by chance."""


def write_counter(folder: Path, options: str = "", before: str = "") -> list[str]:
    """Put it there, with more options for the Checkpointer, and lines before it; the command that starts it."""
    (folder / "count.py").write_text(before + _COUNTER.replace("{options}", options))
    return ["python", "count.py"]


class Ended:
    """How a script ended."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status = status
        self.out = out
        self.err = err


class Script:
    """One that runs."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._lines: Queue[str | None] = Queue()
        self._said: list[str] = []
        self._errors: list[str] = []
        self._readers = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for reader in self._readers:
            reader.start()

    def wait_for(self, text: str) -> None:
        """Until it prints a line with that; AssertionError where it ends, or says nothing for long."""
        while True:
            try:
                line = self._lines.get(timeout=DEADLINE_S)
            except Empty:
                raise AssertionError(f"{text!r} was not printed: {self._said}") from None
            assert line is not None, f"it ended without {text!r}: {self._said}\n{''.join(self._errors)}"
            if text in line:
                return

    @property
    def pid(self) -> int:
        return self._process.pid

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> Ended:
        """Wait for its end, and for that of all that hold its output."""
        status = self._process.wait(DEADLINE_S)
        for reader in self._readers:
            reader.join(DEADLINE_S)
        return Ended(status, "".join(self._said), "".join(self._errors))

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self.end()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.append(line)
            self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)


@contextmanager
def started(folder: Path, command: list[str], environ: Mapping[str, str] | None = None) -> Iterator[Script]:
    """A command in that folder; `python` is this one."""
    first = [sys.executable, *measured()] if command[0] == "python" and command[1] != "-c" else command[:1]
    # So that `python3` of a shell script is this one, too.
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    process = subprocess.Popen(
        [*first, *command[1:]],
        cwd=folder,
        env={**os.environ, "PATH": path, **(environ or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    script = Script(process)
    try:
        yield script
    finally:
        script.close()


def run(folder: Path, command: list[str], environ: Mapping[str, str] | None = None) -> Ended:
    """From its start to its end, without input."""
    with started(folder, command, environ) as script:
        assert script._process.stdin is not None
        script._process.stdin.close()
        return script.end()
