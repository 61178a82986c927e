"""Snapshots that are still in memory: those of a process that is gone, on the same machine, and one's own."""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from holdfast.core.errors import HoldfastError
from holdfast.core.values import DISK, MEMORY, Checkpoint
from holdfast.engine.catalog import Catalog
from holdfast.engine.journal import Event
from holdfast.tiers.arena_store import ArenaStore
from holdfast.tiers.finding import FoundArena, find_arenas
from holdfast.tiers.slot import Slot

__all__ = [
    "Snapshot",
    "close_snapshots",
    "committed_names",
    "find_snapshots",
    "holds_snapshot",
    "remove_old_arenas",
    "with_snapshots",
]

_log = logging.getLogger("holdfast")


class Snapshot(NamedTuple):
    """A complete snapshot and where it is."""

    checkpoint: Checkpoint
    store: ArenaStore
    slot: Slot
    arena: FoundArena


def find_snapshots(run_id: str, run: str) -> dict[str, Snapshot]:
    """The snapshots of the run that this machine has in memory, by the ids they were to get. To be closed."""
    found: dict[str, Snapshot] = {}
    try:
        for arena in _find_arenas(run_id, run):
            for slot in arena.slots():
                snapshot = _read(slot, arena, run_id)
                if snapshot is None:
                    slot.close()
                else:
                    found[snapshot.checkpoint.id] = snapshot
    except HoldfastError as error:
        # Memory is the faster way, and never the only one that may be tried.
        _log.warning("snapshots in memory cannot be used: %s", error.message)
    return found


def holds_snapshot(arena: FoundArena) -> bool:
    """Whether a restart could find something there."""
    try:
        slots = arena.slots()
    except HoldfastError:
        return False  # a restart would not come further
    try:
        return any(_read(slot, arena, arena.run_id) is not None for slot in slots)
    finally:
        for slot in slots:
            slot.close()


def close_snapshots(snapshots: Mapping[str, Snapshot]) -> None:
    """Let their memory go, and leave it where it is."""
    for snapshot in snapshots.values():
        snapshot.slot.close()


def with_snapshots(catalog: Catalog, snapshots: Mapping[str, Snapshot], events: Iterable[Event]) -> Catalog:
    """The catalogue with what is in memory: as well as on the disk, or only there.

    One that was durable once and is not on the disk any more was removed on purpose: it does not come back.
    """
    if not snapshots:
        return catalog
    removed = committed_names(events)
    on_disk = {checkpoint.id for checkpoint in catalog.checkpoints}
    both = [
        checkpoint._replace(where=(MEMORY, DISK)) if checkpoint.id in snapshots else checkpoint
        for checkpoint in catalog.checkpoints
    ]
    only_there = [
        snapshot.checkpoint._replace(where=(MEMORY,))
        for checkpoint_id, snapshot in snapshots.items()
        if checkpoint_id not in on_disk and checkpoint_id not in removed
    ]
    return catalog._replace(checkpoints=[*both, *only_there])


def committed_names(events: Iterable[Event]) -> set[object]:
    """The names of all that was ever durable; of one that had to be written again, also that of its snapshot."""
    committed = [event for event in events if event["event"] == "committed"]
    return {event[name] for event in committed for name in ("id", "staged") if name in event}


def remove_old_arenas(run_id: str, run: str, *, attempt: int, durable: Callable[[str], bool]) -> None:
    """Give back the memory of dead attempts before this one, as far as all that it holds is durable."""
    try:
        for arena in _find_arenas(run_id, run):
            if not arena.alive and arena.attempt < attempt and _is_durable(arena, run_id, durable):
                arena.remove()
    except HoldfastError as error:
        _log.warning("memory of an earlier attempt cannot be given back: %s", error.message)


def _is_durable(arena: FoundArena, run_id: str, durable: Callable[[str], bool]) -> bool:
    for slot in arena.slots():
        snapshot = _read(slot, arena, run_id)
        slot.close()
        if snapshot is not None and not durable(snapshot.checkpoint.id):
            return False
    return True


def _find_arenas(run_id: str, run: str) -> list[FoundArena]:
    """Those of this very directory: a copy of a run has the same id, and goes its own way."""
    return [arena for arena in find_arenas(run_id) if not _is_elsewhere(arena.run, run)]


def _is_elsewhere(one: str, other: str) -> bool:
    try:
        return not os.path.samefile(one, other)
    except OSError:
        return False  # it was moved


def _read(slot: Slot, arena: FoundArena, run_id: str) -> Snapshot | None:
    try:
        if slot.generation() == 0:
            return None
        store = ArenaStore(slot)
    except HoldfastError as error:
        _log.warning("a snapshot in memory is damaged: %s", error.message)
        return None
    return Snapshot(store.checkpoint, store, slot, arena) if store.run_id == run_id else None
