"""For how long threads of the training were ready to run and had no core: what an agent that computes takes from it.

The kernel counts it for every thread. It says at once, and with hardly any noise, what slower steps show only after
many writes: whether there are cores to spare.
"""

import os
import threading
from collections.abc import Callable

__all__ = ["Queued", "Queueing"]

_TASKS = "/proc/self/task"
_OURS = "holdfast"
_NS = 1e-9


class Queued:
    """Called: the seconds of all threads of this process but our own, since each of them began.

    Of those that have ended, what was seen last: a pool of loaders that ends takes nothing back.
    """

    def __init__(self) -> None:
        self._seen_ns: dict[str, int] = {}
        self._total_ns = 0

    def __call__(self) -> float | None:
        """None where the kernel does not say."""
        ours = {str(thread.native_id) for thread in threading.enumerate() if thread.name.startswith(_OURS)}
        try:
            seen_ns = {task: _delay_ns(task) for task in os.listdir(_TASKS) if task not in ours}
        except (OSError, ValueError, IndexError):
            return None
        for task, delay_ns in seen_ns.items():
            before_ns = self._seen_ns.get(task, 0)
            # Less than before: another thread that was given the number of one that has ended.
            self._total_ns += delay_ns - before_ns if delay_ns >= before_ns else delay_ns
        self._seen_ns = seen_ns
        return self._total_ns * _NS


def _delay_ns(task: str) -> int:
    try:
        with open(f"{_TASKS}/{task}/schedstat", "rb") as file:
            return int(file.read().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it has ended since


class Queueing:
    """How much longer than usual that was during a write."""

    def __init__(self, read: Callable[[], float | None]) -> None:
        self._read = read
        self._writing = 0
        self._shared = False
        self._at_s = 0.0
        self._total_s: float | None = None
        self._usual: float | None = None

    def begin(self, now_s: float) -> None:
        """A write begins."""
        self._writing += 1
        self._shared = self._writing > 1
        if self._shared:
            return
        before_s, since_s = self._total_s, self._at_s
        self._total_s, self._at_s = self._read(), now_s
        # What others on the machine take shows while nothing is written.
        if before_s is not None and self._total_s is not None and now_s > since_s:
            self._usual = (self._total_s - before_s) / (now_s - since_s)

    def end(self, now_s: float) -> float | None:
        """A write has ended: by how much it was more than usual, which may be less than nothing; None if not known.

        Not known either of two at a time: nobody can tell which of them it was.
        """
        self._writing = max(0, self._writing - 1)
        if self._writing:
            return None
        shared, self._shared = self._shared, False
        before_s, since_s = self._total_s, self._at_s
        self._total_s, self._at_s = self._read(), now_s
        if shared or before_s is None or self._total_s is None or self._usual is None:
            return None
        return self._total_s - before_s - self._usual * (now_s - since_s)
