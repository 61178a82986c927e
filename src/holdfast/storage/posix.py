"""A store in a directory of a file system: node-local disks, NFS, parallel file systems."""

import errno
import os
from collections.abc import Callable, Sequence

from holdfast.core.clock import Clock, SystemClock
from holdfast.core.errors import BlobMissingError, IntegrityError, UsageError
from holdfast.core.light_typing import TypeVar
from holdfast.core.names import LOCK_NAME, check_name
from holdfast.storage.files import FileKind, Files, Info, Space, close_quietly, read_some
from holdfast.storage.group_directories import GroupDirectories
from holdfast.storage.posix_locks import (
    LockedFile,
    close_blob,
    hold_blob,
    is_held,
    let_go,
    open_blob,
    put_back,
    read_start,
    read_starts,
)
from holdfast.storage.retry import retried
from holdfast.storage.run_directory import open_run_directory
from holdfast.storage.store import BlobInfo, Reader, Writer, split_key
from holdfast.storage.translate import Boundary, check_ordinary

# As in holdfast/__init__.py: `holdfast ls` is to start at once.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from holdfast.storage.run_lock import RunLock

__all__ = ["PosixStore"]

_T = TypeVar("_T")
_FILE_MODE = 0o600
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)
_REMOVE_ROUNDS = 3
# As many descriptors are open at a time.
_READ_AT_ONCE = 32


