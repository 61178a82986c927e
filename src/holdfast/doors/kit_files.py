"""Plain files that functions of the user write: beside their place, made durable, then put there in one step."""

import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from holdfast.core.errors import StateError
from holdfast.engine.whole_file import whole_file
from holdfast.storage.translate import Boundary

__all__ = [
    "Note",
    "aside",
    "check_written",
    "digest_of",
    "put_in_place",
    "read_note",
    "remove_leftovers",
    "remove_local",
    "set_aside",
    "write_note",
]

_SUFFIX = ".tmp"
_MAX_NOTE_BYTES = 1 << 12


class Note(NamedTuple):
    """What is known of a local file whose run is elsewhere."""

    digest: str
    after: str
    """The digest of what was transferred last when it was made."""


@contextmanager
def aside(file: Path) -> Iterator[Path]:
    """A directory beside the file, to write a new one in under the same name; it goes with the block.

    The same name, since functions look at it: some add an ending where it is not what they expect.
    """
    folder = file.with_name(f".{file.name}.{secrets.token_hex(4)}{_SUFFIX}")
    with Boundary("making", str(folder)):
        folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(file: Path) -> None:
    """Those of processes that were killed in such a block. For the one process that writes the file."""
    own = re.compile(re.escape(f".{file.name}.") + r"[0-9a-f]{8}" + re.escape(_SUFFIX))
    with Boundary("listing", str(file.parent)):
        for entry in os.scandir(file.parent):
            if own.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)


def check_written(file: Path, function: str) -> None:
    """StateError where the user's function did not write an ordinary file there."""
    try:
        kind = os.lstat(file).st_mode
    except FileNotFoundError:
        raise StateError(
            f"{function} wrote nothing to the path that it was given, {file}",
            hint="write to that path, under exactly that name; it is put in its place when it is complete",
        ) from None
    if not stat.S_ISREG(kind):
        raise StateError(f"{function} made something else than an ordinary file: {file}", hint="write one file")


def put_in_place(new: Path, file: Path) -> None:
    """Make it durable, then give it the name: whoever looks finds the old one or the new one, whole."""
    with Boundary("writing", str(file)):
        _sync(new, os.O_RDONLY)
        os.replace(new, file)
        _sync(file.parent, os.O_RDONLY | os.O_DIRECTORY)


def set_aside(file: Path) -> Path:
    """Give a file that must not be used another name, which no other has."""
    number = 1
    while os.path.lexists(other := file.with_name(f"{file.name}.set-aside-{number}")):
        number += 1
    with Boundary("renaming", str(file)):
        os.rename(file, other)
    return other


def write_note(file: Path, note: Note) -> None:
    """Before the file has its name: a crash in between leaves a note that does not fit, which is as good as none."""
    with whole_file(str(_note_of(file)), replace=True) as target:
        target.write(json.dumps(note._asdict()).encode())


def read_note(file: Path) -> Note | None:
    """None where there is none that can be read."""
    try:
        with open(_note_of(file), "rb") as source:
            fields = json.loads(source.read(_MAX_NOTE_BYTES))
        return Note(str(fields["digest"]), str(fields["after"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def remove_local(file: Path) -> None:
    """It has served its purpose."""
    with Boundary("removing", str(file)):
        file.unlink(missing_ok=True)
        _note_of(file).unlink(missing_ok=True)


def digest_of(file: Path) -> str:
    """The BLAKE3 of a file, as `b3sum` prints it."""
    hasher = blake3()
    with Boundary("reading", str(file)):
        hasher.update_mmap(file)
    return hasher.hexdigest()


def _note_of(file: Path) -> Path:
    return file.with_name(f".{file.name}.note")


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
