"""Reading blobs from a file system: from the page cache what is there, past it what is not."""

import errno
import threading
from collections.abc import Sequence

from holdfast import native
from holdfast.core.clock import Clock
from holdfast.core.errors import IntegrityError, StorageError
from holdfast.core.light_typing import Protocol
from holdfast.core.limits import PAGE_BYTES
from holdfast.storage.files import Files, Info
from holdfast.storage.posix_locks import put_back
from holdfast.storage.retry import retried
from holdfast.storage.translate import Boundary

# As in holdfast/__init__.py: type checkers know this name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap

__all__ = ["PosixReader"]

# Below this a direct read costs more in latency than it saves in copying.
_LEAST_DIRECT_BYTES = 128 << 10
_SAMPLES = 16
# Below this it takes longer to map a file than it saves.
_LEAST_MAPPED_BYTES = 4 << 20
_WINDOW_BYTES = 32 << 20
_MOST_BUFFERS = 1024  # IOV_MAX of Linux


class Opener(Protocol):
    """Opens the blob, past the page cache if `direct`."""

    def __call__(self, *, direct: bool) -> tuple[int, Info]: ...


class PosixReader:
    """An open file. A second descriptor for reading past the page cache is opened when it is first wanted."""

    def __init__(self, files: Files, clock: Clock, opener: Opener, *, where: str, direct: bool) -> None:
        self._files = files
        self._clock = clock
        self._opener = opener
        self._where = where
        self._guard = threading.Lock()
        self._direct: int | None = None
        self._direct_is_possible = direct
        self._cached: bool | None = None
        self._mapped: _Mapped | None = None
        self._retired: list[int] = []
        self._descriptor, self._info = opener(direct=False)
        self.size_bytes = self._info.size_bytes
        self._mapping_is_possible = native.is_built() and self.size_bytes >= _LEAST_MAPPED_BYTES

    def read_at(self, buffers: Sequence[memoryview], offset: int) -> None:
        rest = [buffer.cast("B") for buffer in buffers if buffer.nbytes]
        wanted = sum(map(len, rest))
        if offset < 0 or offset + wanted > self.size_bytes:
            raise IntegrityError(
                f"{self._where}: bytes {offset} to {offset + wanted} were wanted, it has {self.size_bytes}"
            )
        with Boundary("reading", self._where):
            offset += self._read_direct(rest, offset)
            while rest:
                done = self._read_buffered(rest, offset)
                if done == 0:
                    raise IntegrityError(f"{self._where}: ends at byte {offset}, {self.size_bytes} were expected")
                offset += done
                _advance(rest, done)

    def read_checked(self, buffers: Sequence[memoryview], offset: int, chunk_bytes: int) -> Sequence[str] | None:
        wanted = sum(buffer.nbytes for buffer in buffers)
        if offset < 0 or offset + wanted > self.size_bytes or not self.is_cached():
            return None
        mapped = self._map()
        if mapped is None:
            return None
        mapped.forget_before(offset)
        # A fault while it is read is found again, and explained, by read_at.
        return native.scatter_chunks(mapped.view[offset : offset + wanted], buffers, chunk_bytes)

    def is_cached(self) -> bool:
        # Asked once: to ask makes the system read ahead, so the next answer would be about the question.
        if self._cached is None:
            pages = -(-self.size_bytes // PAGE_BYTES)
            sampled = {pages * sample // _SAMPLES for sample in range(_SAMPLES)} | {pages - 1}
            with Boundary("reading", self._where):
                self._cached = all(
                    self._files.is_cached_at(self._descriptor, page * PAGE_BYTES) for page in sorted(sampled) if pages
                )
        return self._cached

    def close(self) -> None:
        self._mapped = None
        descriptor, self._descriptor = self._descriptor, -1
        for each in (descriptor, *self._retired):
            if each >= 0:
                put_back(self._files, each, self._info)
        self._retired.clear()
        direct, self._direct = self._direct, None
        if direct is not None:
            put_back(self._files, direct, self._info, spare=False)

    def _map(self) -> "_Mapped | None":
        with self._guard:
            if self._mapped is None and self._mapping_is_possible:
                try:
                    memory = self._files.map(self._descriptor, self.size_bytes)
                except (OSError, ValueError):  # no addresses to map it to; shorter by now
                    memory = None
                self._mapped = None if memory is None else _Mapped(memory)
                self._mapping_is_possible = self._mapped is not None
            return self._mapped

    def _read_buffered(self, buffers: Sequence[memoryview], offset: int) -> int:
        def read() -> int:
            descriptor = self._descriptor
            if descriptor < 0:
                raise StorageError(f"{self._where}: was closed before it was read")
            try:
                return self._files.read_at(descriptor, buffers[:_MOST_BUFFERS], offset)
            except OSError as error:
                if error.errno == errno.ESTALE:
                    self._reopen(descriptor)
                raise

        return retried(read, self._clock)

    def _reopen(self, failed: int) -> None:
        """A fresh descriptor for the next try: a stale one never recovers."""
        with self._guard:
            if self._descriptor != failed:
                return  # another thread did it
            descriptor, info = self._opener(direct=False)
            self._retired.append(descriptor)
            if info.size_bytes != self.size_bytes:
                raise IntegrityError(f"{self._where}: had {self.size_bytes} bytes, and now {info.size_bytes}")
            # The old one stays open until the end: another thread may be reading from it.
            self._retired[-1], self._descriptor = self._descriptor, descriptor

    def _read_direct(self, rest: list[memoryview], offset: int) -> int:
        """How much was read past the page cache; what is left in `rest` must be read through it."""
        pages = _whole_pages(rest)
        size = sum(map(len, pages))
        if offset % PAGE_BYTES or size < _LEAST_DIRECT_BYTES or self.is_cached():
            return 0
        descriptor = self._open_direct()
        done = 0
        while descriptor is not None and pages and done % PAGE_BYTES == 0:
            try:
                count = self._files.read_at(descriptor, pages[:_MOST_BUFFERS], offset + done)
            except OSError:
                # Refused, memory that is not aligned, or a stale handle: the other way reads it, or says what is wrong.
                break
            if count == 0:
                break
            done += count
            _advance(pages, count)
        _advance(rest, done)
        return done

    def _open_direct(self) -> int | None:
        with self._guard:
            if self._direct is None and self._direct_is_possible:
                try:
                    self._direct = self._opener(direct=True)[0]
                except OSError:
                    self._direct_is_possible = False
            return self._direct


class _Mapped:
    """A file as memory. To be read by `native` only: any other access to what is not there ends the process."""

    def __init__(self, memory: "mmap.mmap") -> None:
        self.view = memoryview(memory)
        self._memory = memory
        self._forgotten = 0

    def forget_before(self, offset: int) -> None:
        """Let go of the pages that lie well before it: they count as memory of this process as long as it has them.

        Another thread that still reads there gets them back from the page cache.
        """
        window = offset // _WINDOW_BYTES - 1
        begin, self._forgotten = self._forgotten, max(self._forgotten, window)
        if window > begin:
            import mmap

            try:
                self._memory.madvise(mmap.MADV_DONTNEED, begin * _WINDOW_BYTES, (window - begin) * _WINDOW_BYTES)
            except OSError:
                pass  # a program that keeps all its memory from being paged out (mlockall) keeps this, too


def _whole_pages(buffers: Sequence[memoryview]) -> list[memoryview]:
    """The buffers up to the first that is not a multiple of the page size, and the whole pages of that one."""
    pages = []
    for buffer in buffers:
        whole = len(buffer) - len(buffer) % PAGE_BYTES
        if whole:
            pages.append(buffer[:whole])
        if whole != len(buffer):
            break
    return pages


def _advance(buffers: list[memoryview], done: int) -> None:
    """Drop the first bytes, which are filled."""
    while done and buffers:
        if done < len(buffers[0]):
            buffers[0] = buffers[0][done:]
            return
        done -= len(buffers.pop(0))
