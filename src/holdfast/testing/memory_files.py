"""A file system in memory with the interface of `Files`: no system calls, so that a test can use thousands a second."""

import errno
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from holdfast.storage.files import FileKind, Files, Info, Space

__all__ = ["MemoryFiles", "overwrite", "resize"]

# Far above any descriptor of the system: a call that bypasses this class fails with EBADF instead of hitting a file.
_FIRST_DESCRIPTOR = 1 << 24
# A store keeps what it holds by (device, inode), so no two file systems and no two processes may share a device.
_devices = itertools.count(1 << 40)


class _Node:
    __slots__ = ("data", "entries", "is_removed", "mode", "number")

    def __init__(self, number: int, mode: int, *, data: bytes | None = None) -> None:
        self.number = number
        self.mode = mode
        self.data = data
        """The contents of a file, replaced and never changed; None for a directory."""
        self.entries: dict[str, _Node] = {}
        self.is_removed = False


class _Disk:
    """What the processes of one machine share."""

    def __init__(self) -> None:
        self.numbers = itertools.count(2)
        self.root = _Node(1, 0o700)
        self.lock_owners: dict[int, int] = {}


class MemoryFiles(Files):
    """One process's view of a disk in memory. Inode numbers are never used again; links and devices do not exist."""

    def __init__(self) -> None:
        self._disk = _Disk()
        self._begin_process()

    @classmethod
    def from_tree(cls, tree: Mapping[str, bytes | None]) -> Self:
        """A new disk with these files: `a/b` to contents, or to None for a directory. Parents are made as needed."""
        made = cls()
        for path, data in tree.items():
            made._put(path.strip("/").split("/"), data)
        return made

    def another_process(self) -> Self:
        """The same disk, seen by another process of the same user: its own descriptors, its own locks."""
        other = type(self).__new__(type(self))
        other._disk = self._disk
        other._begin_process()
        return other

    def die(self) -> None:
        """What SIGKILL does: descriptors and locks are gone, the disk stays as it is."""
        self._open.clear()
        for number in [n for n, owner in self._disk.lock_owners.items() if owner == self._device]:
            del self._disk.lock_owners[number]

    def tree(self) -> dict[str, bytes | None]:
        """All paths in sorted order: contents, or None for a directory."""
        return dict(_walk(self._disk.root, ""))

    def put(self, path: str, data: bytes) -> None:
        """Write a file behind the program's back, as damage does: same inode where it exists."""
        self._put(path.strip("/").split("/"), data)

    def nodes(self) -> dict[int, bytes | dict[str, int]]:
        """Contents or entries of every inode that can be reached; the root is inode 1."""
        found: dict[int, bytes | dict[str, int]] = {}
        pending = [self._disk.root]
        while pending:
            node = pending.pop()
            if node.data is not None:
                found[node.number] = node.data
            else:
                found[node.number] = {name: child.number for name, child in node.entries.items()}
                pending.extend(node.entries.values())
        return found

    def open_root(self, path: str) -> int:
        node = self._disk.root
        for name in path.strip("/").split("/"):
            node = self._child(node, name) if name else node
        return self._open_node(_directory(node, path))

    def open_dir(self, parent: int, name: str) -> int:
        return self._open_node(_directory(self._entry(parent, name), name))

    def make_dir(self, parent: int, name: str, mode: int) -> None:
        self._add(parent, name, mode, data=None)

    def create(self, parent: int, name: str, mode: int, *, direct: bool = False) -> int:  # noqa: ARG002 - no page cache
        return self._open_node(self._add(parent, name, mode, data=b""))

    def open_update(self, parent: int, name: str, *, direct: bool = False) -> int:  # noqa: ARG002 - no page cache
        node = self._entry(parent, name)
        if node.data is None:
            raise _error(errno.EISDIR, name)
        return self._open_node(node)

    def open_read(self, parent: int, name: str, *, direct: bool = False) -> int:  # noqa: ARG002 - no page cache
        return self._open_node(self._entry(parent, name))

    def open_starts(self, root: int, groups: Sequence[str], name: str, size_bytes: int) -> None:  # noqa: ARG002 - as the others do
        return None

    def open_append(self, parent: int, name: str, mode: int) -> int:
        node = self._node(parent).entries.get(name)
        if node is not None and node.data is None:
            raise _error(errno.EISDIR, name)
        return self._open_node(node or self._add(parent, name, mode, data=b""))

    def write_at(self, descriptor: int, data: memoryview, offset: int) -> int:
        node = self._file(descriptor)
        node.data = overwrite(node.data or b"", offset, bytes(data))
        return len(data)

    def append(self, descriptor: int, data: bytes) -> int:
        node = self._file(descriptor)
        node.data = (node.data or b"") + bytes(data)
        return len(data)

    def read_at(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        data = self._file(descriptor).data or b""
        begin = offset
        for buffer in buffers:
            part = data[offset : offset + len(buffer)]
            buffer[: len(part)] = part
            offset += len(part)
        return offset - begin

    def map(self, descriptor: int, size_bytes: int) -> None:  # noqa: ARG002 - reads are to be recorded
        return None

    def is_cached_at(self, descriptor: int, offset: int) -> bool:  # noqa: ARG002 - all of it is
        self._file(descriptor)
        return True

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        node = self._file(descriptor)
        node.data = resize(node.data or b"", size_bytes)

    def sync(self, descriptor: int) -> None:
        self._node(descriptor)

    def sync_dir(self, descriptor: int) -> None:
        self._node(descriptor)

    def close(self, descriptor: int) -> None:
        node = self._node(descriptor)
        del self._open[descriptor]
        # As POSIX has it: closing any descriptor of a file drops the process's locks on that file.
        if self._disk.lock_owners.get(node.number) == self._device:
            del self._disk.lock_owners[node.number]

    def rename(self, parent: int, old: str, new: str) -> None:
        entries = self._node(parent).entries
        self._entry(parent, old)
        if new in entries:
            raise _error(errno.EEXIST, new)
        entries[new] = entries.pop(old)

    def unlink(self, parent: int, name: str) -> None:
        if self._entry(parent, name).data is None:
            raise _error(errno.EISDIR, name)
        del self._node(parent).entries[name]

    def remove_dir(self, parent: int, name: str) -> None:
        node = _directory(self._entry(parent, name), name)
        if node.entries:
            raise _error(errno.ENOTEMPTY, name)
        node.is_removed = True
        del self._node(parent).entries[name]

    def list_dir(self, descriptor: int) -> list[tuple[str, str]]:
        return [(name, _kind(node)) for name, node in self._node(descriptor).entries.items()]

    def info(self, descriptor: int) -> Info:
        return self._info(self._node(descriptor))

    def info_at(self, parent: int, name: str) -> Info:
        return self._info(self._entry(parent, name))

    def is_writable(self, directory: int) -> bool:
        return bool(self._node(directory).mode & 0o200)

    def space(self, descriptor: int) -> Space:
        self._node(descriptor)
        return Space(1 << 40, 1 << 30, 1 << 41)

    def lock(self, descriptor: int) -> bool:
        return self._disk.lock_owners.setdefault(self._node(descriptor).number, self._device) == self._device

    def unlock(self, descriptor: int) -> None:
        number = self._node(descriptor).number
        if self._disk.lock_owners.get(number) == self._device:
            del self._disk.lock_owners[number]

    def lock_is_taken(self, descriptor: int) -> bool:
        return self._disk.lock_owners.get(self._node(descriptor).number, self._device) != self._device

    def _begin_process(self) -> None:
        self._device = next(_devices)
        self._descriptors = itertools.count(_FIRST_DESCRIPTOR)
        self._open: dict[int, _Node] = {}

    def _open_node(self, node: _Node) -> int:
        descriptor = next(self._descriptors)
        self._open[descriptor] = node
        return descriptor

    def _node(self, descriptor: int) -> _Node:
        node = self._open.get(descriptor)
        if node is None:
            raise _error(errno.EBADF, str(descriptor))
        return node

    def _file(self, descriptor: int) -> _Node:
        node = self._node(descriptor)
        if node.data is None:
            raise _error(errno.EISDIR, str(descriptor))
        return node

    def _entry(self, parent: int, name: str) -> _Node:
        return self._child(self._node(parent), name)

    def _child(self, node: _Node, name: str) -> _Node:
        child = _directory(node, name).entries.get(name)
        if child is None:
            raise _error(errno.ENOENT, name)
        return child

    def _add(self, parent: int, name: str, mode: int, *, data: bytes | None) -> _Node:
        directory = self._node(parent)
        if name in directory.entries:
            raise _error(errno.EEXIST, name)
        if directory.is_removed:
            raise _error(errno.ENOENT, name)
        node = directory.entries[name] = _Node(next(self._disk.numbers), mode, data=data)
        return node

    def _put(self, names: list[str], data: bytes | None) -> None:
        node = self._disk.root
        for name in names[:-1]:
            node = node.entries.setdefault(name, _Node(next(self._disk.numbers), 0o700))
        mode = 0o700 if data is None else 0o600
        node.entries.setdefault(names[-1], _Node(next(self._disk.numbers), mode, data=data)).data = data

    def _info(self, node: _Node) -> Info:
        return Info(_kind(node), len(node.data or b""), os.geteuid(), node.mode, self._device, node.number)


def overwrite(old: bytes, offset: int, data: bytes) -> bytes:
    """The contents after a write: a gap before it reads as zeros, and writing nothing changes nothing."""
    if not data:
        return old
    return resize(old[:offset], offset) + data + old[offset + len(data) :]


def resize(old: bytes, size_bytes: int) -> bytes:
    """The contents after a truncation: what is added reads as zeros."""
    return old[:size_bytes] + bytes(max(0, size_bytes - len(old)))


def _walk(node: _Node, path: str) -> Iterable[tuple[str, bytes | None]]:
    for name in sorted(node.entries):
        child = node.entries[name]
        yield path + name, child.data
        yield from _walk(child, f"{path}{name}/")


def _directory(node: _Node, name: str) -> _Node:
    if node.data is not None:
        raise _error(errno.ENOTDIR, name)
    return node


def _kind(node: _Node) -> str:
    return FileKind.DIRECTORY if node.data is None else FileKind.FILE


def _error(number: int, name: str) -> OSError:
    return OSError(number, os.strerror(number), name)
