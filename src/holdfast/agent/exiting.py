"""A program that ends without close(): finish, and tell by the exit status if its last checkpoint failed (I8)."""

import atexit
import logging
import os
import sys
import weakref
from collections.abc import Callable
from typing import NoReturn

from holdfast.core.errors import FencedError, HoldfastError

__all__ = ["EXIT_NOT_DURABLE", "finish_at_exit", "is_finished", "restart_after_error"]

_log = logging.getLogger("holdfast")

EXIT_NOT_DURABLE = 74
"""EX_IOERR of sysexits.h."""
_INTERRUPTED = 130


Finish = Callable[[], None]
"""A method that finishes what is open; HoldfastError where the last checkpoint did not become durable."""

_open: "set[weakref.WeakMethod[Finish]]" = set()


def finish_at_exit(finish: Finish) -> None:
    """Have it called when the interpreter ends, unless `is_finished` is called or its object is gone before."""
    _open.add(weakref.WeakMethod(finish, _open.discard))


def is_finished(finish: Finish) -> None:
    """It was closed."""
    _open.discard(weakref.WeakMethod(finish))


_restart: list[int] = []


def restart_after_error(status: int) -> None:
    """Should an exception that nobody catches end the program, it ends with that status.

    For one that was asked to stop, and came to no step any more: the signal that asked it went to all processes of the
    job, as a rule, and what it made of them is no fault of the program.
    """
    _restart.append(status)


def _finish_all() -> None:
    failures = []
    for reference in list(_open):
        finish = reference()
        try:
            if finish is not None:
                finish()
        except KeyboardInterrupt:
            _log.error("interrupted while it waited for the last checkpoint, which may not be durable")
            _end(_INTERRUPTED)
        except HoldfastError as error:
            failures.append(str(error))
        except Exception as error:  # noqa: BLE001  Python would print it, and end with 0
            failures.append(f"{type(error).__name__} while the run was closed: {error}")
    if failures:
        for failure in failures:
            _log.error("%s", failure)
        _end(EXIT_NOT_DURABLE)
    raised = getattr(sys, "last_type", None)
    # Who was replaced does not want to come back.
    if _restart and raised is not None and issubclass(raised, Exception) and not issubclass(raised, FencedError):
        _log.warning(
            "%s came after the program was asked to stop: status %d asks for a restart", raised.__name__, _restart[-1]
        )
        _end(_restart[-1])


def _end(status: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
    # The interpreter knows no other way to end with another status from here.
    os._exit(status)


atexit.register(_finish_all)
