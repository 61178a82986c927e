"""On the way out: all is saved, and the program ends with the status that asks for a restart, whatever comes meanwhile.

That may take long: a program has things of its own to end. A signal that comes once more, as those of schedulers and
launchers do, would kill it, were it not heard; and what hangs would keep it until it is killed. Either way its status
would be lost, and with it the restart.
"""

import atexit
import contextlib
import math
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable

from holdfast.engine.last_call import LastCall
from holdfast.engine.signals import Signals

__all__ = ["depart", "departing_status", "forget_departed"]

_HANDED_OVER_S = 1.0
"""Python has dropped the exception that ends the program by then, and begun to end it."""

GraceOf = Callable[[int], tuple[float | None, float | None]]


class _Ticket:
    """Goes with the exception that ends the program: is gone when somebody has caught that, and goes on."""


class _Departing:
    """Hears signals, and ends a program that does not end by itself."""

    def __init__(
        self, status: int, ticket: _Ticket, end: Callable[[], None], *, grace_of: GraceOf, left_s: float
    ) -> None:
        self.status = status
        self._end = end
        self._grace_of = grace_of
        self._end_s = time.monotonic() + left_s
        self._told_s = math.inf
        self._dropped_s = math.inf
        self._is_caught = False
        self._ticket = weakref.ref(ticket, self._note_dropped)
        self._last_call = LastCall(self._left_s, lambda: 0.0, self._end_if_leaving)
        self._last_call.start()

    def takes(self, number: int) -> bool:
        del number
        return self.is_leaving()

    def stops(self, number: int) -> bool:
        del number
        return True

    def hear(self, number: int) -> None:
        graces_s = [grace_s for grace_s in self._grace_of(number) if grace_s is not None]
        self._told_s = min(self._told_s, time.monotonic() + min(graces_s, default=math.inf))
        self._last_call.look_again()

    def heard(self, number: int) -> None:
        pass

    def is_leaving(self) -> bool:
        """Whether it was not caught on its way."""
        is_under_way = self._ticket() is not None or time.monotonic() < self._dropped_s + _HANDED_OVER_S
        if not is_under_way and not _is_main_over():
            self._is_caught = True  # for good: the program will end some day, and with a status of its own
        return not self._is_caught

    def _note_dropped(self, _: object) -> None:
        self._dropped_s = time.monotonic()

    def _left_s(self) -> float | None:
        if not self.is_leaving():
            self._last_call.close()
            return None
        # While the program's own lines still run, only a signal that came since can end it: it would have before, too.
        end_s = min(self._told_s, self._end_s) if _is_main_over() else self._told_s
        return None if end_s == math.inf else end_s - time.monotonic()

    def _end_if_leaving(self) -> bool:
        if self.is_leaving():
            self._end()
        return False


def depart(
    status: int, end: Callable[[], None], *, numbers: Iterable[int], grace_of: GraceOf, left_s: float
) -> SystemExit:
    """What to raise; who catches it has the signals back that were there before.

    `end` is called in another thread where the program has not ended when the time is over.
    """
    departure, ticket = SystemExit(status), _Ticket()
    departure.__dict__["ticket"] = ticket
    departing = _Departing(status, ticket, end, grace_of=grace_of, left_s=left_s)
    # Who presses Ctrl-C once more does not want to wait.
    signals = Signals([number for number in numbers if number != signal.SIGINT], departing)
    signals.join()
    _under_way.append((departing, signals))
    return departure


def forget_departed() -> None:
    """Those whose end was caught: the program goes on."""
    for one in [one for one in _under_way if not one[0].is_leaving()]:
        _under_way.remove(one)
        one[1].close()


def departing_status() -> int | None:
    """The status that asks for a restart, where the program is on its way out with it.

    Or was a moment ago: one that has caught its end, and ends right after that, cannot be told from it.
    """
    return next((departing.status for departing, _ in _under_way if departing.is_leaving()), None)


_under_way: list[tuple[_Departing, Signals]] = []


def _is_main_over() -> bool:
    """Python waits for other threads, and calls what was registered for the end."""
    return not threading.main_thread().is_alive()


def _at_exit() -> None:
    leaving = [signals for departing, signals in _under_way if departing.is_leaving()]
    for signals in leaving:
        signals.silence()
    if leaving:
        for stream in (sys.stdout, sys.stderr):
            _flush_or_drop(stream)


def _flush_or_drop(stream: object) -> None:
    """Where nobody reads it any more, Python would end with a status that says so."""
    try:
        stream.flush()  # type: ignore[attr-defined]
    except (OSError, ValueError, AttributeError):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())  # type: ignore[attr-defined]
            os.close(nowhere)


atexit.register(_at_exit)
