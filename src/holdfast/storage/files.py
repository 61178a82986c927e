"""Every file operation of stores and commit, one method each, so that they can be recorded, failed and counted.

Nothing above this module calls `os` for the contents of a run. Names are always relative to a directory descriptor and
never followed through a link. Errors are plain OSError here; the store translates them.
"""

import errno
import fcntl
import os
import stat
import struct
from collections.abc import Sequence

from holdfast.core.light_typing import NamedTuple

# As in holdfast/__init__.py: `holdfast ls` is to start at once.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes
    import mmap

__all__ = [
    "FileKind",
    "Files",
    "Info",
    "Space",
    "Start",
    "close_quietly",
    "direct_io_is_refused",
    "read_some",
    "read_through",
]

_RENAME_NOREPLACE = 1
_NOREPLACE_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
_LINK_UNSUPPORTED = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
_LOCK_TAKEN = (errno.EAGAIN, errno.EACCES)
# struct flock of fcntl(2): type, whence, start, length, pid; the empty last item pads it to its alignment.
_FLOCK = struct.Struct("hhqqi0q")


_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a FIFO put in the place of a file must not hang us; the kind is checked by the caller.
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FileKind:
    """What a directory entry is; anything that is neither file nor directory is never opened."""

    FILE = "file"
    DIRECTORY = "directory"
    OTHER = "other"


_KINDS = {stat.S_IFREG: FileKind.FILE, stat.S_IFDIR: FileKind.DIRECTORY}


Start = tuple[int, int, int, bytes | int] | int | None
"""A file that was just opened: descriptor, device, inode, and its first bytes or why they cannot be read (an `errno`).

An `errno` alone where it could not be opened, None where it is not there or no ordinary file.
"""


class Info(NamedTuple):
    """What matters of an inode."""

    kind: str
    size_bytes: int
    uid: int
    mode: int
    device: int
    inode: int


class Space(NamedTuple):
    """What is left for an ordinary user."""

    free_bytes: int
    free_inodes: int
    total_bytes: int


def direct_io_is_refused(error: OSError) -> bool:
    """Whether a file system says that it does not do direct I/O (at open or at the first write)."""
    return error.errno in (errno.EINVAL, errno.ENOTSUP)


