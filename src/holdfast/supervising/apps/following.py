"""Reads on in the log of a program: the last match of each pattern, and marks that an attempt has left."""

import io
import os
import re
from collections.abc import Iterator, Mapping

__all__ = ["Follower"]

_BLOCK_BYTES = 1 << 20
# A line without an end is cut there.
_MAX_LINE_BYTES = 1 << 16


class Follower:
    """One log. It may be missing, be cut, or be another file the next time."""

    def __init__(
        self, path: str, patterns: Mapping[str, str], *, marks: Mapping[str, str] | None = None, anew: bool = False
    ) -> None:
        """Of the patterns the last match is kept; of the marks it is told whether the attempt made a new one.

        `anew`: each attempt begins the log from nothing; else it is appended to.
        """
        self._path = path
        self._patterns = {name: re.compile(text, re.MULTILINE) for name, text in patterns.items() if text}
        self._marks = {name: re.compile(text, re.MULTILINE) for name, text in (marks or {}).items() if text}
        self._is_anew = anew
        self._last: dict[str, str] = {}
        self._found: set[tuple[str, int, str]] = set()
        self._old: dict[tuple[str, int], str] = {}
        self._offset = 0
        self._inode = 0
        self._left: tuple[int, int, int] | None = None

    def begin(self) -> None:
        """What comes from now on is of a new attempt."""
        self._left = None
        self.read(whole=True)
        # By place and text: a program may cut the log before it goes on, and what stays of it is still old.
        self._old = {(name, place): line for name, place, line in self._found}
        if self._is_anew:
            self._forget()
            self._old.clear()
            self._left = self._look()

    def last(self, name: str) -> str | None:
        """The group of the pattern's last match, or all of it."""
        return self._last.get(name)

    def is_new(self, mark: str) -> bool:
        """Whether this attempt wrote it."""
        return any(name == mark and not self._is_old(name, place, line) for name, place, line in self._found)

    def read(self, *, whole: bool = False, is_torn: bool = True) -> None:
        """Read what is new; or everything, since a program may have cut the file and written on between two looks.

        Of everything, marks in a last line without an end count, too; and numbers, unless that line may be torn.
        """
        if not (self._patterns or self._marks) or (self._left is not None and self._look() == self._left):
            return
        try:
            with open(self._path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
                info = os.fstat(file.fileno())
                if info.st_ino != self._inode or info.st_size < self._offset or whole:
                    self._forget()
                    self._inode = info.st_ino
                is_more = True
                while is_more:
                    file.seek(self._offset)
                    block = file.read(_BLOCK_BYTES)
                    is_more = len(block) == _BLOCK_BYTES
                    end = _end_of_lines(block, is_last=not is_more)
                    has_tail = whole and not is_more
                    self._take_last(block if has_tail and not is_torn else block[:end])
                    self._take_marks(block if has_tail else block[:end])
                    self._offset += end
        except OSError:
            self._forget()

    def _forget(self) -> None:
        self._last.clear()
        self._found.clear()
        self._offset = self._inode = 0

    def _look(self) -> tuple[int, int, int] | None:
        try:
            info = os.stat(self._path)
        except OSError:
            return None
        return info.st_ino, info.st_size, info.st_mtime_ns

    def _is_old(self, name: str, place: int, line: str) -> bool:
        """A line that had no end may have been written on by this attempt."""
        before = self._old.get((name, place))
        return before is not None and line.startswith(before)

    def _take_last(self, block: bytes) -> None:
        text = block.decode(errors="replace")
        # The whole block first, which is fast, and says no to most of them.
        for name, pattern in self._patterns.items():
            if pattern.search(text):
                found = next(filter(None, map(pattern.search, reversed(text.split("\n")))), None)
                if found is not None:
                    self._last[name] = found[1] if pattern.groups else found[0]

    def _take_marks(self, block: bytes) -> None:
        text = block.decode(errors="replace")
        for name, pattern in self._marks.items():
            if pattern.search(text):
                self._found |= set(self._marks_in(text, name, pattern))

    def _marks_in(self, text: str, name: str, pattern: re.Pattern[str]) -> Iterator[tuple[str, int, str]]:
        """Line by line, as above, so that `\\s` does not reach into the next one; each with its end."""
        place = self._offset
        for line in io.StringIO(text, newline="\n"):
            if pattern.search(line.removesuffix("\n")):
                yield name, place, line
            place += len(line.encode(errors="replace"))


def _end_of_lines(block: bytes, *, is_last: bool) -> int:
    """Behind the last whole one."""
    end = block.rfind(b"\n") + 1
    return len(block) if end == 0 and (not is_last or len(block) > _MAX_LINE_BYTES) else end
