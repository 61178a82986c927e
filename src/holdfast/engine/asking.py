"""A question that is asked again and again in a thread of its own, so that nobody waits for the answer."""

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from holdfast.core.clock import Clock

__all__ = ["Asking"]

_log = logging.getLogger("holdfast")

T = TypeVar("T")

_SPREAD = 0.1
"""Jobs that were started together do not ask together."""
_LATE_S = 30.0
"""A thread that is late by so much has not run: the program was halted, or held the interpreter's lock."""
_WAIT_S = 2.0


class Asking(Generic[T]):
    """The last answer to `ask`, which is asked again every `period_s(answer)` seconds once it is started.

    An error is said once; the last answer stays, and the question is asked again. The thread is a daemon: it ends with
    `close`, or with the process.
    """

    def __init__(self, ask: Callable[[], T], *, what: str, period_s: Callable[[T | None], float], clock: Clock) -> None:
        self._ask = ask
        self._what = what
        self._period_s = period_s
        self._clock = clock
        self._answer: T | None = None
        self._complained = False
        self._tries = 0
        self._waited = -1
        self._patience_s = 0.0
        self._due_s = clock.monotonic_s()
        # `with` this, not the condition: that one is entered by code in Python, where Ctrl-C leaves it locked for ever.
        self._lock = threading.RLock()
        self._tried = threading.Condition(self._lock)
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="holdfast-asking", daemon=True)

    def start(self) -> None:
        """Ask from now on; where no thread can be had, that is said."""
        try:
            self._thread.start()
        except RuntimeError as error:
            _log.warning("%s is not asked for: %s", self._what, error)

    def answer(self) -> T | None:
        """The last one; None before the first.

        Waits only after the program was halted (a job that was suspended, say), for two seconds at most and once: the
        answer of before may be far from true then.
        """
        with self._lock:
            if self._is_late() and self._thread.is_alive():
                if self._waited != self._tries:
                    self._waited = self._tries
                    self._patience_s = time.monotonic() + _WAIT_S
                self._wake.set()
                self._tried.wait_for(lambda: self._tries != self._waited, max(self._patience_s - time.monotonic(), 0.0))
            return self._answer

    def ask_once(self) -> None:
        """Ask now. Where that fails, the last answer stays: a limit does not vanish because nobody answers."""
        try:
            self._answer = self._ask()
        except BaseException as error:  # noqa: BLE001  the user's function, or a command: whatever it is, it goes on
            if not self._complained:
                _log.warning("%s: %s; asked again from time to time, and not said again", self._what, error)
            self._complained = True
        with self._lock:
            self._tries += 1
            self._due_s = self._clock.monotonic_s() + self._period_s(self._answer)
            self._tried.notify_all()

    def close(self) -> None:
        """Ask no more. A question that is on its way is left to itself."""
        self._closed = True
        self._wake.set()

    def _is_late(self) -> bool:
        return self._clock.monotonic_s() > self._due_s + _LATE_S

    def _run(self) -> None:
        spread = random.Random()  # noqa: S311  of its own: the program's numbers stay as they are
        while not self._closed:
            self._wake.clear()
            self.ask_once()
            self._wake.wait(self._period_s(self._answer) * spread.uniform(1 - _SPREAD, 1 + _SPREAD))
