"""The run's lock: one committer, deleter or taker-over at a time, among all processes and threads."""

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from holdfast.core.clock import Clock
from holdfast.core.errors import RunBusyError
from holdfast.core.names import LOCK_NAME
from holdfast.storage.files import Files, close_quietly
from holdfast.storage.group_directories import GroupDirectories
from holdfast.storage.posix_locks import LockedFile, Registry, current_registry, identity_of, try_lock, unlock
from holdfast.storage.translate import Boundary, check_ordinary

if TYPE_CHECKING:
    from contextlib import AbstractContextManager  # kept off the start of `holdfast ls`

__all__ = ["RunLock"]

_FILE_MODE = 0o600
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05


class RunLock:
    """The lock of a run, as one store sees it. All stores of a process share the lock's one descriptor."""

    def __init__(self, files: Files, clock: Clock, groups: GroupDirectories, location: str) -> None:
        self._files = files
        self._clock = clock
        self._groups = groups
        self._location = location
        self._where = f"{location}/{LOCK_NAME}"
        self._kept: LockedFile | None = None

    def turn(self, deadline_s: float, on_wait: Callable[[], None] | None) -> "_Turn":
        """A context in which this thread has the lock."""
        return _Turn(self, deadline_s, on_wait)

    def acquire(self, deadline_s: float, on_wait: Callable[[], None] | None) -> LockedFile:
        """Wait for the lock, at most that long; RunBusyError then."""
        from holdfast.core.interrupts import interrupts_let_through

        end_s = self._clock.monotonic_s() + deadline_s
        pause_s = _FIRST_PAUSE_S
        while True:
            with Boundary("locking", self._where):
                kept = self._groups.in_root(self._try)
            if kept is not None:
                return kept
            if self._clock.monotonic_s() >= end_s:
                raise RunBusyError(
                    f"{self._location}: another process or thread has the run's lock, and kept it for {deadline_s:g} s",
                    hint=f"see who has it with fuser -v {self._where}, and try again",
                )
            with interrupts_let_through():
                if on_wait is not None:
                    on_wait()
                    on_wait = None
                self._clock.sleep(min(pause_s, max(0.0, end_s - self._clock.monotonic_s())))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def release(self, kept: LockedFile) -> None:
        if kept.registry is not current_registry():
            return  # a child that was forked in between: the lock is its parent's
        with Boundary("unlocking", self._where):
            self._leave(kept)

    def close(self) -> None:
        """Not wanted any more. A thread that has the lock at this moment keeps it until it has done what it does."""
        from holdfast.core.interrupts import interrupts_deferred

        registry = current_registry()
        with interrupts_deferred():
            with registry.guard:
                unused = self._give_up(registry)
            if unused is not None:
                unused.close()

    def _try(self, directory: int) -> LockedFile | None:
        kept = self._open(directory)
        if not kept.turn.acquire(blocking=False):
            return None
        locked = False
        try:
            locked = (
                _is_usable(kept)
                and try_lock(self._files, kept.descriptor, self._where)
                and self._is_in_place(kept, directory)
            )
        finally:
            if not locked:
                self._leave(kept)
        return kept if locked else None

    def _open(self, directory: int) -> LockedFile:
        """The lock file's entry, opened at first, and again after a fork or when somebody removed the file."""
        registry = current_registry()
        identity = self._identity(directory)
        unused = None
        try:
            with registry.guard:
                kept = self._kept
                if kept is None or kept.registry is not registry or kept.identity != identity:
                    unused = self._give_up(registry)
                    found = None if identity is None else registry.kept.get(identity)
                    kept = self._kept = found or self._keep(registry, directory)
                    kept.users += 1
                return kept
        finally:
            if unused is not None:
                unused.close()

    def _give_up(self, registry: Registry) -> LockedFile | None:
        """The file, where nobody needs it any more: to be closed. With the guard held."""
        kept, self._kept = self._kept, None
        if kept is None or kept.registry is not registry:
            return None
        kept.users -= 1
        # I11: what a thread does with the lock must not happen without it, though the store is closed.
        return kept.retire() if kept.users == 0 and not kept.turn.locked() else None

    def _leave(self, kept: LockedFile) -> None:
        """End the turn, and with it what was left to its end."""
        try:
            with kept.registry.guard:
                is_left = kept.users == 0 and _is_open(kept)
                if is_left:
                    kept.retire()
            if is_left:
                kept.close()
            else:
                unlock(kept)
        finally:
            kept.turn.release()

    def _identity(self, directory: int) -> tuple[int, int] | None:
        try:
            return identity_of(self._files.info_at(directory, LOCK_NAME))
        except FileNotFoundError:
            return None

    def _keep(self, registry: Registry, directory: int) -> LockedFile:
        descriptor = self._files.open_append(directory, LOCK_NAME, _FILE_MODE)
        try:
            info = self._files.info(descriptor)
            check_ordinary(info, self._where)
        except BaseException:
            close_quietly(self._files, descriptor)
            raise
        kept = LockedFile(registry, self._files, descriptor, identity_of(info))
        found = registry.kept.setdefault(kept.identity, kept)
        if found is not kept:
            found.others.append(descriptor)  # another store made the file meanwhile, and may have locked it
        return found

    def _is_in_place(self, kept: LockedFile, directory: int) -> bool:
        """A lock on a file that was removed or replaced excludes nobody."""
        return self._identity(directory) == kept.identity


def _is_usable(kept: LockedFile) -> bool:
    """Whether a lock on it stays: another store of this process may be closing the same file at this moment."""
    with kept.registry.guard:
        return _is_open(kept) and kept.registry.wait_for_closing(kept.identity)


def _is_open(kept: LockedFile) -> bool:
    """Not where another thread has closed it meanwhile: its number may be another file's by now."""
    return kept.registry.kept.get(kept.identity) is kept


class _Turn:
    """`with` for the run's lock. Ctrl-C comes when it is over: one that nobody gives back stops all who write."""

    __slots__ = ("_arguments", "_deferred", "_kept", "_lock")

    def __init__(self, lock: RunLock, deadline_s: float, on_wait: Callable[[], None] | None) -> None:
        self._lock = lock
        self._arguments = (deadline_s, on_wait)
        self._kept: LockedFile | None = None
        self._deferred: AbstractContextManager[None] | None = None

    def __enter__(self) -> None:
        from holdfast.core.interrupts import interrupts_deferred  # which `holdfast ls` does without

        self._deferred = interrupts_deferred()
        self._deferred.__enter__()
        try:
            self._kept = self._lock.acquire(*self._arguments)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        kept, self._kept = self._kept, None
        deferred, self._deferred = self._deferred, None
        try:
            if kept is not None:
                self._lock.release(kept)
        finally:
            if deferred is not None:
                deferred.__exit__(None, None, None)
