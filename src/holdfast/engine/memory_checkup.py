"""What this user's trainings have in the memory of this node, and how to give it back."""

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from holdfast.core.errors import HoldfastError
from holdfast.engine.doctor import OK, WARN, Finding
from holdfast.tiers.directory import DEFAULT_ROOT
from holdfast.tiers.finding import FoundArena, find_arenas
from holdfast.tiers.room import memory_room

__all__ = ["examine_memory"]

# What containers give by default; hardly a snapshot fits.
_SMALL_BYTES = 128 << 20


def examine_memory(run_id: str | None, root: Path | None = None) -> Iterator[Finding]:
    """What snapshots in memory have to live on, and a line for each arena. The run is the one that is asked about."""
    root = DEFAULT_ROOT if root is None else root
    yield _room(root)
    try:
        for arena in find_arenas(None, root):
            yield _arena(arena, run_id)
    except HoldfastError as error:
        yield Finding("arenas", WARN, error.message, error.hint)


def _room(root: Path) -> Finding:
    room = memory_room()
    memory = f"{_amount(room.free_bytes)} of memory"
    try:
        found = os.statvfs(root)
    except OSError as error:
        advice = "checkpoints are made all the same; a restart cannot find them in memory"
        return Finding("memory", WARN, f"{memory}; {root}: {error.strerror}", advice)
    free_bytes = found.f_bavail * found.f_frsize
    text = f"{memory}, {_amount(free_bytes)} in {root} free"
    if found.f_blocks * found.f_frsize < _SMALL_BYTES:
        advice = "too small for most snapshots: a restart will not find them in memory (docker run --shm-size=8g)"
        return Finding("memory", WARN, text, advice)
    return Finding("memory", OK, text)


def _arena(arena: FoundArena, run_id: str | None) -> Finding:
    owner = f"attempt {arena.attempt}, pid {arena.owner.pid}"
    text = f"{_amount(_size_bytes(arena.path))} of {arena.run} ({owner}, {'alive' if arena.alive else 'ended'})"
    if arena.alive:
        return Finding("arena", OK, text)
    remove = f"rm -r {shlex.quote(str(arena.path))}"
    if arena.run_id == run_id:
        return Finding("arena", OK, text, f"the next start restores from it and gives it back; to drop it: {remove}")
    if os.path.isdir(arena.run):
        advice = f"the next start of that run restores from it; to drop it: {remove}"
        return Finding("arena", OK, text, advice)
    return Finding("arena", WARN, text, f"that run is not there any more: {remove}")


def _size_bytes(path: Path) -> int:
    """What it takes of the memory, as far as it is still there."""
    try:
        with os.scandir(path) as entries:
            return sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in entries)
    except OSError:
        return 0


def _amount(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.1f} GiB" if size_bytes >= 1 << 30 else f"{size_bytes / (1 << 20):.1f} MiB"
