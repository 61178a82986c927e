"""Signs of life: where a supervisor asks for them, a program says four times a second which step it has reached.

One small file for each process, replaced as a whole; by its name a supervisor also knows which process to ask to stop.
"""

import contextlib
import json
import os
import threading
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["BEATS_VARIABLE", "Beat", "Beats", "read_beats"]

BEATS_VARIABLE = "HOLDFAST_BEATS"
"""The directory of a supervisor that wants to know."""
_PERIOD_S = 0.25
_MAX_BYTES = 1 << 16
_MAX_NUMBER = 1 << 62


class Beat(NamedTuple):
    """What a process said last."""

    pid: int
    run: str
    """Its absolute path."""
    attempt: int
    step: int
    durable_step: int | None
    total_steps: int | None
    stopping: str
    """Why it is about to end, with the status that asks for a restart; empty where it is not."""
    from_step: int = 0
    """The step that it has gone on from."""


class Beats:
    """Of one Checkpointer. Without a directory in the environment it does nothing."""

    def __init__(self, folder: str | None, say: Callable[[], Beat | None]) -> None:
        """`say` is called in a thread of its own; None where there is nobody left to say it of."""
        self._folder = folder
        self._say = say
        self._last: Beat | None = None
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._folder:
            self.tell()
            self._thread = threading.Thread(target=self._beat, name="holdfast-beats", daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads
                self._thread.start()

    def close(self) -> None:
        """Say the last."""
        if self._folder and not self._is_closed.is_set():
            self._is_closed.set()
            self.tell()

    def tell(self) -> bool:
        """Now, and not only in a second. Whether there is somebody left."""
        if not self._folder:
            return True
        beat = self._say()
        if beat is None or beat == self._last:
            return beat is not None
        path = os.path.join(self._folder, f"{os.getpid()}-{beat.attempt}.json")
        temporary = f"{path}.{threading.get_ident()}.tmp"
        with contextlib.suppress(OSError):  # the supervisor is gone, or its disk is full: not the program's affair (I7)
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(beat._asdict(), file)
            os.replace(temporary, path)
            self._last = beat
        return True

    def _beat(self) -> None:
        while not self._is_closed.wait(_PERIOD_S) and self.tell():
            pass


def read_beats(folder: str) -> list[Beat]:
    """What all processes said last; what cannot be read is left out."""
    found = []
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    except OSError:
        return []
    for name in names:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            # Without waiting, should it be a FIFO.
            with open(os.path.join(folder, name), "rb", opener=_open_at_once) as file:
                fields = json.loads(file.read(_MAX_BYTES))
            found.append(
                Beat(
                    _number(fields["pid"]),
                    str(fields["run"]),
                    _number(fields["attempt"]),
                    _number(fields["step"]),
                    _number_or_none(fields["durable_step"]),
                    _number_or_none(fields["total_steps"]),
                    str(fields["stopping"]),
                    _number(fields["from_step"]),
                )
            )
    return found


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _number(value: object) -> int:
    """ValueError where it is none that a program could have counted to."""
    if type(value) is not int or not 0 <= value < _MAX_NUMBER:
        raise ValueError(value)
    return value


def _number_or_none(value: object) -> int | None:
    return None if value is None else _number(value)
