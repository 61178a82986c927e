"""Memory that several processes share: allocated so that a full machine is an error, mapped, and touched once.

Writing to a mapped page that the file system cannot provide ends the process (SIGBUS). So every byte is allocated
before it is mapped, and nothing that is mapped is ever cut off again.
"""

import errno
import mmap
import os
from collections.abc import Callable, Sequence
from types import TracebackType

from holdfast.core.errors import HoldfastError, IntegrityError, NoSpaceError
from holdfast.core.limits import PAGE_BYTES
from holdfast.storage.translate import translate

__all__ = [
    "AllocationStoppedError",
    "Mapping",
    "MemoryBoundary",
    "allocate",
    "is_shortage",
    "padded",
    "read_exactly",
    "write_fully",
]

# One step of allocating and touching. The kernel undoes a step that a signal interrupts, so that a program with a timer
# would never get through a large one; and whoever waits for the end of it waits for one step at most.
_STEP_BYTES = 16 << 20
_MADV_POPULATE_WRITE = 23  # Linux 5.14
_POPULATE_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EPERM)
_SHORTAGES = (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG, errno.EAGAIN)
_MOST_BUFFERS = 1024  # IOV_MAX of Linux


class AllocationStoppedError(Exception):
    """Allocating was told to stop; never leaves this package."""


def padded(size_bytes: int) -> int:
    """The size in whole pages."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def allocate(descriptor: int, begin: int, end: int, keep_going: Callable[[], bool] | None = None) -> None:
    """Give the file those bytes, and that size if it was smaller; OSError (ENOSPC, ENOMEM) where they are not there."""
    while begin < end:
        if keep_going is not None and not keep_going():
            raise AllocationStoppedError
        step = min(_STEP_BYTES, end - begin)
        os.posix_fallocate(descriptor, begin, step)
        begin += step


def is_shortage(error: OSError) -> bool:
    """Whether the system says that there is not enough memory, space or address space."""
    return error.errno in _SHORTAGES


class MemoryBoundary:
    """`with MemoryBoundary("mapping", where):` translates what the system raises inside; our own errors pass."""

    __slots__ = ("_doing", "_where")

    def __init__(self, doing: str, where: str) -> None:
        self._doing = doing
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, OSError) or isinstance(error, HoldfastError):
            return
        if not is_shortage(error):
            raise translate(error, self._doing, self._where) from error
        raise NoSpaceError(
            f"{self._where}: {self._doing} failed: {os.strerror(error.errno or 0)}",
            hint="see free -m, df -h /dev/shm and ulimit -v",
            errno=error.errno,
        ) from error


def read_exactly(descriptor: int, buffers: Sequence[memoryview], offset: int, where: str) -> None:
    """Fill the buffers; IntegrityError where the file ends before."""
    rest = [buffer.cast("B") for buffer in buffers if buffer.nbytes]
    while rest:
        done = os.preadv(descriptor, rest[:_MOST_BUFFERS], offset)
        if done == 0:
            raise IntegrityError(f"{where}: ends at byte {offset}, more was expected: somebody cut it off")
        offset += done
        while rest and done >= len(rest[0]):
            done -= len(rest.pop(0))
        if done:
            rest[0] = rest[0][done:]


def write_fully(descriptor: int, data: bytes, offset: int) -> None:
    """Write all of it; OSError where that is not possible."""
    rest = memoryview(data)
    while rest:
        done = os.pwrite(descriptor, rest, offset)
        offset += done
        rest = rest[done:]


class Mapping:
    """The first bytes of a file as memory. Views of it stay valid when it is closed: the last one takes it along."""

    def __init__(self, descriptor: int, size_bytes: int, *, writable: bool) -> None:
        protection = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
        self._memory = mmap.mmap(descriptor, size_bytes, flags=mmap.MAP_SHARED, prot=protection)
        self._view = memoryview(self._memory)
        self.size_bytes = size_bytes

    def part(self, begin: int, end: int) -> memoryview:
        return self._view[begin:end]

    def touch(self, keep_going: Callable[[], bool] | None = None, *, used_bytes: int = 0) -> None:
        """Have the system provide and map every page now, instead of at the first write to it. Changes nothing.

        The first `used_bytes` may change meanwhile.
        """
        import ctypes  # 10 ms, which a process that only reads does not pay

        libc = ctypes.CDLL(None, use_errno=True)
        madvise = libc.madvise  # by ctypes: the method of mmap keeps all other threads waiting meanwhile
        madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        # Not kept: a child that is forked meanwhile could not unmap what this thread, which it does not have, views.
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        can_populate = True
        for begin in range(0, self.size_bytes, _STEP_BYTES):
            if keep_going is not None and not keep_going():
                raise AllocationStoppedError
            end = min(begin + _STEP_BYTES, self.size_bytes)
            if can_populate and madvise(address + begin, end - begin, _MADV_POPULATE_WRITE) != 0:
                number = ctypes.get_errno()
                if number not in _POPULATE_UNSUPPORTED:
                    raise OSError(number, os.strerror(number))
                can_populate = False
            if not can_populate:
                # I4: what is written back to a page in use may be older than what is there by then.
                touch_by_writing(self._view[max(begin, used_bytes) : end])

    def close(self) -> None:
        self._view.release()
        try:
            self._memory.close()
        except BufferError:
            pass  # somebody still has a view; the memory goes with the last one


def touch_by_writing(view: memoryview) -> None:
    """Write one byte of each page, the one that is there."""
    for begin in range(0, len(view), 1 << 20):  # in parts: other threads wait while one is written
        bytes_of_pages = view[begin : begin + (1 << 20) : PAGE_BYTES]
        bytes_of_pages[:] = bytes_of_pages.tobytes()
