"""A store in memory: the reference that says how a store behaves, and a fast one for tests."""

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from holdfast.core.errors import (
    BlobExistsError,
    BlobMissingError,
    IntegrityError,
    NoSpaceError,
    RunBusyError,
    StorageError,
)
from holdfast.core.limits import PAGE_BYTES
from holdfast.core.names import check_name
from holdfast.storage.files import Space
from holdfast.storage.store import BlobInfo, Reader, Writer, split_key

__all__ = ["MemoryStore"]

_UNLIMITED_BYTES = 1 << 62


class _Contents:
    """What all handles of one store share."""

    def __init__(self, capacity_bytes: int | None) -> None:
        self.guard = threading.RLock()
        self.run_lock = threading.Lock()
        self.capacity_bytes = _UNLIMITED_BYTES if capacity_bytes is None else capacity_bytes
        self.groups: dict[str, dict[str, bytearray]] = {"": {}}
        self.unfinished: set[tuple[str, str]] = set()
        self.holders: dict[str, MemoryStore] = {}

    def free_bytes(self) -> int:
        used = sum(len(blob) for blobs in self.groups.values() for blob in blobs.values())
        return self.capacity_bytes - used

    def take(self, size_bytes: int, where: str) -> None:
        if size_bytes > self.free_bytes():
            raise NoSpaceError(f"{where}: {size_bytes} bytes are wanted, {self.free_bytes()} are left")

    def finished(self, group: str) -> dict[str, bytearray]:
        blobs = self.groups.get(group, {})
        return {name: blob for name, blob in blobs.items() if (group, name) not in self.unfinished}


class MemoryStore:
    """Blobs in this process's memory. `another` is what a second process is for a file system: the same blobs."""

    def __init__(self, name: str = "memory", *, capacity_bytes: int | None = None) -> None:
        self._location = name
        self._contents = _Contents(capacity_bytes)

    def another(self) -> "MemoryStore":
        """A second handle to the same blobs, with holds of its own."""
        return copy.copy(self)

    @property
    def location(self) -> str:
        return self._location

    def list(self, group: str = "") -> list[BlobInfo]:
        if group:
            check_name(group)
        with self._contents.guard:
            found = [BlobInfo(name, is_group=False) for name in self._contents.finished(group)]
            if not group:
                found += [BlobInfo(name, is_group=True) for name in self._contents.groups if name]
        return sorted(found)

    def list_heads(self, groups: Sequence[str], name: str, size_bytes: int) -> Sequence[bytes | None]:
        check_name(name)
        with self._contents.guard:
            blobs = [self._contents.finished(check_name(group)).get(name) for group in groups]
            return [None if blob is None else bytes(blob[:size_bytes]) for blob in blobs]

    def read(self, key: str, limit_bytes: int) -> bytes:
        blob = self._find(key)
        if len(blob) > limit_bytes:
            raise IntegrityError(f"{self._where(key)}: has {len(blob)} bytes, at most {limit_bytes} were expected")
        return bytes(blob)

    def open(self, key: str) -> Reader:
        return _MemoryReader(bytes(self._find(key)), self._where(key))

    def create(self, key: str, size_bytes: int) -> Writer:  # noqa: ARG002  for stores that must know it before
        group, name = split_key(key)
        with self._contents.guard:
            self._add(key, bytearray())
            self._contents.unfinished.add((group, name))
        return _MemoryWriter(self._contents, group, name, self._where(key))

    def publish(self, key: str, data: bytes, *, make_group: bool = True) -> None:
        group, _ = split_key(key)
        with self._contents.guard:
            if not make_group and group not in self._contents.groups:
                raise BlobMissingError(f"{self._where(key)}: its group does not exist")
            self._contents.take(len(data), self._where(key))
            self._add(key, bytearray(data))

    def append(self, key: str, line: bytes, *, durable: bool) -> None:  # noqa: ARG002  memory is as durable as it gets
        group, name = split_key(key)
        with self._contents.guard:
            old = bytes(self._contents.groups.get(group, {}).get(name, b""))
            added = (b"\n" if old and not old.endswith(b"\n") else b"") + line.removesuffix(b"\n") + b"\n"
            self._contents.take(len(added), self._where(key))
            self._contents.groups.setdefault(group, {})[name] = bytearray(old + added)

    def read_tail(self, key: str, limit_bytes: int) -> bytes:
        try:
            blob = self._find(key)
        except BlobMissingError:
            return b""
        return bytes(blob[max(0, len(blob) - limit_bytes) :])

    def remove(self, key: str) -> None:
        group, name = split_key(key)
        with self._contents.guard:
            if not group and name in self._contents.groups:
                raise IntegrityError(f"{self._where(key)}: is a group, not a blob")
            self._contents.groups.get(group, {}).pop(name, None)

    def remove_group(self, group: str) -> None:
        check_name(group)
        with self._contents.guard:
            self._contents.groups.pop(group, None)

    def space(self) -> Space:
        with self._contents.guard:
            return Space(self._contents.free_bytes(), _UNLIMITED_BYTES, self._contents.capacity_bytes)

    def exclusive(self, deadline_s: float, on_wait: Callable[[], None] | None = None) -> AbstractContextManager[None]:
        return self._exclusive(deadline_s, on_wait)

    def hold(self, key: str) -> bool:
        self._find(key)
        with self._contents.guard:
            return key not in self._contents.holders and self._contents.holders.setdefault(key, self) is self

    def is_held(self, key: str) -> bool:
        split_key(key)
        with self._contents.guard:
            return key in self._contents.holders

    def let_go(self, key: str) -> None:
        with self._contents.guard:
            if self._contents.holders.get(key) is self:
                del self._contents.holders[key]

    def close(self) -> None:
        for key in tuple(self._contents.holders):
            self.let_go(key)

    @contextmanager
    def _exclusive(self, deadline_s: float, on_wait: Callable[[], None] | None) -> Iterator[None]:
        lock = self._contents.run_lock
        if not lock.acquire(blocking=False):
            if on_wait is not None:
                on_wait()
            if not lock.acquire(timeout=deadline_s):
                raise RunBusyError(f"{self._location}: another thread had the run's lock for {deadline_s:g} s")
        try:
            yield
        finally:
            lock.release()

    def _where(self, key: str) -> str:
        return f"{self._location}/{key}"

    def _find(self, key: str) -> bytearray:
        group, name = split_key(key)
        with self._contents.guard:
            if not group and name in self._contents.groups:
                raise IntegrityError(f"{self._where(key)}: is a group, not a blob")
            blob = self._contents.groups.get(group, {}).get(name)
        if blob is None:
            raise BlobMissingError(f"{self._where(key)}: does not exist")
        return blob

    def _add(self, key: str, blob: bytearray) -> None:
        group, name = split_key(key)
        if group in self._contents.groups[""]:
            raise IntegrityError(f"{self._location}/{group}: is a blob, not a group")
        blobs = self._contents.groups.setdefault(group, {})
        if name in blobs or (not group and name in self._contents.groups):
            raise BlobExistsError(f"{self._where(key)}: exists already", hint="names are never used again")
        blobs[name] = blob


