"""What can go wrong with a single call, and in which calls."""

import errno
import os
import signal
from typing import NamedTuple

from holdfast.testing.faulty_files import CHANGING_METHODS, READING_METHODS, Fault, When

__all__ = ["FAULTS", "FaultKind"]

_WRITES = frozenset({"write_at", "append"})
_SYNCS = frozenset({"sync", "sync_dir"})
_CLOSE = frozenset({"close"})
_REMOVALS = frozenset({"unlink", "remove_dir"})
_LOCKS = frozenset({"lock", "unlock", "lock_is_taken"})
_READS = READING_METHODS - _LOCKS - {"is_cached_at", "is_writable", "space"}
_ALL = CHANGING_METHODS | READING_METHODS | _CLOSE


class FaultKind(NamedTuple):
    """One way to fail; `at(n)` is the fault of call number n."""

    name: str
    methods: frozenset[str]
    error: int = 0
    short: bool = False
    kill: str = ""
    lasting: bool = False

    def at(self, number: int) -> Fault:
        return Fault(
            number,
            error=self.error,
            short=self.short,
            action=_die if self.kill else None,
            when=self.kill or When.BEFORE,
            lasting=self.lasting,
            methods=self.methods,
        )

    def __str__(self) -> str:
        return f"{self.name}{' from then on' if self.lasting else ''}"


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


_PASSING = [
    FaultKind("ENOSPC", (CHANGING_METHODS | _CLOSE) - _REMOVALS, errno.ENOSPC),
    FaultKind("EDQUOT", (CHANGING_METHODS | _CLOSE) - _REMOVALS, errno.EDQUOT),
    FaultKind("EIO on change", CHANGING_METHODS - _SYNCS, errno.EIO),
    FaultKind("EIO on fsync", _SYNCS, errno.EIO),
    FaultKind("EIO on close", _CLOSE, errno.EIO),
    FaultKind("EIO on read", _READS, errno.EIO),
    FaultKind("ESTALE", _ALL - _LOCKS, errno.ESTALE),
    FaultKind("EINTR", _WRITES | _READS | _SYNCS, errno.EINTR),
    FaultKind("ENOLCK", _LOCKS, errno.ENOLCK),
    FaultKind("short write", _WRITES, short=True),
    FaultKind("short read", frozenset({"read_at"}), short=True),
]

FAULTS = [
    FaultKind("SIGKILL before", _ALL, kill=When.BEFORE),
    FaultKind("SIGKILL within", _WRITES, kill=When.MIDDLE),
    FaultKind("SIGKILL after", CHANGING_METHODS - _WRITES, kill=When.AFTER),
    *_PASSING,
    *(kind._replace(lasting=True) for kind in _PASSING),
    FaultKind("EROFS", CHANGING_METHODS, errno.EROFS, lasting=True),
]
