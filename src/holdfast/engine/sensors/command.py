"""A command that is asked now and then: started at one look, its answer taken at a later one, never waited for long."""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from typing import IO, NamedTuple

from holdfast.core.clock import Clock

__all__ = ["Answer", "Command"]

_WAIT_S = 0.3
_PATIENCE_S = 30.0
_MOST_BYTES = 1 << 20


class Answer(NamedTuple):
    """What a command said."""

    status: int
    output: str


class Command:
    """Runs one command line at a time, at most every so often."""

    def __init__(self, program: str, *, every_s: float, clock: Clock) -> None:
        self.path = shutil.which(program)
        """Where the program is; None where it is not."""
        self.every_s = every_s
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._began_s: float | None = None

    @property
    def is_running(self) -> bool:
        """Whether its answer is awaited."""
        return self._process is not None

    def ask(self, arguments: Sequence[str]) -> Answer | None:
        """Start it with these arguments where it is time to, and give its answer once it has ended; else None."""
        now_s = self._clock.monotonic_s()
        if self._process is None:
            if self._began_s is not None and now_s - self._began_s < self.every_s:
                return None
            self._start(arguments)
            self._began_s = now_s
        process = self._process
        if process is None or self._began_s is None:
            return None
        try:
            process.wait(_WAIT_S)
        except subprocess.TimeoutExpired:
            if now_s - self._began_s > _PATIENCE_S:
                self.stop()
                raise TimeoutError(f"{self.path} has not answered within {_PATIENCE_S:g} s") from None
            return None
        self._process = None
        return Answer(process.returncode, self._take_output())

    def stop(self) -> None:
        """End what is still running."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            try:
                process.wait(_WAIT_S)
            except subprocess.TimeoutExpired:
                pass  # it hangs in a driver; the system collects it when that lets go
            self._take_output()

    def _start(self, arguments: Sequence[str]) -> None:
        if self.path is None:
            return
        # Not a pipe: nobody has to empty it meanwhile.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  closed when the answer is taken
        self._process = subprocess.Popen(  # noqa: S603  a program of the system, with arguments of our own
            [self.path, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _take_output(self) -> str:
        assert self._output is not None
        with self._output as output:
            output.seek(0)
            return output.read(_MOST_BYTES).decode(errors="replace")
