"""The directories of a run, opened for one operation each, never through a link."""

from collections.abc import Callable
from typing import TypeVar

from holdfast.core.clock import Clock
from holdfast.core.errors import UsageError
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
        self._location = location
        self._readonly = readonly

    @property
    def root(self) -> int:
        """The descriptor of the run's directory."""
        if self._root < 0:
            raise UsageError(f"{self._location}: the store is closed")
        return self._root

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
        if descriptor != self._root:
            close_quietly(self._files, descriptor)

    def close_root(self) -> None:
        root, self._root = self._root, -1
        if root >= 0:
            close_quietly(self._files, root)

    def _open(self, group: str) -> int:
        return self._files.open_dir(self.root, check_name(group)) if group else self.root

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
