"""Ends a program whose time is over although no step of it has come to an end: better by ourselves than by SIGKILL.

What was copied becomes durable in time, what is lost is said, and the status asks for a restart.
"""

import contextlib
import logging
import math
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

__all__ = ["LastCall"]

_log = logging.getLogger("holdfast")

# A limit may be shortened meanwhile.
_LONGEST_SLEEP_S = 5.0
_UNKNOWN_SLEEP_S = 1.0
_AGAIN_S = 0.1


class LastCall:
    """A thread that sleeps until the time is over. `left_s` says how much there is, `need_s` how much the end takes."""

    def __init__(
        self, left_s: Callable[[], float | None], need_s: Callable[[], float], end: Callable[[], bool]
    ) -> None:
        """`end` is called in that thread, when no more is left than what is needed; and again, if it says so."""
        self._left_s = left_s
        self._need_s = need_s
        self._end = end
        # Not an event, whose lock a signal handler would find taken by the code that it interrupts.
        self._words: SimpleQueue[None] = SimpleQueue()
        self._is_closed = False
        self._thread = threading.Thread(target=self._watch, name="holdfast-last-call", daemon=True)

    def start(self) -> None:
        """Without a thread to spare, the program is only looked at between its steps."""
        try:
            self._thread.start()
        except RuntimeError:
            _log.warning("no thread can be had that ends the program in time if a step takes too long")

    def look_again(self) -> None:
        """The time left is another one now. May be called by a signal handler."""
        self._words.put(None)

    def close(self) -> None:
        """The program has ended by itself, or goes on without a limit."""
        self._is_closed = True
        self._words.put(None)

    def _watch(self) -> None:
        while not self._is_closed:
            left_s = self._left_s()
            sleep_s = _UNKNOWN_SLEEP_S if left_s is None or math.isnan(left_s) else left_s - self._need_s()
            if sleep_s <= 0:
                if not self._end():
                    return
                sleep_s = _AGAIN_S
            with contextlib.suppress(Empty):
                self._words.get(timeout=min(sleep_s, _LONGEST_SLEEP_S))
