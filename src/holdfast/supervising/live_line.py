"""A line at the bottom of a terminal that stays there while a program writes above it.

The terminal is told to scroll all but its last line. So nothing that the program prints is overwritten, and nothing has
to pass through us; the cursor is put back where it was after each change.
"""

import os
import time

from holdfast.core.errors import printable
from holdfast.supervising.writing import Writer

__all__ = ["LiveLine"]

_LEAST_ROWS = 5
_PERIOD_S = 0.5
_SAVE, _BACK = "\x1b7", "\x1b8"
# One line down and up again: where the cursor is at the bottom, the rest moves up, and the column stays.
_MAKE_ROOM = "\x1bD\x1b[A"
_DIM, _PLAIN = "\x1b[2m", "\x1b[m"


class LiveLine:
    """On the terminal of a descriptor."""

    def __init__(self, descriptor: int, writer: Writer) -> None:
        self._descriptor = descriptor
        self._writer = writer
        self._rows = 0
        self._drawn_s = 0.0

    def show(self, text: str) -> None:
        """Now, if we are in the foreground and the terminal keeps up; not more often than anybody can read."""
        now_s = time.monotonic()
        if now_s - self._drawn_s < _PERIOD_S or not self._writer.is_idle() or not self._is_in_foreground():
            return
        columns, rows = self._size()
        if rows < _LEAST_ROWS:
            return
        room = _MAKE_ROOM if rows != self._rows else ""
        words = printable(text)[: columns - 1]
        self._writer.write(
            f"{room}{_SAVE}\x1b[1;{rows - 1}r\x1b[{rows};1H\x1b[2K{_DIM}{words}{_PLAIN}{_BACK}",
        )
        self._rows, self._drawn_s = rows, now_s

    def clear(self) -> None:
        """Give the line back."""
        if self._rows:
            self._writer.write(f"{_SAVE}\x1b[r\x1b[{self._rows};1H\x1b[2K{_BACK}")
            self._rows = 0

    def line(self, text: str) -> None:
        """A line of its own among what the program prints, also where that has not ended its line."""
        columns, _ = self._size()
        # As many blanks as fit: at the beginning of a line they fill it, elsewhere they end in the next.
        self._writer.write(f"{' ' * columns}\r\x1b[K{text}\n")

    def _size(self) -> tuple[int, int]:
        try:
            size = os.get_terminal_size(self._descriptor)
        except OSError:
            return 80, 0
        return size.columns or 80, size.lines

    def _is_in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self._descriptor) == os.getpgrp()
        except OSError:
            return False
