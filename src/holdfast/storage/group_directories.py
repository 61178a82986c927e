"""The directories of a run, opened for one operation each, never through a link."""

from collections.abc import Callable

from holdfast.core.clock import Clock
from holdfast.core.errors import UsageError
from holdfast.core.light_typing import TypeVar
from holdfast.core.names import check_name
from holdfast.storage.files import Files, close_quietly
from holdfast.storage.retry import retried

__all__ = ["GroupDirectories"]

_T = TypeVar("_T")
_GROUP_MODE = 0o700


class GroupDirectories:
    """Runs operations in the directory of a group; the group `""` is the run itself."""

    def __init__(self, files: Files, clock: Clock, root: int, *, location: str, readonly: bool) -> None:
        self._files = files
        self._clock = clock
        self._root = root
        self._is_closed = False
        # Not counted under a lock: one that another thread had at the time of a fork is never released in the child.
        self._users: list[str] = []
        self._left_to_close = [root]
        self._location = location
        self._readonly = readonly

    @property
    def root(self) -> int:
        """The descriptor of the run's directory."""
        if self._is_closed:
            raise UsageError(f"{self._location}: the store is closed")
        return self._root

    def in_root(self, operation: Callable[[int], _T]) -> _T:
        """The result of an operation in the run's directory, which stays open for it, whoever closes the store."""
        root = self._enter_root("")
        try:
            return operation(root)
        finally:
            self._leave_root()

    def check_writable(self) -> None:
        """UsageError where the store is closed or only for reading."""
        if self.root >= 0 and self._readonly:
            raise UsageError(f"{self._location}: was opened for reading only")

    def read_in(self, group: str, operation: Callable[[int], _T]) -> _T:
        """The result of a reading operation, all of it tried again where the error is one that passes."""

        def opened() -> _T:
            parent = self._open(group)
            try:
                return operation(parent)
            finally:
                self.close(parent)

        return retried(opened, self._clock)

    def change_in(self, group: str, operation: Callable[[int], _T], *, make: bool = False) -> _T:
        """The result of a changing operation; only the opening is tried again (I5)."""
        parent = self.open_to_change(group, make=make)
        try:
            return operation(parent)
        finally:
            self.close(parent)

    def open_to_change(self, group: str, *, make: bool = False) -> int:
        """A descriptor of the directory, made if wanted, for `close`."""
        self.check_writable()
        return retried(lambda: self._open_or_make(group) if make else self._open(group), self._clock)

    def close(self, descriptor: int) -> None:
        if descriptor == self._root:
            self._leave_root()
        else:
            close_quietly(self._files, descriptor)

    def close_root(self) -> None:
        """Closed when the last operation in it ends: one that hangs must not come back to somebody else's file."""
        self._is_closed = True
        self._close_unused_root()

    def _open(self, group: str) -> int:
        if not group:
            return self._enter_root(group)
        check_name(group)
        root = self._enter_root(group)
        try:
            return self._files.open_dir(root, group)
        finally:
            self._leave_root()

    def _enter_root(self, group: str) -> int:
        self._users.append(group)  # before the look at whether it is closed: whoever closes looks afterwards
        try:
            return self.root
        except UsageError:
            self._leave_root()
            raise

    def _leave_root(self) -> None:
        self._users.pop()
        if self._is_closed:
            self._close_unused_root()

    def _close_unused_root(self) -> None:
        if not self._users:
            try:
                root = self._left_to_close.pop()
            except IndexError:
                return  # another thread was faster
            close_quietly(self._files, root)

    def _open_or_make(self, group: str) -> int:
        try:
            return self._open(group)
        except FileNotFoundError:
            pass
        try:
            self._files.make_dir(self.root, group, _GROUP_MODE)
        except FileExistsError:
            pass  # another process was faster; what it made shows below
        return self._open(group)
