"""How much memory can be had: of the machine, and of the control groups that this process is in."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["GroupFiles", "Room", "group_places", "memory_room"]


class Room(NamedTuple):
    """What one limit leaves."""

    free_bytes: int
    limited_by: str


class GroupFiles(NamedTuple):
    """What a version of control groups calls its files and fields."""

    limit: str
    used: str
    reclaimable: tuple[str, ...]


_VERSION_1 = GroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
_VERSION_2 = GroupFiles("memory.max", "memory.current", ("inactive_file", "active_file"))


def memory_room(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> Room:
    """What the tightest limit leaves; a limit that cannot be read is none."""
    rooms = [*_of_machine(proc), *_of_groups(proc, groups)]
    return min(rooms, default=Room(1 << 62, "nothing"))


def group_places(proc: Path, groups: Path) -> Iterator[tuple[Path, GroupFiles]]:
    """The control groups that limit this process's memory, innermost first, and what their files are called.

    Each one's limit counts. In a container the upper ones are not there to be read.
    """
    for line in _lines(proc / "self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon:
            continue
        if "memory" in controllers.split(","):
            yield from _upwards(groups / "memory", path, _VERSION_1)
        elif not controllers:
            unified = groups if (groups / "cgroup.controllers").exists() else groups / "unified"
            yield from _upwards(unified, path, _VERSION_2)


def _of_machine(proc: Path) -> Iterator[Room]:
    for line in _lines(proc / "meminfo"):
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            yield Room(int(rest.split()[0]) << 10, "the memory of this machine (MemAvailable)")


def _of_groups(proc: Path, groups: Path) -> Iterator[Room]:
    for place, files in group_places(proc, groups):
        room = _of_group(place, files)
        if room is not None:
            yield room


def _upwards(top: Path, path: str, files: GroupFiles) -> Iterator[tuple[Path, GroupFiles]]:
    group = top / path.strip("/")
    for place in (group, *group.parents):
        yield place, files
        if place == top:
            return


def _of_group(place: Path, files: GroupFiles) -> Room | None:
    try:
        limit = int((place / files.limit).read_text())
        used = int((place / files.used).read_text())
    except (OSError, ValueError):  # "max" is no number, and no limit
        return None
    reclaimable = 0
    for line in _lines(place / "memory.stat"):
        name, _, value = line.partition(" ")
        if name in files.reclaimable:
            reclaimable += int(value)
    return Room(max(0, limit - used + min(used, reclaimable)), f"the memory limit of the control group {place}")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
