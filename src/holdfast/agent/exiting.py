"""What a program does not close: finish it, and tell by the exit status if its last checkpoint failed (I8)."""

import _thread
import atexit
import logging
import os
import sys
import weakref
from collections.abc import Callable
from typing import NoReturn

from holdfast.core.errors import FencedError, HoldfastError
from holdfast.engine.departing import departing_status

__all__ = [
    "EXIT_NOT_DURABLE",
    "finish_at_exit",
    "finish_dropped",
    "is_finished",
    "restart_after_error",
    "wait_for_dropped",
]

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


_dropped: "dict[_thread.LockType, Finish]" = {}
"""What was let go, with a lock that is held until it is finished."""
_failures: list[str] = []
"""What has failed, and the end of the program is to tell."""
# Both are the parent's, and nobody in a child would ever release the locks.
os.register_at_fork(after_in_child=_dropped.clear)
os.register_at_fork(after_in_child=_failures.clear)


def finish_dropped(finish: Finish) -> None:
    """Nobody can close it any more: have it finished while the program goes on.

    Called while an object is collected, which may be anywhere in any thread: no lock is taken here, and nothing is
    waited for.
    """
    is_done = _thread.allocate_lock()
    is_done.acquire()
    _dropped[is_done] = finish

    def work() -> None:
        nonlocal finish
        try:
            _failures.extend(_finish_one(finish))
        finally:
            del _dropped[is_done], finish  # whoever has waited for it finds its object gone
            is_done.release()

    try:
        _thread.start_new_thread(work, ())  # not by a Thread: that takes a lock that may be held here
    except RuntimeError:
        is_done.release()  # no more threads: it is kept, and finished at the end


def wait_for_dropped(timeout_s: float = -1) -> None:
    """Until what was let go is finished, or has been waited for that long."""
    for is_done in list(_dropped):
        if is_done.acquire(timeout=timeout_s):
            is_done.release()


_restart: list[int] = []


def restart_after_error(status: int) -> None:
    """Should an exception that nobody catches end the program, it ends with that status.

    For one that was asked to stop, and came to no step any more: the signal that asked it went to all processes of the
    job, as a rule, and what it made of them is no fault of the program.
    """
    _restart.append(status)


def _finish_all() -> None:
    try:
        wait_for_dropped()
        failures = _failures + [
            failure
            for finish in [*_dropped.values(), *(reference() for reference in list(_open))]
            if finish is not None
            for failure in _finish_one(finish)
        ]
    except KeyboardInterrupt:
        _log.error("interrupted while it waited for the last checkpoint, which may not be durable")
        _end(_INTERRUPTED)
    raised = getattr(sys, "last_type", None)
    is_replaced = raised is not None and issubclass(raised, FencedError)  # and does not want to come back
    if failures:
        for failure in failures:
            _log.error("%s", failure)
        # One that is stopped says that it is not done (I8), and wants to come back. Said here, for one that has caught
        # its end would come to a status of its own.
        status = None if is_replaced else departing_status()
        _end(EXIT_NOT_DURABLE if status is None else status)
    if _restart and raised is not None and issubclass(raised, Exception) and not is_replaced:
        _log.warning(
            "%s came after the program was asked to stop: status %d asks for a restart", raised.__name__, _restart[-1]
        )
        _end(_restart[-1])


def _finish_one(finish: Finish) -> list[str]:
    """What is wrong with its last checkpoint, if anything is."""
    try:
        finish()
    except HoldfastError as error:
        return [str(error)]
    except Exception as error:  # noqa: BLE001  Python would print it, and end with 0
        return [f"{type(error).__name__} while the run was closed: {error}"]
    return []


def _end(status: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
    # The interpreter knows no other way to end with another status from here.
    os._exit(status)


atexit.register(_finish_all)
