"""What this process has locked: the blobs that it holds as a live writer, and the run's lock.

POSIX record locks belong to a process: its own descriptors never conflict, and closing any one of them drops the lock.
So what this process has locked is kept in one registry. Whoever closes a descriptor of a run's file asks the registry,
and a descriptor of a locked file is kept open until the lock is let go.

Nothing that may hang is done with the registry's guard held, but to hold a blob: a storage that does not answer must
not stop those who write elsewhere.
"""

import errno
import os
from _thread import RLock, allocate_lock  # what `threading` has, without the time to load it for a listing
from collections.abc import Sequence

from holdfast.storage.files import Files, Info, Start, close_quietly, read_through
from holdfast.storage.translate import check_ordinary

# As in holdfast/__init__.py: `holdfast ls` is to start at once.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading

__all__ = [
    "LockedFile",
    "Registry",
    "close_blob",
    "current_registry",
    "hold_blob",
    "identity_of",
    "is_held",
    "let_go",
    "open_blob",
    "put_back",
    "read_start",
    "read_starts",
    "try_lock",
    "unlock",
]

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
_CLOSING_S = 10.0

_Identity = tuple[int, int]


class LockedFile:
    """A file with a lock of this process, and the descriptors of it that must not be closed yet."""

    __slots__ = ("descriptor", "files", "identity", "others", "registry", "spare", "turn", "users")

    def __init__(self, registry: "Registry", files: Files, descriptor: int, identity: _Identity) -> None:
        self.registry = registry
        self.files = files
        self.descriptor = descriptor
        self.identity = identity
        self.spare: list[int] = []
        self.others: list[int] = []
        self.users = 0
        self.turn = allocate_lock()

    def retire(self) -> "LockedFile":
        """With the registry's guard held, before `close`: nobody finds it any more."""
        self.registry.begin_closing(self, self.identity)
        self.registry.kept.pop(self.identity, None)
        return self

    def close(self) -> None:
        """Close everything, and so unlock. Without the guard."""
        try:
            for descriptor in (self.descriptor, *self.spare, *self.others):
                close_quietly(self.files, descriptor)
        finally:
            self.registry.end_closing(self, self.identity)


class Registry:
    """What one process has locked."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        # Reentrant: a signal handler may save while the interrupted code, in the same thread, has it.
        self.guard = RLock()
        self.kept: dict[_Identity, LockedFile] = {}
        self._closing: dict[_Identity, set[object]] = {}
        self._closed: threading.Condition | None = None  # made by the first who waits

    def begin_closing(self, who: object, identity: _Identity) -> None:
        """With the guard held: a descriptor of that file is about to be closed, which would drop a lock on it."""
        self._closing.setdefault(identity, set()).add(who)

    def end_closing(self, who: object, *identities: _Identity) -> None:
        """They are closed; or that was not begun, where Ctrl-C came first."""
        with self.guard:
            for identity in identities:
                closing = self._closing.get(identity, set())
                closing.discard(who)
                if not closing:
                    self._closing.pop(identity, None)
            if self._closed is not None:
                self._closed.notify_all()

    def wait_for_closing(self, identity: _Identity) -> bool:
        """Whether it can be locked, after a moment if need be. With the guard held, which others get meanwhile."""
        if identity not in self._closing:
            return True
        if self._closed is None:
            import threading

            self._closed = threading.Condition(self.guard)
        return self._closed.wait_for(lambda: identity not in self._closing, _CLOSING_S)


_newest = Registry()


def current_registry() -> Registry:
    """What this process has locked; a forked child begins with nothing."""
    global _newest
    # After a fork the child has the parent's memory, but none of its locks, and a guard that nobody may ever release.
    if _newest.pid != os.getpid():
        _newest = Registry()
    return _newest


def open_blob(files: Files, parent: int, name: str, where: str, *, direct: bool = False) -> tuple[int, Info]:
    """A descriptor for reading, and what it is; IntegrityError where it is no ordinary file. For `put_back`."""
    registry = current_registry()
    if registry.kept and not direct:
        identity = identity_of(files.info_at(parent, name))
        with registry.guard:
            kept = registry.kept.get(identity)
            spare = kept.spare.pop() if kept is not None and kept.spare else None
        if spare is not None:
            return spare, files.info(spare)
    descriptor = files.open_read(parent, name, direct=direct)
    try:
        info = files.info(descriptor)
    except BaseException:
        close_quietly(files, descriptor)
        raise
    try:
        check_ordinary(info, where)
    except BaseException:
        put_back(files, descriptor, info)
        raise
    return descriptor, info


def read_start(files: Files, root: int, group: str, name: str, memory: memoryview) -> bytes:
    """The first bytes of a blob, as many as fit into the memory."""
    parent = files.open_dir(root, group)
    try:
        descriptor, info = open_blob(files, parent, name, name)
    finally:
        close_quietly(files, parent)
    try:
        return read_through(files, descriptor, memory[: min(info.size_bytes, len(memory))])
    finally:
        put_back(files, descriptor, info)


def read_starts(
    files: Files, root: int, groups: Sequence[str], name: str, size_bytes: int
) -> "list[bytes | int | None] | None":
    """`read_start` of each group, all at once; None where they have to be read one by one.

    None for a blob that is not there or no file, an `errno` for one that could not be read.
    """
    registry = current_registry()
    if registry.kept:
        return None  # they are read through descriptors that are kept for it
    starts = files.open_starts(root, groups, name, size_bytes)
    if starts is None:
        return None
    _close_starts(registry, files, starts)
    return [start[-1] if isinstance(start, tuple) else start for start in starts]


def _close_starts(registry: Registry, files: Files, starts: "list[Start]") -> None:
    closing: list[tuple[int, _Identity]] = []
    who = object()
    try:
        with registry.guard:
            for start in starts:
                if isinstance(start, tuple):
                    descriptor, device, inode, _ = start
                    kept = registry.kept.get((device, inode))
                    if kept is not None:  # by another thread, since they were opened
                        kept.spare.append(descriptor)
                        continue
                    closing.append((descriptor, (device, inode)))
                    registry.begin_closing(who, (device, inode))
        for descriptor, _ in closing:
            close_quietly(files, descriptor)
    finally:
        registry.end_closing(who, *[identity for _, identity in closing])


def close_blob(files: Files, descriptor: int, info: Info, *, spare: bool = True) -> None:
    """Close a descriptor of a run's file, unless that would drop a lock. `spare`: it may serve another reader."""
    registry, identity, who = current_registry(), identity_of(info), object()
    try:
        with registry.guard:
            kept = registry.kept.get(identity)
            if kept is None:
                registry.begin_closing(who, identity)
            elif spare:
                kept.spare.append(descriptor)
            else:
                kept.others.append(descriptor)
        if kept is None:
            files.close(descriptor)
    finally:
        # Also where Ctrl-C comes before it is closed: or nobody could lock the file any more.
        registry.end_closing(who, identity)


