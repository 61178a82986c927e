"""Tells the journal what happened, in a thread of its own: a storage that hangs must not take the training with it."""

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

__all__ = ["Teller"]

_log = logging.getLogger("holdfast")

Tell = Callable[[], None]


class Teller:
    """Does what it is told in order, some time later. The thread begins with the first word."""

    def __init__(self) -> None:
        self._words: SimpleQueue[Tell | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def tell(self, word: Tell) -> None:
        """Return at once. It must not raise."""
        self._words.put(word)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="holdfast-telling", daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:  # no more threads
                _log.warning("the journal does not hear of what was decided: %s", error)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all has been told that there is to tell by now; whether it was."""
        if self._thread is None:
            return True
        told = threading.Event()
        self._words.put(told.set)
        return self._thread.is_alive() and told.wait(timeout_s)

    def close(self) -> None:
        """Let the thread end when all is told."""
        self._words.put(None)

    def _run(self) -> None:
        while (word := self._words.get()) is not None:
            word()
