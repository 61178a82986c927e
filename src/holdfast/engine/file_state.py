"""Files of a program that cannot be changed, as a checkpoint like any other: digests, retention, catalogue.

Each is copied before it is read: whoever writes it may go on, and what is saved is what the copy holds.
"""

import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.core.errors import BlobExistsError, FormatError, StateError, UsageError
from holdfast.core.values import Checkpoint
from holdfast.engine.laying import lay_out_state
from holdfast.engine.loading import Source, load_tree
from holdfast.engine.saving import Document, save_in_foreground
from holdfast.engine.session import Session
from holdfast.engine.whole_file import whole_file
from holdfast.format.encode import encode_state
from holdfast.policy.keep import Keep
from holdfast.storage.translate import Boundary

__all__ = ["FILES_NAME", "SavedFile", "files_of", "put_files", "restore_files", "save_files"]

FILES_NAME = "files"
"""The entry of the state that holds them."""
_TRIES = 5
_COPY_BYTES = 16 << 20


class SavedFile(NamedTuple):
    """One file, as a checkpoint holds it."""

    data: npt.NDArray[np.uint8]
    mode: int
    mtime_ns: int


def save_files(
    session: Session, folder: str, names: Iterable[str], document: Document, keep: Keep, *, growing: Iterable[str] = ()
) -> Checkpoint:
    """The files of the folder as a durable checkpoint; they are copied in that order.

    StateError where one is missing, is no ordinary file, or they are never still together while they are copied; those
    that are `growing` need not be. Nothing is written then.
    """
    wanted, grows = list(names), set(growing)
    if not wanted:
        raise UsageError("there are no files to save", hint="name at least one")
    for name in wanted:
        _check_name(name)
    made: list[Checkpoint] = []
    for _ in range(_TRIES):
        with ExitStack() as copies:
            state: dict[str, dict[str, object]] = {}
            seen: dict[str, os.stat_result] = {}
            for name in wanted:
                data, seen[name] = copies.enter_context(
                    _copied(os.path.join(folder, name), name, may_grow=name in grows)
                )
                state[name] = {
                    "data": data,
                    "mode": stat.S_IMODE(seen[name].st_mode),
                    "mtime_ns": seen[name].st_mtime_ns,
                }
            # Each is whole; that they belong together shows only once the last one is copied.
            if not all(_is_still(os.path.join(folder, name), seen[name]) for name in wanted if name not in grows):
                continue
            laid = lay_out_state(encode_state({FILES_NAME: state}))
            save_in_foreground(session, laid, document, keep, made.append)
            return made[0]
    raise StateError(
        f"{', '.join(wanted)}: they change while they are copied, {_TRIES} times in a row",
        hint="checkpoint when the program has written them, or say which of them only grow",
    )


def restore_files(source: Source, checkpoint_id: str, folder: str, *, replace: bool = True) -> list[str]:
    """Put the files of a checkpoint into the folder, each whole or not at all; their names. All are verified first.

    BlobExistsError where one is there already and they are not to be replaced; nothing is written then.
    """
    files = files_of(load_tree(source, checkpoint_id, arrays="numpy"), checkpoint_id)
    taken = [name for name in files if not replace and os.path.lexists(os.path.join(folder, name))]
    if taken:
        raise BlobExistsError(
            f"{folder}: {', '.join(taken[:5])} exists already", hint="choose another directory, or --force to replace"
        )
    put_files(files, folder)
    return list(files)


def files_of(tree: object, checkpoint_id: str) -> dict[str, SavedFile]:
    """The files in the tree of a checkpoint, by their names; FormatError where it holds something else."""
    files = tree.get(FILES_NAME) if isinstance(tree, Mapping) else None
    if not isinstance(files, Mapping) or not files:
        raise FormatError(f"{checkpoint_id} is not a checkpoint of files", hint="holdfast show says what it holds")
    found = {}
    for name, entry in files.items():
        _check_name(name)
        found[name] = _saved_file(entry, f"{checkpoint_id}: file {name!r}")
    return found


