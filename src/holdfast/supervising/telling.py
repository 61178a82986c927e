"""Tells what happens: on the error stream, and in a log; as text, or as JSON for programs."""

import json
import os
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from holdfast.core.clock import Clock, utc_text
from holdfast.core.errors import StorageError, printable
from holdfast.supervising.live_line import LiveLine
from holdfast.supervising.writing import Writer

__all__ = ["Teller", "Telling"]

_FLUSH_S = 2.0
_PROGRESS_S = 60.0
_ERRORS = 2

Fields = Mapping[str, object]
"""The same for programs, beside the text."""
_NONE: Fields = MappingProxyType({})


class Telling(Protocol):
    """What the supervisor needs of it."""

    def tell(self, event: str, text: str, *, matters: bool = False, fields: Fields = _NONE) -> None:
        """One line; `matters` where also those want it who want no lines. Without a text it is for programs only."""

    def show(self, text: str, fields: Fields = _NONE) -> None:
        """How far it is; called every second."""

    def hide(self) -> None:
        """There is nothing to show."""


class Teller:
    """On the error stream of this process."""

    def __init__(
        self, *, log: str | None, as_json: bool, quiet: bool, plain: bool, unicode: bool, clock: Clock
    ) -> None:
        self._as_json, self._quiet, self._unicode = as_json, quiet, unicode
        self._clock = clock
        self._errors = Writer(_ERRORS)
        self._file = Writer(_opened(log)) if log is not None else None
        is_terminal = os.isatty(_ERRORS) and os.environ.get("TERM", "dumb") != "dumb"
        self._terminal = LiveLine(_ERRORS, self._errors) if is_terminal and not as_json else None
        self._is_live = not quiet and not plain
        self._shown_s = clock.monotonic_s()
        self._shown = ""

    def tell(self, event: str, text: str, *, matters: bool = False, fields: Fields = _NONE) -> None:
        if not text and not self._as_json:
            return
        now_s = self._clock.utc_s()
        if self._as_json:
            line = json.dumps({"event": event, "time": utc_text(now_s), "text": text, **fields}, allow_nan=False)
        else:
            line = self._printable(text)
        if self._file is not None:
            stamp = "" if self._as_json else time.strftime("%Y-%m-%d %H:%M:%S  ", time.localtime(now_s))
            self._file.write(f"{stamp}{line}\n")
        if self._quiet and not matters:
            return
        mark = "" if self._as_json else "holdfast: "
        if self._terminal is not None:
            self._terminal.line(f"{mark}{line}")
        else:
            self._errors.write(f"{mark}{line}\n")

    def show(self, text: str, fields: Fields = _NONE) -> None:
        if self._terminal is not None and self._is_live:
            self._terminal.show(self._printable(f"holdfast: {text}"))
        elif self._clock.monotonic_s() - self._shown_s >= _PROGRESS_S and text != self._shown:
            self._shown_s, self._shown = self._clock.monotonic_s(), text
            self.tell("progress", text, fields=fields)

    def hide(self) -> None:
        """Before the terminal is somebody else's."""
        if self._terminal is not None:
            self._terminal.clear()
            self._errors.flush(_FLUSH_S)

    def close(self) -> None:
        """Give the terminal back, and see that all was written."""
        self.hide()
        for writer in (self._errors, self._file):
            if writer is not None:
                writer.flush(_FLUSH_S)

    def _printable(self, text: str) -> str:
        words = printable(text)
        return words if self._unicode else words.replace("→", "->").encode("ascii", "replace").decode()


def _opened(path: str) -> int:
    try:
        # Without waiting, should it be a FIFO.
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    except OSError as error:
        raise StorageError(f"--log {path}: {error.strerror}", hint="name a file that can be written") from error
