"""Writing blobs to a file system: past the page cache where it allows that, durable before it counts."""

import errno
import os
from collections.abc import Callable
from itertools import count
from types import TracebackType

from holdfast.core.errors import StorageError
from holdfast.core.limits import PAGE_BYTES
from holdfast.storage.files import Files, Info, Space, close_quietly, direct_io_is_refused
from holdfast.storage.posix_locks import close_blob
from holdfast.storage.translate import Boundary

__all__ = ["FILE_MODE", "PosixWriter", "append_all", "publish_file"]

FILE_MODE = 0o600
_MOST_INTERRUPTIONS = 100
_serial = count()


class PosixWriter:
    """A file in the making, with two descriptors: one past the page cache for whole pages, one for everything else."""

    alignment = PAGE_BYTES

    def __init__(
        self,
        files: Files,
        parent: int,
        name: str,
        *,
        where: str,
        direct: bool,
        space: Callable[[], Space],
        close_parent: Callable[[int], None],
    ) -> None:
        """Takes over the parent's descriptor, unless it raises."""
        self._files = files
        self._parent = parent
        self._name = name
        self._where = where
        self._space = space
        self._close_parent = close_parent
        self._failed = False
        self._info: Info | None = None
        self._direct: int | None = None
        self._buffered: int | None = files.create(parent, name, FILE_MODE)
        try:
            self._info = files.info(self._buffered)
            self._direct = self._open_direct() if direct else None
        except BaseException:
            self._discard_file()
            raise

    def write_at(self, block: memoryview, offset: int) -> None:
        with self._step():
            block = block.cast("B")
            descriptor = self._usable()
            done = self._write_direct(block, offset)
            if done < len(block):
                _write_all(self._files, descriptor, block[done:], offset + done)

    def finish(self, size_bytes: int) -> None:
        with self._step():
            descriptor = self._usable()
            self._fit(descriptor, size_bytes)
            self._files.sync(descriptor)
            self._close_direct()
            self._close_buffered()
            self._files.sync_dir(self._parent)
        self._close_parent(self._parent)
        self._parent = -1

    def abandon(self) -> None:
        if self._parent >= 0:
            self._discard_file()
            self._close_parent(self._parent)
            self._parent = -1

    def _step(self) -> "_Step":
        return _Step(self, "writing", self._where, space=self._space)

    def fail(self) -> None:
        """From here on the file can only be abandoned.

        The kernel reports a lost page once and forgets it: a second fsync would succeed without the data (I5).
        """
        self._failed = True

    def _usable(self) -> int:
        if self._failed or self._buffered is None:
            state = "failed before" if self._failed else "was finished or abandoned before"
            raise StorageError(f"{self._where}: writing it {state}", hint="write it again under another name")
        return self._buffered

    def _open_direct(self) -> int | None:
        # A second descriptor: open(2) with O_CREAT and O_DIRECT leaves a file behind where direct I/O is refused.
        try:
            return self._files.open_update(self._parent, self._name, direct=True)
        except OSError as error:
            if direct_io_is_refused(error):
                return None
            raise

    def _write_direct(self, block: memoryview, offset: int) -> int:
        """How much was written past the page cache: whole pages, as long as the file system takes them."""
        whole = len(block) - len(block) % PAGE_BYTES
        if self._direct is None or offset % PAGE_BYTES:
            return 0
        done = 0
        # A short write that ends within a page cannot be continued here, only through the page cache.
        while done < whole and done % PAGE_BYTES == 0:
            try:
                done += _write_some(self._files, self._direct, block[done:whole], offset + done)
            except OSError as error:
                # Refused at the first write instead of at open, or memory that is not aligned: the kernel knows best.
                if direct_io_is_refused(error):
                    return done
                raise
        return done

    def _fit(self, descriptor: int, size_bytes: int) -> None:
        found = self._files.info(descriptor).size_bytes
        if found < size_bytes:
            raise StorageError(f"{self._where}: has {found} bytes, {size_bytes} were expected: blocks are missing")
        if found > size_bytes:
            self._files.truncate(descriptor, size_bytes)

    def _close_direct(self) -> None:
        # Forgotten before it is closed: Linux frees the number even when close fails, another file may have it next.
        descriptor, self._direct = self._direct, None
        self._close(descriptor)

    def _close_buffered(self) -> None:
        descriptor, self._buffered = self._buffered, None
        self._close(descriptor)

    def _close(self, descriptor: int | None) -> None:
        if descriptor is None:
            return
        if self._info is None:
            self._files.close(descriptor)
        else:
            close_blob(self._files, descriptor, self._info, spare=False)

    def _discard_file(self) -> None:
        for step in (self._close_direct, self._close_buffered, lambda: self._files.unlink(self._parent, self._name)):
            try:
                step()
            except OSError:
                pass  # what cannot be removed is garbage without a manifest (I1)


class _Step(Boundary):
    """A boundary that remembers the failure."""

    __slots__ = ("_writer",)

    def __init__(self, writer: PosixWriter, doing: str, where: str, *, space: Callable[[], Space]) -> None:
        super().__init__(doing, where, space=space)
        self._writer = writer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._writer.fail()
        super().__exit__(kind, error, trace)


def publish_file(files: Files, parent: int, name: str, data: bytes) -> None:
    """Make the file appear whole under its name: written and synced under a temporary one, then renamed.

    The caller syncs the directory.
    """
    # Unique among the threads, processes and machines that share the directory.
    temporary = f".{name}.{os.getpid()}-{next(_serial)}-{os.urandom(4).hex()}.tmp"
    try:
        _write_durably(files, parent, temporary, data)
        # I2, I3: the name appears once, for complete and durable bytes, and never in the place of others.
        files.rename(parent, temporary, name)
    except BaseException:
        try:
            files.unlink(parent, temporary)
        except OSError:
            pass  # not made, or the storage is gone: temporaries are never looked at
        raise


def append_all(files: Files, descriptor: int, data: bytes) -> None:
    """Append in one write, if the system takes it whole."""
    while data:
        data = data[_progress(files.append(descriptor, data)) :]


def _write_durably(files: Files, parent: int, name: str, data: bytes) -> None:
    descriptor = files.create(parent, name, FILE_MODE)
    try:
        _write_all(files, descriptor, memoryview(data), 0)
        files.sync(descriptor)
    except BaseException:
        close_quietly(files, descriptor)
        raise
    files.close(descriptor)


def _write_all(files: Files, descriptor: int, block: memoryview, offset: int) -> None:
    done = 0
    while done < len(block):
        done += _write_some(files, descriptor, block[done:], offset + done)


def _write_some(files: Files, descriptor: int, block: memoryview, offset: int) -> int:
    for _ in range(_MOST_INTERRUPTIONS):
        try:
            return _progress(files.write_at(descriptor, block, offset))
        except InterruptedError:
            continue
    return _progress(files.write_at(descriptor, block, offset))


def _progress(written: int) -> int:
    """The count, or an error: a write that writes nothing would be tried for ever."""
    if written <= 0:
        raise OSError(errno.EIO, "the file system took 0 bytes and reported no error")
    return written
