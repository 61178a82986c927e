"""Page-aligned buffers, used again and again: fresh memory costs five times a copy into memory touched before."""

import mmap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.core.limits import BLOCK_BYTES

__all__ = ["BlockPool", "run_workers"]


class BlockPool:
    """Lends buffers of one size, and keeps those that come back."""

    def __init__(self, size_bytes: int = BLOCK_BYTES) -> None:
        self.size_bytes = size_bytes
        self._free: list[mmap.mmap] = []

    @contextmanager
    def block(self) -> Iterator[memoryview]:
        """A buffer, zeroed only when it is new."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = mmap.mmap(-1, self.size_bytes)
        view = memoryview(memory)
        try:
            yield view
        finally:
            view.release()
            self._free.append(memory)


def run_workers(work: Callable[[Callable[[], int | None]], None], count: int, workers: int) -> None:
    """Run `work(next_index)` in that many threads until the indices 0…count-1 are handed out, in order.

    The first exception stops the handing out and is raised here, when all threads are done.
    """
    indices = iter(range(count))
    lock = threading.Lock()
    failures: list[BaseException] = []

    def next_index() -> int | None:
        with lock:
            return None if failures else next(indices, None)

    def guarded() -> None:
        try:
            work(next_index)
        except BaseException as error:  # noqa: BLE001  raised again below, in the caller's thread
            failures.append(error)

    if min(count, workers) <= 1:
        work(next_index)
        return
    threads = [threading.Thread(target=guarded, name="holdfast-io", daemon=True) for _ in range(min(count, workers))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException as interruption:
        # Ctrl-C, or no more threads: the caller closes the file next, and nobody may write to its number after that.
        failures.append(interruption)
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        raise
    if failures:
        raise failures[0]
