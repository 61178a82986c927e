"""Writes lines in a thread of its own: a terminal that is halted, or a pipe that nobody reads, holds nobody up."""

import os
import queue
import threading
import time

__all__ = ["Writer"]

_MOST_WAITING = 1000
_PAUSE_S = 0.01


class Writer:
    """To one descriptor. What cannot be written is dropped: a log is no reason to let a job down (I7)."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting: queue.Queue[bytes] = queue.Queue(_MOST_WAITING)
        self._is_broken = False
        threading.Thread(target=self._write, name=f"holdfast-writer-{descriptor}", daemon=True).start()

    def write(self, text: str) -> None:
        """Soon."""
        if not self._is_broken:
            try:
                self._waiting.put_nowait(text.encode(errors="replace"))
            except queue.Full:
                pass

    def is_idle(self) -> bool:
        """Whether all has been written."""
        return self._is_broken or self._waiting.unfinished_tasks == 0

    def flush(self, timeout_s: float) -> None:
        """Wait until all is written, as long as that."""
        deadline_s = time.monotonic() + timeout_s
        while not self.is_idle() and time.monotonic() < deadline_s:
            time.sleep(_PAUSE_S)

    def _write(self) -> None:
        while True:
            left = self._waiting.get()
            try:
                while left:
                    left = left[os.write(self._descriptor, left) :]
            except OSError:
                self._is_broken = True  # whoever read it has gone, or the disk is full
                return
            finally:
                self._waiting.task_done()