class PosixStore:
    """The blobs of one run as files, each group as a directory. Names are never followed through links."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        create: bool = False,
        readonly: bool = False,
        files: Files | None = None,
        clock: Clock | None = None,
        direct: bool = True,
    ) -> None:
        """Open the run's directory, made if `create`. RunError where it is missing, foreign or open to others.

        `direct`: write and read past the page cache where the file system allows it.
        """
        if not isinstance(path, str | os.PathLike) or isinstance(os.fspath(path), bytes):
            raise UsageError(f"{path!r} is not a path", hint="give the path of a directory for the run, as text")
        self._location = os.fspath(path)
        self._files = Files() if files is None else files
        self._clock: Clock = SystemClock() if clock is None else clock
        self._direct = direct
        root = open_run_directory(self._location, create=create, readonly=readonly, files=self._files)
        self._groups = GroupDirectories(self._files, self._clock, root, location=self._location, readonly=readonly)
        self._lock = None if readonly else self._make_lock()
        self._held: dict[str, LockedFile] = {}

    @property
    def location(self) -> str:
        return self._location

    def list(self, group: str = "") -> list[BlobInfo]:
        with self._boundary("listing", group):
            try:
                found = self._groups.read_in(group, self._files.list_dir)
            except FileNotFoundError:
                return []
        own = LOCK_NAME if not group else ""
        return [
            BlobInfo(name, kind == FileKind.DIRECTORY)
            for name, kind in sorted(found)
            if not name.startswith(".") and name != own
        ]

    def list_heads(self, groups: Sequence[str], name: str, size_bytes: int) -> Sequence[bytes | None]:
        check_name(name)
        for group in groups:
            check_name(group)

        def read(root: int) -> list[bytes | None]:
            some = (groups[begin : begin + _READ_AT_ONCE] for begin in range(0, len(groups), _READ_AT_ONCE))
            return [head for part in some for head in self._heads(root, part, name, size_bytes)]

        return self._groups.in_root(read)

    def read(self, key: str, limit_bytes: int) -> bytes:
        def read_whole(descriptor: int, info: Info) -> bytes:
            if info.size_bytes > limit_bytes:
                raise IntegrityError(f"{where}: has {info.size_bytes} bytes, at most {limit_bytes} were expected")
            data = read_some(self._files, descriptor, info.size_bytes)
            if len(data) != info.size_bytes:
                raise IntegrityError(f"{where}: ends at byte {len(data)}, {info.size_bytes} were expected")
            return data

        where = self._where(key)
        with self._boundary("reading", key):
            return self._with_blob(key, read_whole)

    def open(self, key: str) -> Reader:
        from holdfast.storage.posix_reader import PosixReader

        group, name = split_key(key)
        where = self._where(key)

        def opener(*, direct: bool) -> tuple[int, Info]:
            return self._groups.read_in(
                group, lambda parent: open_blob(self._files, parent, name, where, direct=direct)
            )

        with self._boundary("opening", key):
            return PosixReader(self._files, self._clock, opener, where=where, direct=self._direct)

    def create(self, key: str, size_bytes: int) -> Writer:  # noqa: ARG002  for stores that must know it before
        from holdfast.storage.posix_writer import PosixWriter

        group, name = split_key(key)
        with self._boundary("creating", key):
            parent = self._groups.open_to_change(group, make=True)
            try:
                return PosixWriter(
                    self._files,
                    parent,
                    name,
                    where=self._where(key),
                    direct=self._direct,
                    space=self._raw_space,
                    close_parent=self._groups.close,
                )
            except BaseException:
                self._groups.close(parent)
                raise

    def publish(self, key: str, data: bytes, *, make_group: bool = True) -> None:
        from holdfast.storage.posix_writer import publish_file

        group, name = split_key(key)

        def publish_and_sync(parent: int) -> None:
            publish_file(self._files, parent, name, data)
            self._files.sync_dir(parent)

        with self._boundary("writing", key):
            self._groups.change_in(group, publish_and_sync, make=make_group)
            if group:
                # I5: the group may be new; its own name has to be durable too before this counts.
                self._files.sync_dir(self._groups.root)

    def append(self, key: str, line: bytes, *, durable: bool) -> None:
        group, name = split_key(key)

        def append_in(parent: int) -> None:
            self._append(parent, name, line, durable=durable, where=self._where(key))
            if durable:
                # Every time: the blob may have been made by a line that was not meant to be durable.
                self._files.sync_dir(parent)

        with self._boundary("appending", key):
            self._groups.change_in(group, append_in, make=True)
            if durable and group:
                self._files.sync_dir(self._groups.root)

    def read_tail(self, key: str, limit_bytes: int) -> bytes:
        def read_end(descriptor: int, info: Info) -> bytes:
            begin = max(0, info.size_bytes - limit_bytes)
            return read_some(self._files, descriptor, info.size_bytes - begin, begin)

        try:
            with self._boundary("reading", key):
                return self._with_blob(key, read_end)
        except BlobMissingError:
            return b""

    def remove(self, key: str) -> None:
        group, name = split_key(key)

        def unlink_and_sync(parent: int) -> None:
            self._unlink(parent, name)
            # Also where it was gone: an earlier try may have failed between the two.
            self._files.sync_dir(parent)

        with self._boundary("removing", key):
            try:
                self._groups.change_in(group, unlink_and_sync)
            except FileNotFoundError:
                pass

    def remove_group(self, group: str) -> None:
        check_name(group)
        with self._boundary("removing", group):
            for _ in range(_REMOVE_ROUNDS):
                try:
                    self._groups.change_in(group, lambda parent: self._empty(parent, group))
                    self._files.remove_dir(self._groups.root, group)
                except FileNotFoundError:
                    break
                except OSError as error:
                    # Somebody still reads there (NFS keeps .nfs files until then), or added a file: once more, then
                    # leave it; without its manifest it is garbage that the next removal finds.
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):
                        raise
                else:
                    break
            self._files.sync_dir(self._groups.root)

    def space(self) -> Space:
        with self._boundary("asking for space", ""):
            return self._raw_space()

    def exclusive(self, deadline_s: float, on_wait: Callable[[], None] | None = None) -> "AbstractContextManager[None]":
        self._groups.check_writable()
        assert self._lock is not None  # as there is one wherever anything can be written
        return self._lock.turn(deadline_s, on_wait)

    def hold(self, key: str) -> bool:
        group, name = split_key(key)
        with self._boundary("locking", key):
            held = self._groups.change_in(group, lambda parent: hold_blob(self._files, parent, name, self._where(key)))
        if held is not None:
            self._held[key] = held
        return held is not None

    def is_held(self, key: str) -> bool:
        group, name = split_key(key)
        with self._boundary("asking for the lock", key):
            try:
                return self._groups.read_in(group, lambda parent: is_held(self._files, parent, name, self._where(key)))
            except FileNotFoundError:
                return False

    def let_go(self, key: str) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            let_go(held)

    def close(self) -> None:
        for key in tuple(self._held):
            self.let_go(key)
        self._groups.close_root()  # first: whoever waits for the lock finds the store closed, and does not take it
        if self._lock is not None:
            self._lock.close()

    def _make_lock(self) -> "RunLock":
        from holdfast.storage.run_lock import RunLock

        return RunLock(self._files, self._clock, self._groups, self._location)

    def _where(self, key: str) -> str:
        return f"{self._location}/{key}" if key else self._location

    def _boundary(self, doing: str, key: str) -> Boundary:
        return Boundary(doing, self._where(key), space=self._raw_space)

    def _raw_space(self) -> Space:
        return self._files.space(self._groups.root)

    def _with_blob(self, key: str, operation: Callable[[int, Info], _T]) -> _T:
        """The result of an operation on the blob, opened for reading."""
        group, name = split_key(key)

        def opened(parent: int) -> _T:
            descriptor, info = open_blob(self._files, parent, name, self._where(key))
            try:
                return operation(descriptor, info)
            finally:
                put_back(self._files, descriptor, info)

        return self._groups.read_in(group, opened)

    def _heads(self, root: int, groups: Sequence[str], name: str, size_bytes: int) -> Sequence[bytes | None]:
        starts = read_starts(self._files, root, groups, name, size_bytes)
        memory = memoryview(bytearray(size_bytes))
        if starts is None:
            return [self._head(root, group, name, memory) for group in groups]
        # What failed is tried again, and told, one by one.
        return [
            self._head(root, group, name, memory) if isinstance(start, int) else start
            for group, start in zip(groups, starts, strict=True)
        ]

    def _head(self, root: int, group: str, name: str, memory: memoryview) -> bytes | None:
        # A listing asks for a thousand: what `read_in` and a boundary would add is paid only where something fails.
        try:
            return retried(read_start, self._clock, self._files, root, group, name, memory)
        except OSError as error:
            if error.errno in _NOT_THERE:
                return None
            with self._boundary("reading", f"{group}/{name}"):
                raise
        except IntegrityError:
            return None  # not a file

    def _append(self, parent: int, name: str, line: bytes, *, durable: bool, where: str) -> None:
        from holdfast.storage.posix_writer import append_all

        descriptor = self._files.open_append(parent, name, _FILE_MODE)
        try:
            info = self._files.info(descriptor)
            check_ordinary(info, where)
            is_torn = info.size_bytes > 0 and read_some(self._files, descriptor, 1, info.size_bytes - 1) != b"\n"
            append_all(self._files, descriptor, (b"\n" if is_torn else b"") + line.removesuffix(b"\n") + b"\n")
            if durable:
                self._files.sync(descriptor)
        except BaseException:
            close_quietly(self._files, descriptor)
            raise
        close_blob(self._files, descriptor, info)

    def _unlink(self, parent: int, name: str) -> None:
        try:
            self._files.unlink(parent, name)
        except FileNotFoundError:
            pass

    def _empty(self, parent: int, group: str) -> None:
        found = self._files.list_dir(parent)
        for name, kind in found:
            if kind == FileKind.DIRECTORY:
                raise IntegrityError(
                    f"{self._where(group)}: holds the directory {name!r}, not made by holdfast; nothing was removed",
                    hint="look at it, and remove it by hand",
                )
        for name, _ in found:
            if not name.startswith(".nfs"):
                self._unlink(parent, name)
