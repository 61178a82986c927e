"""How far an image is filled from its start, by threads that fill its chunks in nearly that order."""

import threading
from collections.abc import Callable

from holdfast.core.limits import CHUNK_BYTES

__all__ = ["Filled", "NoteFilled"]

NoteFilled = Callable[[int], None]
"""Hears that so many bytes from the start are complete."""

# Whoever reads ahead takes blocks of some MiB: to say it for every chunk would be to no purpose.
_CHUNKS_AT_ONCE = 4


class Filled:
    """Tells of whole runs of chunks."""

    def __init__(self, size_bytes: int, tell: NoteFilled | None) -> None:
        self._size_bytes = size_bytes
        self._tell = tell
        self._lock = threading.Lock()
        self._later: set[int] = set()
        self._next = 0
        self._told = 0

    def note(self, chunk: int) -> None:
        """The chunk is complete. From any thread."""
        if self._tell is None:
            return
        with self._lock:
            self._later.add(chunk)
            while self._next in self._later:
                self._later.remove(self._next)
                self._next += 1
            filled_bytes = min(self._next * CHUNK_BYTES, self._size_bytes)
            if self._next >= self._told + _CHUNKS_AT_ONCE or filled_bytes == self._size_bytes:
                self._told = self._next
                self._tell(filled_bytes)
