"""What this user's trainings have in the memory of this node, and how to give it back."""

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast.core.errors import HoldfastError
from holdfast.engine.doctor import OK, WARN, Finding
from holdfast.engine.snapshots import holds_snapshot
from holdfast.tiers.directory import DEFAULT_ROOT
from holdfast.tiers.finding import FoundArena, find_arenas
from holdfast.tiers.room import memory_room

__all__ = ["examine_memory"]

# What containers give by default; hardly a snapshot fits.
_SMALL_BYTES = 128 << 20


def examine_memory(run_id: str | None, root: Path | None = None) -> Iterator[Finding]:
    """What snapshots in memory have to live on, and who has some of it: a line for each arena.

    Of a run that is asked about, its own come first; all others are one line, or two where some can go.
    """
    root = DEFAULT_ROOT if root is None else root
    try:
        arenas, problem = list(find_arenas(None, root)), None
    except HoldfastError as error:
        arenas, problem = [], Finding("arenas", WARN, error.message, error.hint)
    yield from (_arena(arena, run_id) for arena in arenas if arena.run_id == run_id)
    yield _room(root)
    others = [arena for arena in arenas if arena.run_id != run_id]
    yield from (_arena(arena, run_id) for arena in others) if run_id is None else _others(others)
    if problem is not None:
        yield problem


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
    remove = _removal([arena])
    is_own = arena.run_id == run_id
    if _is_orphan(arena) and not is_own:
        return Finding("arena", WARN, text, f"that run is not there any more: {remove}")
    start = "the next start" if is_own else "the next start of that run"
    then = "restores from it and gives it back" if holds_snapshot(arena) else "gives it back: it holds no snapshot"
    return Finding("arena", OK, text, f"{start} {then}; to drop it: {remove}")


def _others(arenas: Sequence[FoundArena]) -> Iterator[Finding]:
    kept = [arena for arena in arenas if not _is_orphan(arena)]
    left = [arena for arena in arenas if _is_orphan(arena)]
    if kept:
        advice = "`holdfast doctor DIR`, of a directory that is no run, lists them"
        yield Finding("other arenas", OK, f"{_sum(kept)} of other runs", advice)
    if left:
        advice = f"nobody will restart from it: {_removal(left)}"
        yield Finding("other arenas", WARN, f"{_sum(left)} of runs that are gone", advice)


def _sum(arenas: Sequence[FoundArena]) -> str:
    total_bytes = sum(_size_bytes(arena.path) for arena in arenas)
    return f"{_amount(total_bytes)} in {len(arenas)}" if len(arenas) > 1 else _amount(total_bytes)


def _is_orphan(arena: FoundArena) -> bool:
    return not arena.alive and not os.path.isdir(arena.run)


def _removal(arenas: Sequence[FoundArena]) -> str:
    return f"rm -r {shlex.join(str(arena.path) for arena in arenas)}"


def _size_bytes(path: Path) -> int:
    """What it takes of the memory, as far as it is still there."""
    try:
        with os.scandir(path) as entries:
            return sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in entries)
    except OSError:
        return 0


def _amount(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.1f} GiB" if size_bytes >= 1 << 30 else f"{size_bytes / (1 << 20):.1f} MiB"