def put_back(files: Files, descriptor: int, info: Info, *, spare: bool = True) -> None:
    """`close_blob` for a descriptor that was only read: a failed close loses nothing."""
    try:
        close_blob(files, descriptor, info, spare=spare)
    except OSError:
        pass


def hold_blob(files: Files, parent: int, name: str, where: str) -> LockedFile | None:
    """Lock the blob for this process; None where it is locked already, by this process or another one."""
    registry = current_registry()
    with registry.guard:
        identity = identity_of(files.info_at(parent, name))
        if not registry.wait_for_closing(identity):
            raise TimeoutError(errno.ETIMEDOUT, "a thread that closes it does not come back", name)
        if identity in registry.kept:
            return None
        descriptor = files.open_update(parent, name)
        try:
            info = files.info(descriptor)
            check_ordinary(info, where)
            locked = try_lock(files, descriptor, where)
        except BaseException:
            close_quietly(files, descriptor)
            raise
        if not locked:
            close_quietly(files, descriptor)
            return None
        kept = LockedFile(registry, files, descriptor, identity_of(info))
        registry.kept[kept.identity] = kept
        return kept


def let_go(kept: LockedFile) -> None:
    """Unlock. Nothing where it is a forked child that asks: the lock is its parent's."""
    if kept.registry is current_registry():
        from holdfast.core.interrupts import interrupts_deferred  # which `holdfast ls` does without

        with interrupts_deferred():
            with kept.registry.guard:
                is_open = kept.registry.kept.get(kept.identity) is kept
                if is_open:
                    kept.retire()
            if is_open:
                kept.close()


def is_held(files: Files, parent: int, name: str, where: str) -> bool:
    """Whether this or another process has the blob locked."""
    if identity_of(files.info_at(parent, name)) in current_registry().kept:
        return True
    descriptor, info = open_blob(files, parent, name, where)
    try:
        return files.lock_is_taken(descriptor)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _warn_no_locks(where)
        return False
    finally:
        put_back(files, descriptor, info)


def identity_of(info: Info) -> _Identity:
    """What is the same for all names and descriptors of a file."""
    return info.device, info.inode


def try_lock(files: Files, descriptor: int, where: str) -> bool:
    """Whether the lock is ours now; also True, with a warning, where the file system has no locks."""
    try:
        return files.lock(descriptor)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _warn_no_locks(where)
        return True


def unlock(kept: LockedFile) -> None:
    """Give the lock back, and keep the file open for the next time."""
    if kept.registry.kept.get(kept.identity) is not kept:
        return  # closed meanwhile, which unlocked it
    try:
        kept.files.unlock(kept.descriptor)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _warn_no_locks(where: str) -> None:
    if not _warned:
        import logging  # 10 ms, for a message that hardly anybody ever sees

        _warned.append(where)
        logging.getLogger("holdfast").warning(
            "%s: the file system has no locks; only exclusive creation guards against a second writer", where
        )


_warned: list[str] = []
