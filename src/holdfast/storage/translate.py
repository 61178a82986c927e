"""The one place where errors of the system become errors of holdfast."""

import errno
import os
from collections.abc import Callable
from types import TracebackType

from holdfast.core.errors import (
    BlobExistsError,
    BlobMissingError,
    HoldfastError,
    IntegrityError,
    NoSpaceError,
    StorageError,
)
from holdfast.storage.files import FileKind, Info, Space

__all__ = ["Boundary", "check_ordinary", "translate"]

# What the system says when a link, a directory or a device is in the place of a file or of a directory.
_WRONG_KIND = (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.ESPIPE)

_HINTS = {
    errno.EACCES: "check owner and permissions with ls -ld",
    errno.EPERM: "check owner, permissions and attributes (lsattr)",
    errno.EROFS: "the file system is mounted read-only; after a disk error Linux does that by itself, see dmesg",
    errno.EIO: "the device reported an error: see dmesg, and save elsewhere",
    errno.ESTALE: "the file server no longer knows the file or the mount: mount again, or try again",
    errno.EMFILE: "too many open files in this process: raise ulimit -n",
    errno.ENFILE: "too many open files on this machine",
    errno.EFBIG: "the file would be too large: see ulimit -f and the limits of the file system",
    errno.ETIMEDOUT: "the file server did not answer: try again",
    errno.ENODEV: "the device is gone",
}


def translate(error: OSError, doing: str, where: str, *, space: Space | None = None) -> HoldfastError:
    """Our error for the system's: what was being done, on what, and what to do next."""
    number = error.errno
    if number == errno.ENOSPC:
        return _no_space(doing, where, space)
    if number == errno.EDQUOT:
        hint = "the quota is used up, whatever the disk has left: see quota -s, remove checkpoints or ask for more"
        return NoSpaceError(f"{where}: {doing} failed: disk quota exceeded", hint=hint, errno=number)
    if number == errno.ENOENT:
        return BlobMissingError(f"{where}: {doing} failed: it does not exist", errno=number)
    if number == errno.EEXIST:
        return BlobExistsError(
            f"{where}: {doing} failed: it exists already", hint="names are never used again", errno=number
        )
    if number in _WRONG_KIND:
        return _wrong_kind(where, "a link, a directory or something else")
    name = errno.errorcode.get(number, str(number)) if number is not None else "no number"
    text = error.strerror or (os.strerror(number) if number is not None else str(error))
    hint = _HINTS.get(number, "") if number is not None else ""
    return StorageError(f"{where}: {doing} failed: {text} ({name})", hint=hint, errno=number)


def check_ordinary(info: Info, where: str) -> None:
    """IntegrityError where the thing is not an ordinary file: a FIFO or a device is never read."""
    if info.kind != FileKind.FILE:
        raise _wrong_kind(where, "a directory" if info.kind == FileKind.DIRECTORY else "a device, FIFO or socket")


class Boundary:
    """`with Boundary("writing", where):` translates what the system raises inside; our own errors pass."""

    __slots__ = ("_doing", "_space", "_where")

    def __init__(self, doing: str, where: str, *, space: Callable[[], Space] | None = None) -> None:
        self._doing = doing
        self._where = where
        self._space = space

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError) and not isinstance(error, HoldfastError):
            raise translate(error, self._doing, self._where, space=self._ask_space(error)) from error

    def _ask_space(self, error: OSError) -> Space | None:
        if error.errno != errno.ENOSPC or self._space is None:
            return None
        try:
            return self._space()
        except OSError:
            return None  # the message is poorer, the error is the same


def _no_space(doing: str, where: str, space: Space | None) -> NoSpaceError:
    found = "no space left on the file system"
    if space is not None and space.free_inodes == 0:
        found = f"no inodes left on the file system ({space.free_bytes} bytes are free)"
    elif space is not None:
        found = f"no space left on the file system ({space.free_bytes} bytes are free)"
    hint = "remove what is not needed, keep fewer checkpoints (holdfast prune), or save elsewhere"
    return NoSpaceError(f"{where}: {doing} failed: {found}", hint=hint, errno=errno.ENOSPC)


def _wrong_kind(where: str, found: str) -> IntegrityError:
    return IntegrityError(
        f"{where}: {found} is in the place of what holdfast made there",
        hint="look at it with ls -l; it is never followed",
    )
