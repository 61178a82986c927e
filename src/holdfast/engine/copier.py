"""A thread that copies while the program computes. It stays: to start one makes the training wait until it runs."""

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

__all__ = ["Copier", "Run", "run_in_thread"]

Work = Callable[[], object]
Run = Callable[[Work], None]
"""Has work done by another thread, or here and now where there are no more threads."""


def run_in_thread(work: Work) -> None:
    """Do it in a thread of its own."""
    try:
        threading.Thread(target=work, name="holdfast-capture", daemon=True).start()
    except RuntimeError:  # no more threads
        work()


class Copier:
    """Does one piece of work after the other, in the order in which they come. The work must not raise."""

    def __init__(self) -> None:
        self._orders: SimpleQueue[Work | None] = SimpleQueue()
        self._process: int | None = None

    def run(self, work: Work) -> None:
        """Return at once; the work is done later."""
        if self._process != os.getpid():  # none yet, or it was left behind by a fork
            self._orders = SimpleQueue()
            thread = threading.Thread(target=_serve, args=(self._orders,), name="holdfast-copier", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads
                work()
                return
            self._process = os.getpid()
        self._orders.put(work)

    def close(self) -> None:
        """Let the thread end when it is done."""
        self._orders.put(None)
        self._process = None


def _serve(orders: "SimpleQueue[Work | None]") -> None:
    while (work := orders.get()) is not None:
        work()
        del work  # it holds the program's arrays
