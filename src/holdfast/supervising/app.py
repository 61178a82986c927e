"""What a supervisor has to know of a program that does not know holdfast: how it is started, asked and saved."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

__all__ = ["App", "Ending", "Plain"]

Outcome = Literal["done", "again", "failed"]


class Ending(NamedTuple):
    """How an attempt ended, in the eyes of the app."""

    outcome: Outcome
    status: int
    """The supervisor's own, should this be the end: 128 + n after signal n."""
    step: int | None = None
    """How far it came, where that is known."""
    why: str = ""
    from_step: int | None = None
    """Where it began, where the app knows; else it is the first step that was seen."""


class App(Protocol):
    """One kind of program. All is called in the supervisor's main thread."""

    def begin(self) -> Sequence[str]:
        """Make ready for the next attempt, for example bring the files of the last checkpoint back; its command."""

    def look(self, pid: int) -> int | None:
        """From time to time while it runs: save what is new. How far it is, where that is known."""

    def ask_to_stop(self, pid: int) -> bool:
        """Have the program save and end; False where the supervisor should relay the signal that it got."""

    def end(self, status: int) -> Ending:
        """It has ended with that status, 128 + n after signal n; save what is new."""

    def close(self) -> None:
        """Let go of the run."""


class Plain:
    """A program that does all that by itself: with holdfast, or not at all."""

    def __init__(self, command: Sequence[str], *, restart_status: int) -> None:
        self._command = command
        self._restart_status = restart_status

    def begin(self) -> Sequence[str]:
        return self._command

    def look(self, pid: int) -> int | None:
        del pid
        return None

    def ask_to_stop(self, pid: int) -> bool:
        del pid
        return False

    def end(self, status: int) -> Ending:
        if status == 0:
            return Ending("done", 0)
        return Ending("again" if status == self._restart_status else "failed", status)

    def close(self) -> None:
        pass
