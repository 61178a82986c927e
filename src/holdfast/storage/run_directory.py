"""Opening the directory of a run: what is refused before anything is read or written in it."""

import errno
import os
import re

from holdfast.core.errors import RunError, StorageError, UsageError
from holdfast.storage.files import Files, close_quietly
from holdfast.storage.translate import translate

__all__ = ["open_run_directory"]

_MODE = 0o700
_OTHERS_WRITE = 0o002
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # a Path has made one slash of two
_GROUP_OR_OTHERS_WRITE = 0o022
# A run may be a mount point in a directory of another kind (autofs, a read-only image) that cannot be synced.
_SYNC_UNSUPPORTED = (errno.EINVAL, errno.EROFS, errno.ENOTSUP)


def open_run_directory(path: str, *, create: bool, readonly: bool, files: Files) -> int:
    """A descriptor of the directory, made with its parents if `create`; RunError where it cannot be trusted or used.

    Whoever can write in a run can forge its checkpoints: to write, it must be ours alone. Others' runs may be read,
    unless everybody can write there.
    """
    if not path or "\0" in path:
        raise UsageError(f"{path!r} is not a path", hint="give the path of a directory for the run")
    # Made as directories of these names, on the disk of one node, they would be taken for what they look like (I8).
    if _URL.match(path):
        raise UsageError(
            f"{path!r} is a URL, and a run is a directory", hint="mount the storage, or copy the run there"
        )
    if path.startswith("~"):
        raise UsageError(
            f"{path!r}: only a shell takes ~ for a home directory",
            hint="os.path.expanduser(...) does it in Python; ./~ is a directory of that name",
        )
    try:
        descriptor = _open_or_make(path, files) if create and not readonly else files.open_root(path)
    except FileNotFoundError as error:
        raise RunError(
            f"{path}: there is no such directory", hint="check the path and the working directory"
        ) from error
    except OSError as error:
        raise _run_error(error, path) from error
    try:
        _check(path, descriptor, readonly=readonly, files=files)
    except BaseException:
        close_quietly(files, descriptor)
        raise
    return descriptor


def _open_or_make(path: str, files: Files) -> int:
    """Open the directory; make it, and what is missing above it, each one durable before the next."""
    try:
        descriptor = files.open_root(path)
    except FileNotFoundError:
        if _split(path)[0] == path:
            raise  # the working directory itself was removed
        return _make(path, files)
    try:
        _sync_parent(path, files)
    except BaseException:
        close_quietly(files, descriptor)
        raise
    return descriptor


def _make(path: str, files: Files) -> int:
    above, name = _split(path)
    parent = _open_or_make(above, files)
    try:
        try:
            files.make_dir(parent, name, _MODE)
        except FileExistsError:
            pass  # another process was faster
        files.sync_dir(parent)
    finally:
        close_quietly(files, parent)  # it was only looked at and synced: nothing can be lost
    return files.open_root(path)


def _sync_parent(path: str, files: Files) -> None:
    """A directory that was just made by hand, or by another process, may not be on disk yet (I5)."""
    try:
        parent = files.open_root(_split(path)[0])
    except PermissionError:
        return  # not ours to read, so not made just now
    try:
        files.sync_dir(parent)
    except OSError as error:
        if error.errno not in _SYNC_UNSUPPORTED:
            raise
    finally:
        close_quietly(files, parent)  # it was only looked at and synced: nothing can be lost


def _check(path: str, descriptor: int, *, readonly: bool, files: Files) -> None:
    try:
        info = files.info(descriptor)
        may_write = readonly or files.is_writable(descriptor)
    except OSError as error:
        raise _run_error(error, path) from error
    refused_bits = _OTHERS_WRITE if readonly else _GROUP_OR_OTHERS_WRITE
    if info.mode & refused_bits:
        raise RunError(
            f"{path}: others may write there (mode {info.mode:04o}), so its checkpoints could be forged",
            hint=f"chmod go-w {path}, or choose a directory of its own for the run",
        )
    if readonly:
        return
    if info.uid != os.geteuid():
        raise RunError(
            f"{path}: belongs to user {info.uid}, not to user {os.geteuid()}",
            hint="choose a directory of your own; holdfast cp copies a run that you may read",
        )
    if not may_write and info.mode & _MODE == _MODE:
        raise RunError(
            f"{path}: cannot be written, though its mode ({info.mode:04o}) allows it: a read-only mount",
            hint=f"findmnt -T {path} shows the mount; after a disk error Linux remounts by itself, see dmesg",
        )
    if not may_write:
        raise RunError(f"{path}: cannot be written (mode {info.mode:04o})", hint=f"chmod u+rwx {path}")


def _split(path: str) -> tuple[str, str]:
    above, name = os.path.split(path.rstrip("/") or "/")
    return above or ".", name or "."


def _run_error(error: OSError, path: str) -> RunError:
    if error.errno == errno.ENOTDIR:
        return RunError(f"{path}: is not a directory, or a part of the path is a file", hint="choose another path")
    found = translate(error, "opening", path)
    hint = found.hint if isinstance(found, StorageError) else ""
    return RunError(found.message, hint=hint or "check the path and its permissions with ls -ld")