class Files:
    """The real file system."""

    def open_root(self, path: str) -> int:
        """A descriptor for the directory at the path; the one place where a path is followed."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def open_dir(self, parent: int, name: str) -> int:
        return os.open(name, _DIRECTORY_FLAGS, dir_fd=parent)

    def make_dir(self, parent: int, name: str, mode: int) -> None:
        os.mkdir(name, mode, dir_fd=parent)
        if stat.S_IMODE(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode) & mode != mode:
            os.chmod(name, mode, dir_fd=parent)  # the umask took bits from the owner himself

    def create(self, parent: int, name: str, mode: int, *, direct: bool = False) -> int:
        """A new file for reading and writing; the name must be free."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return _with_mode(os.open(name, flags | (os.O_DIRECT if direct else 0), mode, dir_fd=parent), mode)

    def open_update(self, parent: int, name: str, *, direct: bool = False) -> int:
        """A file that is there already, for writing at offsets and for locking."""
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(name, flags | (os.O_DIRECT if direct else 0), dir_fd=parent)

    def open_read(self, parent: int, name: str, *, direct: bool = False) -> int:
        return os.open(name, _READ_FLAGS | os.O_DIRECT if direct else _READ_FLAGS, dir_fd=parent)

    def open_starts(self, root: int, groups: Sequence[str], name: str, size_bytes: int) -> "list[Start] | None":
        """`group/name` of each group, open, with its first bytes; None where they have to be opened one by one."""
        if type(self) is not Files:
            return None  # whoever overrides a single call is to see all of them
        from holdfast import native  # only of use to a listing

        return native.open_starts(root, groups, name, size_bytes)

    def open_append(self, parent: int, name: str, mode: int) -> int:
        """A file to append to and to lock, made if it is not there."""
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            return os.open(name, flags, dir_fd=parent)
        except FileNotFoundError:
            return _with_mode(os.open(name, flags | os.O_CREAT, mode, dir_fd=parent), mode)

    def write_at(self, descriptor: int, data: memoryview, offset: int) -> int:
        """How many bytes were written: possibly fewer than given."""
        return os.pwrite(descriptor, data, offset)

    def append(self, descriptor: int, data: bytes) -> int:
        return os.write(descriptor, data)

    def read_at(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        """How many bytes were read into the buffers: possibly fewer than asked, 0 at the end."""
        return os.preadv(descriptor, buffers, offset)

    def map(self, descriptor: int, size_bytes: int) -> "mmap.mmap | None":
        """So many bytes of the file as memory, to be read; None where that cannot be had."""
        import mmap  # not needed by a program that only lists

        return mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_READ)

    def is_cached_at(self, descriptor: int, offset: int) -> bool:
        """Whether the page at the offset is in memory; True where the system cannot say."""
        try:
            os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
                raise
        return True

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        os.ftruncate(descriptor, size_bytes)

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def sync_dir(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def rename(self, parent: int, old: str, new: str) -> None:
        """Rename within a directory; FileExistsError where the new name is taken, whatever the file system can do."""
        try:
            _rename_noreplace(parent, old, new)
        except OSError as error:
            if error.errno not in _NOREPLACE_UNSUPPORTED:
                raise
            self._rename_by_link(parent, old, new)

    def unlink(self, parent: int, name: str) -> None:
        os.unlink(name, dir_fd=parent)

    def remove_dir(self, parent: int, name: str) -> None:
        os.rmdir(name, dir_fd=parent)

    def list_dir(self, descriptor: int) -> list[tuple[str, str]]:
        """(name, kind) of every entry, unordered."""
        # Copies of a descriptor share one position: threads that list the same directory would take entries from each
        # other. So each listing opens its own.
        own = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=descriptor)
        try:
            with os.scandir(own) as entries:
                return [(entry.name, _entry_kind(entry)) for entry in entries]
        finally:
            os.close(own)

    def info(self, descriptor: int) -> Info:
        return _info(os.fstat(descriptor))

    def info_at(self, parent: int, name: str) -> Info:
        return _info(os.stat(name, dir_fd=parent, follow_symlinks=False))

    def is_writable(self, directory: int) -> bool:
        """Whether this process may make files in the directory: rights, and no read-only mount."""
        return os.access(".", os.W_OK | os.X_OK, dir_fd=directory, effective_ids=True)

    def space(self, descriptor: int) -> Space:
        found = os.fstatvfs(descriptor)
        # Some file systems (btrfs) count no inodes and say 0 of 0: that is "no limit", not "none left".
        inodes = found.f_favail if found.f_files else 1 << 62
        return Space(found.f_bavail * found.f_frsize, inodes, found.f_blocks * found.f_frsize)

    def lock(self, descriptor: int) -> bool:
        """Take the file's lock for this process if it is free. The system gives it back when the process dies.

        POSIX record locks, not flock: a forked worker must not keep the lock of a dead training alive.
        """
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _LOCK_TAKEN:
                return False
            raise
        return True

    def unlock(self, descriptor: int) -> None:
        fcntl.lockf(descriptor, fcntl.LOCK_UN)

    def lock_is_taken(self, descriptor: int) -> bool:
        """Whether another process has the file's lock. Asks only: a lock taken to try would turn others away."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind: int = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))[0]
        return kind != fcntl.F_UNLCK

    def _rename_by_link(self, parent: int, old: str, new: str) -> None:
        try:
            os.link(old, new, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _LINK_UNSUPPORTED:
                raise
            # Neither exclusive rename nor links: the run's lock and names that are never reused have to do.
            try:
                os.stat(new, dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError:
                os.rename(old, new, src_dir_fd=parent, dst_dir_fd=parent)
                return
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new) from None
        os.unlink(old, dir_fd=parent)


def close_quietly(files: Files, descriptor: int) -> None:
    """Close what was only read, was synced before, or is given up: a failed close loses nothing then."""
    try:
        files.close(descriptor)
    except OSError:
        pass


def read_some(files: Files, descriptor: int, size_bytes: int, offset: int = 0) -> bytes:
    """That many bytes from the offset on, or fewer where the file ends."""
    return read_through(files, descriptor, memoryview(bytearray(size_bytes)), offset)


def read_through(files: Files, descriptor: int, memory: memoryview, offset: int = 0) -> bytes:
    """The same, as many bytes as the memory has, which can serve for the next file, too."""
    size_bytes = len(memory)
    done = files.read_at(descriptor, [memory], offset) if size_bytes else 0
    if done == size_bytes:
        return memory.tobytes()
    while 0 < done < size_bytes:
        count = files.read_at(descriptor, [memory[done:]], offset + done)
        if count == 0:
            break
        done += count
    return memory[:done].tobytes()


def _with_mode(descriptor: int, mode: int) -> int:
    """The descriptor of a new file, with the bits that the umask took from its owner given back."""
    try:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) & mode != mode:
            os.fchmod(descriptor, mode)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _rename_noreplace(parent: int, old: str, new: str) -> None:
    renameat2 = getattr(_libc(), "renameat2", None)
    if renameat2 is None:
        raise OSError(errno.ENOSYS, "renameat2 is not available")
    if renameat2(parent, os.fsencode(old), parent, os.fsencode(new), _RENAME_NOREPLACE) != 0:
        import ctypes

        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), new)


_loaded_libc: "list[ctypes.CDLL]" = []


def _libc() -> "ctypes.CDLL":
    if not _loaded_libc:
        import ctypes  # 10 ms, which a program that only lists and reads does not pay

        _loaded_libc.append(ctypes.CDLL(None, use_errno=True))
    return _loaded_libc[0]


def _info(found: os.stat_result) -> Info:
    mode, inode, device, _, uid, _, size_bytes = found[:7]
    kind = _KINDS.get(stat.S_IFMT(mode), FileKind.OTHER)
    return Info(kind, size_bytes, uid, stat.S_IMODE(mode), device, inode)


def _entry_kind(entry: "os.DirEntry[str]") -> str:
    if entry.is_dir(follow_symlinks=False):
        return FileKind.DIRECTORY
    return FileKind.FILE if entry.is_file(follow_symlinks=False) else FileKind.OTHER
