"""The run's lock: one committer, deleter or taker-over at a time, among all processes and threads."""

from collections.abc import Callable
from types import TracebackType

from holdfast.core.clock import Clock
from holdfast.core.errors import RunBusyError
from holdfast.core.names import LOCK_NAME
from holdfast.storage.files import Files, close_quietly
from holdfast.storage.posix_locks import LockedFile, Registry, current_registry, identity_of, try_lock, unlock
from holdfast.storage.translate import Boundary, check_ordinary

__all__ = ["RunLock"]

_FILE_MODE = 0o600
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05


class RunLock:
    """The lock of a run, as one store sees it. All stores of a process share the lock's one descriptor."""

    def __init__(self, files: Files, clock: Clock, directory: int, location: str) -> None:
        self._files = files
        self._clock = clock
        self._directory = directory
        self._location = location
        self._where = f"{location}/{LOCK_NAME}"
        self._kept: LockedFile | None = None

    def turn(self, deadline_s: float, on_wait: Callable[[], None] | None) -> "_Turn":
        """A context in which this thread has the lock."""
        return _Turn(self, deadline_s, on_wait)

    def acquire(self, deadline_s: float, on_wait: Callable[[], None] | None) -> LockedFile:
        """Wait for the lock, at most that long; RunBusyError then."""
        end_s = self._clock.monotonic_s() + deadline_s
        pause_s = _FIRST_PAUSE_S
        while True:
            with Boundary("locking", self._where):
                kept = self._try()
            if kept is not None:
                return kept
            if self._clock.monotonic_s() >= end_s:
                raise RunBusyError(
                    f"{self._location}: another process or thread has the run's lock, and kept it for {deadline_s:g} s",
                    hint=f"see who has it with fuser -v {self._where}, and try again",
                )
            if on_wait is not None:
                on_wait()
                on_wait = None
            self._clock.sleep(min(pause_s, max(0.0, end_s - self._clock.monotonic_s())))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def release(self, kept: LockedFile) -> None:
        if kept.registry is not current_registry():
            return  # a child that was forked in between: the lock is its parent's
        try:
            with Boundary("unlocking", self._where):
                unlock(kept)
        finally:
            kept.turn.release()

    def close(self) -> None:
        registry = current_registry()
        with registry.guard:
            self._give_up(registry)

    def _try(self) -> LockedFile | None:
        kept = self._open()
        if not kept.turn.acquire(blocking=False):
            return None
        locked = False
        try:
            locked = try_lock(self._files, kept.descriptor, self._where) and self._is_in_place(kept)
        finally:
            if not locked:
                unlock(kept)
                kept.turn.release()
        return kept if locked else None

    def _open(self) -> LockedFile:
        """The lock file's entry, opened at first, and again after a fork or when somebody removed the file."""
        registry = current_registry()
        with registry.guard:
            if self._kept is None or self._kept.registry is not registry or not self._is_in_place(self._kept):
                self._give_up(registry)
                self._kept = self._find(registry) or self._keep(registry)
                self._kept.users += 1
            return self._kept

    def _give_up(self, registry: Registry) -> None:
        kept, self._kept = self._kept, None
        if kept is not None and kept.registry is registry:
            kept.users -= 1
            if kept.users == 0:
                kept.drop()

    def _find(self, registry: Registry) -> LockedFile | None:
        try:
            return registry.kept.get(identity_of(self._files.info_at(self._directory, LOCK_NAME)))
        except FileNotFoundError:
            return None

    def _keep(self, registry: Registry) -> LockedFile:
        descriptor = self._files.open_append(self._directory, LOCK_NAME, _FILE_MODE)
        try:
            info = self._files.info(descriptor)
            check_ordinary(info, self._where)
        except BaseException:
            close_quietly(self._files, descriptor)
            raise
        kept = LockedFile(registry, self._files, descriptor, identity_of(info))
        return registry.kept.setdefault(kept.identity, kept)

    def _is_in_place(self, kept: LockedFile) -> bool:
        """A lock on a file that was removed or replaced excludes nobody."""
        try:
            return identity_of(self._files.info_at(self._directory, LOCK_NAME)) == kept.identity
        except FileNotFoundError:
            return False


class _Turn:
    """`with` for the run's lock."""

    __slots__ = ("_arguments", "_kept", "_lock")

    def __init__(self, lock: RunLock, deadline_s: float, on_wait: Callable[[], None] | None) -> None:
        self._lock = lock
        self._arguments = (deadline_s, on_wait)
        self._kept: LockedFile | None = None

    def __enter__(self) -> None:
        self._kept = self._lock.acquire(*self._arguments)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            self._lock.release(kept)