def _saved_file(entry: object, where: str) -> SavedFile:
    if isinstance(entry, Mapping):
        data, mode, mtime_ns = (entry.get(field) for field in ("data", "mode", "mtime_ns"))
        if isinstance(data, np.ndarray) and data.dtype == np.uint8 and type(mode) is int and type(mtime_ns) is int:
            return SavedFile(data.reshape(-1), mode, mtime_ns)
    raise FormatError(f"{where} is malformed")


def put_files(files: Mapping[str, SavedFile], folder: str) -> None:
    """Write them into the folder, the last one first: what the others belong to is there when they are."""
    root = os.path.realpath(folder)
    for name in reversed(list(files)):
        path = os.path.join(folder, name)
        with Boundary("writing", path):
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        # I10: nor by a link that somebody has put there.
        if os.path.commonpath([root, os.path.realpath(os.path.dirname(path) or ".")]) != root:
            raise FormatError(f"{path}: a link leads out of {folder}", hint="remove the link, or choose another folder")
        _put(path, files[name])


def _put(path: str, saved: SavedFile) -> None:
    with whole_file(path, replace=True) as file:
        for begin in range(0, saved.data.size, _COPY_BYTES):
            file.write(saved.data[begin : begin + _COPY_BYTES].data)
        os.fchmod(file.fileno(), saved.mode & 0o777)
        file.flush()
        os.utime(file.fileno(), ns=(saved.mtime_ns, saved.mtime_ns))


def _is_still(path: str, seen: os.stat_result) -> bool:
    try:
        now = os.stat(path)
    except OSError:
        return False
    return (now.st_ino, now.st_size, now.st_mtime_ns) == (seen.st_ino, seen.st_size, seen.st_mtime_ns)


def _check_name(name: object) -> None:
    """Names never leave the folder (I10)."""
    if not isinstance(name, str) or not name or "\0" in name:
        raise FormatError(f"{name!r} is not the name of a file")
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or str(path) != name:
        raise FormatError(f"{name!r} is not a plain name inside of the folder", hint="for example out/state.cpt")


@contextmanager
def _copied(path: str, name: str, *, may_grow: bool) -> Iterator[tuple[npt.NDArray[np.uint8], os.stat_result]]:
    """Its bytes, in a file that has no name and goes with the block."""
    with Boundary("reading", path), tempfile.TemporaryFile(dir=os.path.dirname(path) or ".") as copy:
        for _ in range(_TRIES):
            seen = _copy(path, name, copy.fileno(), may_grow=may_grow)
            if seen is not None:
                break
        else:
            raise StateError(
                f"{name} changes while it is copied, {_TRIES} times in a row",
                hint="checkpoint when the program has written it, or say that it only grows",
            )
        size_bytes = os.fstat(copy.fileno()).st_size
        # Of size 0, nothing can be mapped.
        data = np.memmap(copy, np.uint8, "r") if size_bytes else np.empty(0, np.uint8)
        yield np.asarray(data), seen


def _copy(path: str, name: str, target: int, *, may_grow: bool) -> os.stat_result | None:
    """What the file was; None where it changed meanwhile."""
    try:
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise StateError(f"{name} is missing: {path}", hint="has the program written it yet?") from None
    try:
        before = os.fstat(source)
        if not stat.S_ISREG(before.st_mode):
            raise StateError(f"{name} is not an ordinary file: {path}", hint="name the file itself")
        os.ftruncate(target, 0)
        done = 0
        while done < before.st_size:
            block = os.pread(source, min(_COPY_BYTES, before.st_size - done), done)
            if not block:
                return None  # it shrank
            os.pwrite(target, block, done)
            done += len(block)
        after = os.fstat(source)
        if may_grow and after.st_size >= before.st_size:
            return before
        is_same = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
        return before if is_same else None
    finally:
        os.close(source)
