"""The directories of arenas: `<root>/holdfast-<uid>/<run id>-<attempt>-<nonce>/`, closed to everybody else.

The root is open to all users, so nothing in it is followed or trusted because of its name: what is there must be a
directory, ours, and for nobody else.
"""

import fcntl
import os
import secrets
import stat
from pathlib import Path

from holdfast.core.errors import StorageError
from holdfast.storage.files import FileKind, Files, close_quietly
from holdfast.storage.translate import Boundary
from holdfast.tiers.owner import Owner, encode_owner

__all__ = ["DEFAULT_ROOT", "OWNER_NAME", "SLOT_NAMES", "ArenaDirectory", "base_path", "open_base", "remove_arena"]

DEFAULT_ROOT = Path("/dev/shm")  # noqa: S108  what is in it is checked, see above
OWNER_NAME = "owner.json"
SLOT_NAMES = ("slot-0", "slot-1")
_UNFINISHED_OWNER = "owner.new"
_DIRECTORY_MODE = 0o700
_FILE_MODE = 0o600
_files = Files()


def base_path(root: Path) -> Path:
    """This user's directory in the root."""
    return root / f"holdfast-{os.geteuid()}"


def open_base(root: Path, *, create: bool) -> int:
    """A descriptor of this user's directory; FileNotFoundError where there is none, StorageError if it is not ours."""
    path = base_path(root)
    top = _files.open_root(str(root))
    try:
        if create:
            try:
                _files.make_dir(top, path.name, _DIRECTORY_MODE)
            except FileExistsError:
                pass  # checked below
        try:
            descriptor = _files.open_dir(top, path.name)
        except NotADirectoryError as error:
            # Also what the system says of a link.
            raise StorageError(f"{path}: a link or a file is in the place of holdfast's directory") from error
    finally:
        close_quietly(_files, top)
    try:
        _check_ours(descriptor, path)
    except BaseException:
        close_quietly(_files, descriptor)
        raise
    return descriptor


def remove_arena(base: int, name: str) -> None:
    """Remove the arena's files, its owner's last, and its directory; OSError where a directory is in it: that stays."""
    try:
        directory = _files.open_dir(base, name)
    except FileNotFoundError:
        return
    try:
        found = {entry for entry, kind in _files.list_dir(directory) if kind != FileKind.DIRECTORY}
        for entry in sorted(found - {OWNER_NAME}) + sorted(found & {OWNER_NAME}):
            try:
                _files.unlink(directory, entry)
            except FileNotFoundError:
                pass  # another process removes it too
    finally:
        close_quietly(_files, directory)
    try:
        _files.remove_dir(base, name)
    except FileNotFoundError:
        pass


class ArenaDirectory:
    """The directory of a live arena, as its training process has it."""

    def __init__(self, root: Path, owner: Owner) -> None:
        """OSError or StorageError where it cannot be had; nothing is left then."""
        self.name = f"{owner.run_id}-{owner.attempt}-{secrets.token_hex(4)}"
        self.path = base_path(root) / self.name
        self._base = open_base(root, create=True)
        self._directory = self._owner = -1
        try:
            _files.make_dir(self._base, self.name, _DIRECTORY_MODE)
            self._directory = _files.open_dir(self._base, self.name)
            self._owner = self._publish(owner)
        except BaseException:
            self.remove()
            raise

    def create_slot(self, index: int) -> int:
        """A descriptor of a new, empty file."""
        return _files.create(self._directory, SLOT_NAMES[index], _FILE_MODE)

    def remove_slot(self, index: int) -> None:
        self._unlink(SLOT_NAMES[index])

    def free_bytes(self) -> int:
        return _files.space(self._directory).free_bytes

    def touch(self) -> None:
        """Show that the arena is in use: what was touched within the hour is not reclaimed."""
        try:
            os.utime(self._owner)
        except OSError:
            pass  # somebody removed it: what it holds serves this process all the same

    def remove(self) -> None:
        """Remove the files and the directory, as far as possible."""
        # By the names that we gave: a listing takes a descriptor, and there may be none left.
        if self._directory >= 0:
            for name in (*SLOT_NAMES, _UNFINISHED_OWNER, OWNER_NAME):
                self._unlink(name)
        try:
            _files.remove_dir(self._base, self.name)
        except OSError:
            pass  # never made, or somebody put something into it, which is his
        self.close()

    def close(self) -> None:
        descriptors = (self._owner, self._directory, self._base)
        self._owner = self._directory = self._base = -1
        for descriptor in descriptors:
            if descriptor >= 0:
                close_quietly(_files, descriptor)

    def _unlink(self, name: str) -> None:
        try:
            _files.unlink(self._directory, name)
        except OSError:
            pass  # not there; anything else is reclaimed later

    def _publish(self, owner: Owner) -> int:
        """Write owner.json, locked before it has that name. The descriptor holds the lock."""
        descriptor = _files.create(self._directory, _UNFINISHED_OWNER, _FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            _files.append(descriptor, encode_owner(owner))
            os.rename(_UNFINISHED_OWNER, OWNER_NAME, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        except BaseException:
            close_quietly(_files, descriptor)
            raise
        return descriptor


def _check_ours(descriptor: int, path: Path) -> None:
    with Boundary("looking at the directory", str(path)):
        found = os.fstat(descriptor)
    if found.st_uid != os.geteuid():
        raise StorageError(f"{path}: belongs to user {found.st_uid}, expected {os.geteuid()}")
    if stat.S_IMODE(found.st_mode) & 0o777 != _DIRECTORY_MODE:
        raise StorageError(
            f"{path}: has mode {stat.S_IMODE(found.st_mode):o}, expected {_DIRECTORY_MODE:o}",
            hint=f"chmod 700 {path}, if you know who changed it",
        )
