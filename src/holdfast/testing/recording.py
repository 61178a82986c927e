"""A `Files` that writes down every operation that changes the disk, for rigs that replay them in other ways."""

import threading
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.storage.files import Files, Info, Space

__all__ = ["OpKind", "Operation", "RecordingFiles"]


class OpKind:
    """What an operation is; the first five change a directory, the next two a file."""

    MAKE_DIR = "make_dir"
    CREATE = "create"
    RENAME = "rename"
    UNLINK = "unlink"
    REMOVE_DIR = "remove_dir"
    WRITE = "write"
    TRUNCATE = "truncate"
    SYNC = "sync"
    SYNC_DIR = "sync_dir"
    MARK = "mark"


class Operation(NamedTuple):
    """One completed operation. Inodes are numbers; names are relative to the directory `inode`."""

    kind: str
    inode: int
    """The directory of a directory operation, else the file that was written or synced."""
    name: str = ""
    new_name: str = ""
    child: int = 0
    """The inode that the name leads to."""
    offset: int = 0
    """Of a write; for a truncation the new size."""
    data: bytes = b""
    mark: tuple[str, int] = ("", 0)
    """What the driver put in between: for example ("ack", 1200)."""


class RecordingFiles(Files):
    """Passes everything on and keeps `operations`, in the order in which they returned."""

    def __init__(self, inner: Files, operations: list[Operation] | None = None) -> None:
        self.inner = inner
        self.operations = [] if operations is None else operations
        self._guard = threading.Lock()

    def mark(self, what: str, value: int = 0) -> None:
        """Put a mark of the driver between the operations."""
        self._record(Operation(OpKind.MARK, 0, mark=(what, value)))

    def open_root(self, path: str) -> int:
        return self.inner.open_root(path)

    def open_dir(self, parent: int, name: str) -> int:
        return self.inner.open_dir(parent, name)

    def make_dir(self, parent: int, name: str, mode: int) -> None:
        self.inner.make_dir(parent, name, mode)
        self._record_entry(OpKind.MAKE_DIR, parent, name)

    def create(self, parent: int, name: str, mode: int, *, direct: bool = False) -> int:
        descriptor = self.inner.create(parent, name, mode, direct=direct)
        self._record_entry(OpKind.CREATE, parent, name)
        return descriptor

    def open_update(self, parent: int, name: str, *, direct: bool = False) -> int:
        return self.inner.open_update(parent, name, direct=direct)

    def open_read(self, parent: int, name: str, *, direct: bool = False) -> int:
        return self.inner.open_read(parent, name, direct=direct)

    def open_starts(self, root: int, groups: Sequence[str], name: str, size_bytes: int) -> None:  # noqa: ARG002 - opens are to be recorded
        return None

    def open_append(self, parent: int, name: str, mode: int) -> int:
        is_new = all(name != found for found, _ in self.inner.list_dir(parent))
        descriptor = self.inner.open_append(parent, name, mode)
        if is_new:
            self._record_entry(OpKind.CREATE, parent, name)
        return descriptor

    def write_at(self, descriptor: int, data: memoryview, offset: int) -> int:
        written = self.inner.write_at(descriptor, data, offset)
        kept = bytes(data[:written])
        self._record(Operation(OpKind.WRITE, self._inode(descriptor), offset=offset, data=kept))
        return written

    def append(self, descriptor: int, data: bytes) -> int:
        offset = self.inner.info(descriptor).size_bytes
        written = self.inner.append(descriptor, data)
        kept = bytes(data[:written])
        self._record(Operation(OpKind.WRITE, self._inode(descriptor), offset=offset, data=kept))
        return written

    def read_at(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        return self.inner.read_at(descriptor, buffers, offset)

    def map(self, descriptor: int, size_bytes: int) -> None:  # noqa: ARG002 - reads are to be recorded
        return None

    def is_cached_at(self, descriptor: int, offset: int) -> bool:
        return self.inner.is_cached_at(descriptor, offset)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        self.inner.truncate(descriptor, size_bytes)
        self._record(Operation(OpKind.TRUNCATE, self._inode(descriptor), offset=size_bytes))

    def sync(self, descriptor: int) -> None:
        self.inner.sync(descriptor)
        self._record(Operation(OpKind.SYNC, self._inode(descriptor)))

    def sync_dir(self, descriptor: int) -> None:
        self.inner.sync_dir(descriptor)
        self._record(Operation(OpKind.SYNC_DIR, self._inode(descriptor)))

    def close(self, descriptor: int) -> None:
        self.inner.close(descriptor)

    def rename(self, parent: int, old: str, new: str) -> None:
        child = self.inner.info_at(parent, old).inode
        self.inner.rename(parent, old, new)
        self._record(Operation(OpKind.RENAME, self._inode(parent), old, new, child))

    def unlink(self, parent: int, name: str) -> None:
        child = self.inner.info_at(parent, name).inode
        self.inner.unlink(parent, name)
        self._record(Operation(OpKind.UNLINK, self._inode(parent), name, child=child))

    def remove_dir(self, parent: int, name: str) -> None:
        child = self.inner.info_at(parent, name).inode
        self.inner.remove_dir(parent, name)
        self._record(Operation(OpKind.REMOVE_DIR, self._inode(parent), name, child=child))

    def list_dir(self, descriptor: int) -> list[tuple[str, str]]:
        return self.inner.list_dir(descriptor)

    def info(self, descriptor: int) -> Info:
        return self.inner.info(descriptor)

    def info_at(self, parent: int, name: str) -> Info:
        return self.inner.info_at(parent, name)

    def is_writable(self, directory: int) -> bool:
        return self.inner.is_writable(directory)

    def space(self, descriptor: int) -> Space:
        return self.inner.space(descriptor)

    def lock(self, descriptor: int) -> bool:
        return self.inner.lock(descriptor)

    def unlock(self, descriptor: int) -> None:
        self.inner.unlock(descriptor)

    def lock_is_taken(self, descriptor: int) -> bool:
        return self.inner.lock_is_taken(descriptor)

    def _inode(self, descriptor: int) -> int:
        return self.inner.info(descriptor).inode

    def _record_entry(self, kind: str, parent: int, name: str) -> None:
        child = self.inner.info_at(parent, name).inode
        self._record(Operation(kind, self._inode(parent), name, child=child))

    def _record(self, operation: Operation) -> None:
        with self._guard:
            self.operations.append(operation)
