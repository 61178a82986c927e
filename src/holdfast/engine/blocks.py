"""Page-aligned buffers, used again and again: fresh memory costs five times a copy into memory touched before."""

import itertools
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from holdfast.core.limits import BLOCK_BYTES, CHUNK_BYTES
from holdfast.engine.crew import Crew, as_it_came

__all__ = ["BlockPool", "run_in_order", "run_workers"]

# Filled blocks that wait for the one that is being used: a slow filler does not make the disk wait.
_AHEAD = 1


class BlockPool:
    """Lends buffers of one size, and keeps those that come back. They are zeroed only when they are new."""

    def __init__(self, size_bytes: int = BLOCK_BYTES, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.size_bytes = size_bytes
        self.chunk_bytes = chunk_bytes
        self._blocks: list[mmap.mmap] = []
        self._scratches: list[mmap.mmap] = []

    def block(self) -> AbstractContextManager[memoryview]:
        """One of that size."""
        return _lent(self._blocks, self.size_bytes)

    def scratch(self) -> AbstractContextManager[memoryview]:
        """One of the size of a chunk, the one that came back last: it is in the caches."""
        return _lent(self._scratches, self.chunk_bytes)


@contextmanager
def _lent(free: list[mmap.mmap], size_bytes: int) -> Iterator[memoryview]:
    try:
        memory = free.pop()
    except IndexError:
        memory = _allocate(size_bytes)
    view = memoryview(memory)
    try:
        yield view
    finally:
        view.release()
        free.append(memory)


# Not a WeakSet: that one runs code of its own when a block is freed, and Ctrl-C in there is not raised to anyone.
_made: "dict[int, weakref.ref[mmap.mmap]]" = {}
_serial = itertools.count(1)
_never_unmapped: list[mmap.mmap] = []
_never_lent_again: list[ExitStack] = []
"""Blocks of threads that did not come back: they may still write to them."""


def _allocate(size_bytes: int) -> mmap.mmap:
    """Memory in huge pages where the system has them: what a disk gets from small ones is a list of as many pieces.

    Writing 1.3 GB through blocks of huge pages took 340 to 500 ms, through small ones 530 to 1,040 ms (decision 2).
    """
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Not for forked children: with them, the pages would have to be copied, small, at the next use.
    for advice in ("MADV_HUGEPAGE", "MADV_DONTFORK"):
        try:
            memory.madvise(getattr(mmap, advice))
        except (OSError, AttributeError):  # a system without it
            pass
    for number, made in list(_made.items()):
        if made() is None:
            _made.pop(number, None)
    _made[next(_serial)] = weakref.ref(memory)
    return memory


def _forget_in_child() -> None:
    # The memory is not there. Were the objects collected, they would unmap what may be at its place by then.
    _never_unmapped.extend(memory for made in _made.values() if (memory := made()) is not None)


os.register_at_fork(after_in_child=_forget_in_child)


def run_workers(work: Callable[[Callable[[], int | None]], None], count: int, workers: int) -> None:
    """Run `work(next_index)` in that many threads until the indices 0…count-1 are handed out, in order.

    The first exception stops the handing out and is raised here, when all threads are done.
    """
    indices = iter(range(count))
    lock = threading.Lock()
    failures: list[BaseException] = []
    stopped: list[bool] = []

    def next_index() -> int | None:
        with lock:
            return None if failures or stopped else next(indices, None)

    def guarded() -> None:
        try:
            work(next_index)
        except BaseException as error:  # noqa: BLE001  raised again below, in the caller's thread
            failures.append(error)

    if min(count, workers) <= 1:
        work(next_index)
        return
    crew = Crew()
    try:
        crew.call(guarded, min(count, workers) - 1)
        guarded()  # rather than only wait for them
    finally:
        # Ctrl-C: the caller closes the file next, and nobody may write to its number after that.
        crew.dismiss(lambda: stopped.append(True))
    if failures:
        # Ctrl-C in this thread must not be lost behind a fault that another one found before.
        raise next((failure for failure in failures if not isinstance(failure, Exception)), failures[0])


def run_in_order(
    fill: Callable[[int, memoryview], memoryview],
    use: Callable[[int, memoryview], None],
    count: int,
    *,
    pool: BlockPool,
    workers: int,
) -> None:
    """For every index 0…count-1: `use(index, fill(index, block))`.

    Blocks are filled by several threads at once, and used by the caller's, one after the other, in order: a disk
    writes one long sequence faster than the same blocks out of order. The first exception ends all, and is raised here
    when all threads are done.
    """
    fillers = min(count, workers - 1)
    if fillers < 1:
        with pool.block() as block:
            for index in range(count):
                use(index, fill(index, block))
        return
    with ExitStack() as blocks:
        belt = _Belt([blocks.enter_context(pool.block()) for _ in range(min(count, fillers + 1 + _AHEAD))], count)
        crew = Crew()
        try:
            crew.call(lambda: belt.fill_all(fill), fillers)
            belt.use_all(fill, use)
        except RuntimeError as error:
            raise as_it_came(error) from None
        finally:
            # Ctrl-C, a failed write: nobody may touch the blocks after they went back to the pool.
            try:
                crew.dismiss(belt.stop)
            finally:
                if crew.is_at_work:
                    _never_lent_again.append(blocks.pop_all())


def _give_way() -> None:
    """Have this thread interrupted at once when the one that writes is woken: until it runs, the disk does nothing.

    With as many fillers as cores a save took 0.76 of the speed of the disk, with this 0.83 (decision 2).
    """
    try:
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except (OSError, AttributeError):  # forbidden in some containers; no such thing on other systems
        pass


class _Belt:
    """Hands free blocks to fillers and filled ones, in order, to their user.

    Where memory is short, a filler may die at any place that needs some. What it has taken is marked by then as filled,
    or as failed: else its user would wait for ever.
    """

    def __init__(self, blocks: list[memoryview], count: int) -> None:
        self._free = blocks
        self._count = count
        self._next = 0
        self._filled: list[tuple[memoryview, memoryview] | BaseException | None] = [None] * count
        self._is_stopped = False
        # `with` this, not the condition: that one is entered by code in Python, where Ctrl-C leaves it locked for ever.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    def fill_all(self, fill: Callable[[int, memoryview], memoryview]) -> None:
        """In a thread of its own."""
        _give_way()
        while (task := self._take()) is not None:
            index, block = task
            filled: tuple[memoryview, memoryview] | BaseException
            try:
                filled = block, fill(index, block)
            except BaseException as error:  # noqa: BLE001  raised again by use_all
                filled = error
            with self._lock:
                self._filled[index] = filled
                self._is_stopped = self._is_stopped or isinstance(filled, BaseException)
                self._changed.notify_all()

    def use_all(self, fill: Callable[[int, memoryview], memoryview], use: Callable[[int, memoryview], None]) -> None:
        """Where nobody has begun to fill the next one, there may be nobody who could: then it is filled here."""
        for index in range(self._count):
            with self._lock:
                own = None if self._next > index else self._pick()[1]
                if own is None:
                    self._changed.wait_for(lambda: self._filled[index] is not None)  # noqa: B023
            filled = self._filled[index] if own is None else (own, fill(index, own))
            # Those before one that could not be filled were used, so that what was done does not depend on chance.
            if isinstance(filled, BaseException):
                raise filled
            assert filled is not None
            block, data = filled
            self._filled[index] = None  # the view of the block is let go
            use(index, data)
            with self._lock:
                self._free.append(block)
                self._changed.notify_all()

    def stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            self._changed.notify_all()

    def _has_ended(self) -> bool:
        return self._is_stopped or self._next == self._count

    def _take(self) -> tuple[int, memoryview] | None:
        with self._lock:
            self._changed.wait_for(lambda: self._has_ended() or self._free)
            return None if self._has_ended() else self._pick()

    def _pick(self) -> tuple[int, memoryview]:
        """The next index with a block of its own: the lowest index that is not filled always has one."""
        picked, following = (self._next, self._free[-1]), self._next + 1
        # From here on nothing needs memory.
        self._free.pop()
        self._next = following
        return picked
