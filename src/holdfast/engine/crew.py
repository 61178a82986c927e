"""Threads that help the caller with one piece of work: as many as can be had, and none where memory is short.

Not `threading.Thread`: its `start` waits for the new thread to say that it runs, and waits for ever for one that dies
before, because there is no memory for its first objects. Here nobody waits for a thread that has not begun to work.
"""

import _thread
import math
import sys
import threading
import time
from collections.abc import Callable

__all__ = ["Crew", "as_it_came"]

# How long Ctrl-C waits for threads: a chunk takes milliseconds, a storage that is slow a few seconds.
_PATIENCE_S = 10.0


class Crew:
    """Whoever has not begun when it is dismissed will not begin."""

    def __init__(self) -> None:
        # `with` this, not the condition: that one is entered by code in Python, where Ctrl-C leaves it locked for ever.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._working = 0
        self._is_over = False

    def call(self, work: Callable[[], None], count: int) -> None:
        """Have `work` done by that many threads, or fewer; it must not raise."""
        for _ in range(count):
            try:
                _thread.start_new_thread(self._begin, (work,))
            except (RuntimeError, MemoryError):  # no more threads
                return

    def dismiss(self, stop: Callable[[], object]) -> None:
        """Have them told to stop, and wait until nobody works any more.

        Ctrl-C is raised when that is so: what they work with is given back, closed or used again next. Where they do
        not come back from a storage that hangs, it is raised after a while all the same, and `is_at_work` then.
        """
        interruption: BaseException | None = None
        end_s = math.inf
        is_over = False
        while not is_over:
            try:
                stop()
                with self._lock:
                    self._is_over = True
                    self._changed.wait_for(lambda: not self._working, _left_s(end_s))
                is_over = True
            except BaseException as error:  # noqa: BLE001  raised below
                interruption = interruption or as_it_came(error)
                is_over = time.monotonic() >= end_s
                end_s = min(end_s, time.monotonic() + _PATIENCE_S)
        if interruption is not None:
            raise interruption

    @property
    def is_at_work(self) -> bool:
        """Whether somebody has not come back."""
        return self._working > 0

    def _begin(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._is_over:
                return
            self._working += 1
        try:
            # As in threads of `threading`: for debuggers, and for the measurement of coverage.
            if (trace := threading.gettrace()) is not None:
                sys.settrace(trace)
            work()
        finally:
            with self._lock:
                self._working -= 1
                self._changed.notify_all()


def as_it_came(error: BaseException) -> BaseException:
    """Ctrl-C in the few lines of a condition's wait that have let go of its lock comes as the error of that lock."""
    cause = error.__context__
    is_interruption = isinstance(error, RuntimeError) and cause is not None and not isinstance(cause, Exception)
    return cause if is_interruption and cause is not None else error


def _left_s(end_s: float) -> float | None:
    return None if end_s == math.inf else max(0.0, end_s - time.monotonic())
