"""What a proof that was killed has left: its processes and its directory, which the next one takes away.

A proof keeps a lock on a file in its directory as long as it lives, whatever ends it. A directory without that file is
one that was kept, and stays.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.engine.evidence import PLAN_VARIABLE
from holdfast.proving.processes import end_marked
from holdfast.proving.running import plan_path

__all__ = ["held", "make_directory", "remove_leftovers"]

_PREFIX = "holdfast-prove-"
_LOCK_NAME = "held"


def make_directory() -> str:
    """A new one for a proof, among temporary files."""
    return tempfile.mkdtemp(prefix=_PREFIX)


@contextmanager
def held(root: str) -> Iterator[None]:
    """While a proof works in the directory."""
    path = os.path.join(root, _LOCK_NAME)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass  # with all the rest
        os.close(descriptor)


def remove_leftovers() -> None:
    """End what still runs of this user's proofs that were killed, and remove their directories."""
    with os.scandir(tempfile.gettempdir()) as entries:
        found = [entry for entry in entries if entry.name.startswith(_PREFIX)]
    for entry in found:
        try:
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and _is_abandoned(entry.path):
                end_marked(f"{PLAN_VARIABLE}={plan_path(os.path.realpath(entry.path))}".encode())
                shutil.rmtree(entry.path, ignore_errors=True)
        except OSError:
            continue


def _is_abandoned(root: str) -> bool:
    try:
        descriptor = os.open(os.path.join(root, _LOCK_NAME), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
