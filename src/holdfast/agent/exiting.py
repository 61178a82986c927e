"""A program that ends without close(): finish, and tell by the exit status if its last checkpoint failed (I8)."""

import atexit
import logging
import os
import sys
import weakref
from collections.abc import Callable

from holdfast.core.errors import HoldfastError

__all__ = ["EXIT_NOT_DURABLE", "finish_at_exit", "is_finished"]

_log = logging.getLogger("holdfast")

EXIT_NOT_DURABLE = 74
"""EX_IOERR of sysexits.h."""


Finish = Callable[[], None]
"""A method that finishes what is open; HoldfastError where the last checkpoint did not become durable."""

_open: "set[weakref.WeakMethod[Finish]]" = set()


def finish_at_exit(finish: Finish) -> None:
    """Have it called when the interpreter ends, unless `is_finished` is called or its object is gone before."""
    _open.add(weakref.WeakMethod(finish, _open.discard))


def is_finished(finish: Finish) -> None:
    """It was closed."""
    _open.discard(weakref.WeakMethod(finish))


def _finish_all() -> None:
    failures = []
    for reference in list(_open):
        finish = reference()
        try:
            if finish is not None:
                finish()
        except HoldfastError as error:
            failures.append(error)
    if failures:
        for failure in failures:
            _log.error("%s", failure)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                pass
        # The interpreter knows no other way to end with another status from here.
        os._exit(EXIT_NOT_DURABLE)


atexit.register(_finish_all)
