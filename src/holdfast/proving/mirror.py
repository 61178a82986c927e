"""A working directory of its own for a program: what it reads is there, what it writes stays there.

Directories are made anew, small files are copied, the rest are links to the user's files.
"""

import os
import shutil
import time

from holdfast.core.names import MARKER_NAME

__all__ = ["mirror"]

_COPIED_BYTES = 1 << 20
_ALL_COPIED_BYTES = 64 << 20
_ENTRIES = 5000
"""Beyond this, directories are links, and what the program writes in there is refused."""
_LIMIT_S = 10.0
"""Likewise beyond this."""
_DEPTH = 8
_LINKED = (".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", ".cache")
_CODE = (".py", ".so", ".pyc")


class _Spent:
    """What was made so far, and on which file system."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.entries = 0
        self.copied_bytes = 0
        self._ends_s = time.monotonic() + _LIMIT_S

    @property
    def is_enough(self) -> bool:
        """Whether the rest is to be links."""
        return self.entries > _ENTRIES or time.monotonic() > self._ends_s


def mirror(origin: str, target: str, *, without: str = "") -> None:
    """Make the target look like the directory, which stays as it is.

    Runs are left out: the program's checkpoints go elsewhere while it is proven, and it must not find older ones. So is
    `without`, where the target itself lies. Other file systems are links: /proc is one, and a server may be slow.
    """
    os.makedirs(target)
    _fill(origin, target, _Spent(os.stat(origin).st_dev), without=without, depth=0)


def _fill(origin: str, target: str, spent: _Spent, *, without: str, depth: int) -> None:
    try:
        with os.scandir(origin) as entries:
            found = sorted(entries, key=lambda entry: (_is_directory(entry), entry.name))
    except OSError:
        return
    for entry in found:
        spent.entries += 1
        try:
            _make(entry, os.path.join(target, entry.name), spent, without=without, depth=depth)
        except OSError:
            continue  # what cannot be looked at is not there; all else is


def _make(entry: "os.DirEntry[str]", place: str, spent: _Spent, *, without: str, depth: int) -> None:
    status = entry.stat(follow_symlinks=False)
    if _is_directory(entry):
        if os.path.lexists(os.path.join(entry.path, MARKER_NAME)) or os.path.realpath(entry.path) == without:
            return
        is_linked = entry.name in _LINKED or depth > _DEPTH or spent.is_enough or status.st_dev != spent.device
        if not is_linked:
            os.mkdir(place)
            _fill(entry.path, place, spent, without=without, depth=depth + 1)
            return
    elif status.st_dev == spent.device and _copy(entry, place, spent):
        return
    os.symlink(entry.path, place)


def _is_directory(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _copy(entry: "os.DirEntry[str]", place: str, spent: _Spent) -> bool:
    """Whether it could be, and is small enough: a program may want to append to its log."""
    try:
        size_bytes = entry.stat(follow_symlinks=False).st_size
        if not entry.is_file(follow_symlinks=False) or entry.name.endswith(_CODE) or size_bytes > _COPIED_BYTES:
            return False
        if spent.is_enough or spent.copied_bytes + size_bytes > _ALL_COPIED_BYTES:
            return False
        shutil.copy2(entry.path, place)
    except OSError:
        return False
    spent.copied_bytes += size_bytes
    return True
