"""From what was typed to an open run. Light: `holdfast ls` starts with this."""

import os
from types import TracebackType

from holdfast.core.errors import IntegrityError, UsageError, printable
from holdfast.core.light_typing import NamedTuple
from holdfast.core.names import MARKER_NAME, parse_checkpoint_id
from holdfast.engine.catalog import Catalog, read_catalog
from holdfast.engine.identity import identify
from holdfast.storage.posix import PosixStore

__all__ = ["Place", "Run", "find_runs", "hint_at_verify", "parse_place"]


class Place(NamedTuple):
    """A run, and perhaps a checkpoint of it."""

    run: str
    which: str | None


class Run:
    """An open run. Reading somebody else's is fine; `writable` takes one's own."""

    def __init__(self, path: str, *, writable: bool = False) -> None:
        self.path = path
        self.is_writable = writable
        self.store = PosixStore(path, readonly=not writable)
        try:
            self.run_id = identify(self.store)
        except BaseException:
            self.store.close()
            raise

    def catalog(self) -> Catalog:
        """What it holds now."""
        return read_catalog(self.store, self.run_id)

    def __enter__(self) -> "Run":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.store.close()
        if isinstance(error, IntegrityError):
            hint_at_verify(error, self.path)


def hint_at_verify(error: IntegrityError, *paths: str) -> None:
    """Let the error name the command that says what is intact, to be pasted, unless it has a hint already."""
    if not error.hint:
        from shlex import quote  # not loaded for a listing

        commands = " and ".join(f"`holdfast verify {quote(path)} --all`" for path in paths)
        say = "says" if len(paths) == 1 else "say"
        error.hint = printable(f"{commands} {say} what is intact; restore() takes the newest of these")


def parse_place(text: str) -> Place:
    """`RUN`, `RUN:WHICH`, or the directory of a checkpoint inside of its run."""
    plain = text.rstrip("/") or text
    parent, name = os.path.split(plain)
    if parse_checkpoint_id(name) and os.path.isdir(plain):
        return Place(parent or ".", name)
    if os.path.exists(plain):
        return Place(plain, None)
    run, colon, which = plain.rpartition(":")
    if colon and not run:
        raise UsageError(f"{text!r} names no run", hint="give RUN or RUN:WHICH")
    return Place(run, which) if colon and which and "/" not in which else Place(plain, None)


def find_runs(directory: str, *, depth: int = 3) -> list[str]:
    """The runs below the directory, sorted by path; runs are not looked into, links not followed."""
    found = []
    try:
        with os.scandir(directory) as entries:
            below = sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []
    for path in below:
        if os.path.lexists(os.path.join(path, MARKER_NAME)):
            found.append(path)
        elif depth > 1 and not os.path.basename(path).startswith("."):
            found += find_runs(path, depth=depth - 1)
    return found
