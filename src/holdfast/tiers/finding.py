"""Arenas that are there already: to restart from, and to give back when their job is gone."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.core.clock import Clock, SystemClock
from holdfast.core.errors import BlobMissingError, HoldfastError, IntegrityError, StorageError
from holdfast.storage.files import FileKind, Files, close_quietly
from holdfast.storage.translate import Boundary
from holdfast.tiers.directory import DEFAULT_ROOT, OWNER_NAME, SLOT_NAMES, base_path, open_base, remove_arena
from holdfast.tiers.owner import MAX_OWNER_BYTES, Owner, decode_owner, has_ended, is_alive
from holdfast.tiers.slot import Slot

__all__ = ["FoundArena", "find_arenas", "reclaim"]

_OLD_S = 3600.0
_files = Files()


class FoundArena(NamedTuple):
    """An arena of this user, by what its owner wrote about himself."""

    path: Path
    owner: Owner
    alive: bool
    """Whether the training process that made it lives."""
    touched_s: float
    """When it was made or last filled; UTC."""

    @property
    def run_id(self) -> str:
        return self.owner.run_id

    @property
    def run(self) -> str:
        return self.owner.run

    @property
    def attempt(self) -> int:
        return self.owner.attempt

    def slots(self) -> list[Slot]:
        """Its slots, attached for reading; to be closed. What is no slot of ours is left out."""
        try:
            directory = _open_arena(self.path)
        except BlobMissingError:
            return []  # given back meanwhile
        found: list[Slot] = []
        try:
            for name in SLOT_NAMES:
                slot = _attach(directory, name, str(self.path / name))
                if slot is not None:
                    found.append(slot)
        except BaseException:
            for slot in found:
                slot.close()
            raise
        finally:
            close_quietly(_files, directory)
        return found

    def remove(self) -> None:
        """Give its memory back, if it is still there. Whoever has it mapped keeps what is mapped."""
        _remove(self.path)


def find_arenas(run_id: str | None, root: Path | None = None) -> list[FoundArena]:
    """The arenas of that run, or of all (None), that this user has on this node; by attempt, then by time."""
    found = [arena for arena, _ in _look(DEFAULT_ROOT if root is None else root) if isinstance(arena, FoundArena)]
    wanted = [arena for arena in found if run_id is None or arena.run_id == run_id]
    return sorted(wanted, key=lambda arena: (arena.attempt, arena.touched_s))


def reclaim(root: Path | None = None, *, keep_run_id: str | None, clock: Clock | None = None) -> list[Path]:
    """Give back what nobody will use: of jobs before the last boot, of dead ones an hour after their last snapshot.

    Never an arena of that run, nor of a training that lives. The paths of what was removed.
    """
    root = DEFAULT_ROOT if root is None else root
    now_s = (SystemClock() if clock is None else clock).utc_s()
    removed = []
    for arena, touched_s in _look(root):
        if isinstance(arena, FoundArena):
            is_done = has_ended(arena.owner) or (not arena.alive and now_s - touched_s > _OLD_S)
            if not is_done or arena.run_id == keep_run_id:
                continue
        elif now_s - touched_s <= _OLD_S:
            continue  # without an owner: being made, or its maker died before he wrote who he is
        path = arena.path if isinstance(arena, FoundArena) else arena
        if _remove_quietly(path):
            removed.append(path)
    return removed


def _look(root: Path) -> Iterator[tuple[FoundArena | Path, float]]:
    """Each arena, or the path of one that does not say whose it is, and when it was last touched."""
    with Boundary("looking for arenas", str(base_path(root))):
        try:
            base = open_base(root, create=False)
        except (FileNotFoundError, NotADirectoryError, PermissionError, StorageError):
            return  # nothing of ours there
        try:
            for name, kind in sorted(_files.list_dir(base)):
                found = _look_at(base, name, base_path(root) / name) if kind == FileKind.DIRECTORY else None
                if found is not None:
                    yield found
        finally:
            close_quietly(_files, base)


def _look_at(base: int, name: str, path: Path) -> tuple[FoundArena | Path, float] | None:
    try:
        directory = _files.open_dir(base, name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        try:
            descriptor = _files.open_read(directory, OWNER_NAME)
        except (FileNotFoundError, IsADirectoryError):
            return path, os.fstat(directory).st_mtime
        try:
            return _read_owner(descriptor, path)
        finally:
            close_quietly(_files, descriptor)
    finally:
        close_quietly(_files, directory)


def _read_owner(descriptor: int, path: Path) -> tuple[FoundArena | Path, float]:
    touched_s = os.fstat(descriptor).st_mtime
    if _files.info(descriptor).kind != FileKind.FILE:
        return path, touched_s
    owner = decode_owner(os.pread(descriptor, MAX_OWNER_BYTES, 0))
    if owner is None:
        return path, touched_s
    return FoundArena(path, owner, is_alive(owner, descriptor), touched_s), touched_s


def _open_arena(path: Path) -> int:
    with Boundary("opening", str(path)):
        try:
            base = open_base(path.parent.parent, create=False)
            try:
                return _files.open_dir(base, path.name)
            finally:
                close_quietly(_files, base)
        except NotADirectoryError as error:
            raise IntegrityError(f"{path}: something else is in the place of an arena") from error


def _attach(directory: int, name: str, where: str) -> Slot | None:
    with Boundary("opening", where):
        try:
            descriptor = _files.open_read(directory, name)
        except OSError as error:
            if isinstance(error, FileNotFoundError) or _files.info_at(directory, name).kind != FileKind.FILE:
                return None
            raise
    try:
        return Slot.attach(descriptor, where=where)
    except IntegrityError:
        close_quietly(_files, descriptor)
        return None
    except BaseException:
        close_quietly(_files, descriptor)
        raise


def _remove(path: Path) -> None:
    with Boundary("removing", str(path)):
        try:
            base = open_base(path.parent.parent, create=False)
        except FileNotFoundError:
            return
        try:
            remove_arena(base, path.name)
        finally:
            close_quietly(_files, base)


def _remove_quietly(path: Path) -> bool:
    """Whether it is gone: what somebody put into it is left where it is."""
    try:
        _remove(path)
    except HoldfastError:
        return False
    return True
