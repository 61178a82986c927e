"""Parts of the rig that run in a process of their own, and what they found."""

import json
import signal
import subprocess
import sys
import tempfile
from types import TracebackType

__all__ = ["Beside"]


class Beside:
    """`python -m tests.crash` with some arguments, beside this process; ended with the block if it still runs."""

    def __init__(self, arguments: list[str]) -> None:
        # A file, not a pipe: nobody reads before the end, and a full pipe would stop it.
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the block
        self._process = subprocess.Popen([sys.executable, "-m", "tests.crash", *arguments], stdout=self._said)

    def __enter__(self) -> "Beside":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)  # what it has mounted, it has to take away
            self._process.wait()
        self._said.close()

    def wait(self) -> dict[str, int]:
        """Its counts, when it has ended; what it said above them is printed. An end without counts is a violation."""
        status = self._process.wait()
        self._said.seek(0)
        *said, last = self._said.read().splitlines() or [""]
        try:
            found = {str(name): int(count) for name, count in json.loads(last).items()}
        except (ValueError, AttributeError):
            said, found = [*said, last, f"the parts beside the others ended with status {status}"], {"violations": 1}
        print("\n".join(said), flush=True)
        return found