class _MemoryWriter:
    alignment = PAGE_BYTES

    def __init__(self, contents: _Contents, group: str, name: str, where: str) -> None:
        self._contents = contents
        self._place = (group, name)
        self._where = where
        self._blob = contents.groups[group][name]
        self._is_open = True
        self._failed = False

    def write_at(self, block: memoryview, offset: int) -> None:
        with self._contents.guard:
            self._check_open()
            end = offset + block.nbytes
            grown = max(0, end - len(self._blob))
            self._failed = True
            self._contents.take(grown, self._where)
            self._failed = False
            self._blob.extend(bytes(grown))
            self._blob[offset:end] = block.cast("B")

    def finish(self, size_bytes: int) -> None:
        with self._contents.guard:
            self._check_open()
            if len(self._blob) < size_bytes:
                found = f"has {len(self._blob)} bytes, {size_bytes} were expected"
                raise StorageError(f"{self._where}: {found}: blocks are missing")
            del self._blob[size_bytes:]
            self._contents.unfinished.discard(self._place)
            self._is_open = False

    def abandon(self) -> None:
        with self._contents.guard:
            if self._is_open:
                group, name = self._place
                self._contents.groups.get(group, {}).pop(name, None)
                self._contents.unfinished.discard(self._place)
                self._is_open = False

    def _check_open(self) -> None:
        if self._failed or not self._is_open:
            state = "failed before" if self._failed else "was finished or abandoned before"
            raise StorageError(f"{self._where}: writing it {state}")


class _MemoryReader:
    def __init__(self, blob: bytes, where: str) -> None:
        self._blob = blob
        self._where = where
        self.size_bytes = len(blob)

    def read_at(self, buffers: Sequence[memoryview], offset: int) -> None:
        wanted = sum(buffer.nbytes for buffer in buffers)
        if offset < 0 or offset + wanted > self.size_bytes:
            raise IntegrityError(
                f"{self._where}: bytes {offset} to {offset + wanted} were wanted, it has {self.size_bytes}"
            )
        for buffer in buffers:
            buffer.cast("B")[:] = self._blob[offset : offset + buffer.nbytes]
            offset += buffer.nbytes

    def read_checked(self, buffers: Sequence[memoryview], offset: int, chunk_bytes: int) -> None:  # noqa: ARG002 - nothing is faster
        return None

    def is_cached(self) -> bool:
        return True

    def close(self) -> None:
        pass
