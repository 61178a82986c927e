"""A file outside of any run that appears whole, durably and in one step, or not at all."""

import os
import secrets
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from holdfast.core.errors import BlobExistsError, BlobMissingError
from holdfast.storage.translate import Boundary

__all__ = ["whole_file"]


@contextmanager
def whole_file(path: str, *, replace: bool) -> Iterator[IO[bytes]]:
    """A file to write; its name appears when the block ends without an error. BlobExistsError where it is taken."""
    folder, name = os.path.split(path)
    folder = folder or "."
    if not os.path.lexists(folder):
        raise BlobMissingError(f"{path}: there is no directory {folder}", hint=f"mkdir -p {shlex.quote(folder)}")
    if not replace and os.path.lexists(path):
        raise _taken(path)
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(4)}.tmp")
    with Boundary("writing", path):
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with open(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if replace:
                os.rename(temporary, path)
            else:
                _rename_to_new(temporary, path)
        except BaseException:
            _remove(temporary)
            raise
        _sync(folder)


def _rename_to_new(temporary: str, path: str) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise _taken(path) from None
    except OSError:  # no hard links here: the check at the start has to do
        os.rename(temporary, path)
        return
    os.unlink(temporary)


def _taken(path: str) -> BlobExistsError:
    return BlobExistsError(f"{path} exists already", hint="choose another name, or --force to replace it")


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _sync(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
