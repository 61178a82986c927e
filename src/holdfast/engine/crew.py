"""Threads that help the caller with one piece of work: as many as can be had, and none where memory is short.

Not `threading.Thread`: its `start` waits for the new thread to say that it runs, and waits for ever for one that dies
before, because there is no memory for its first objects. Here nobody waits for a thread that has not begun to work.
"""

import _thread
import sys
import threading
from collections.abc import Callable

__all__ = ["Crew"]


class Crew:
    """Whoever has not begun when it is dismissed will not begin."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._working = 0
        self._is_over = False

    def call(self, work: Callable[[], None], count: int) -> None:
        """Have `work` done by that many threads, or fewer; it must not raise."""
        for _ in range(count):
            try:
                _thread.start_new_thread(self._begin, (work,))
            except (RuntimeError, MemoryError):  # no more threads
                return

    def dismiss(self) -> None:
        """Wait until nobody works any more."""
        with self._changed:
            self._is_over = True
            self._changed.wait_for(lambda: not self._working)

    def _begin(self, work: Callable[[], None]) -> None:
        with self._changed:
            if self._is_over:
                return
            self._working += 1
        try:
            # As in threads of `threading`: for debuggers, and for the measurement of coverage.
            if (trace := threading.gettrace()) is not None:
                sys.settrace(trace)
            work()
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()
