"""Pruning: carry out what retention decided, without ever touching what a restart may need (I6)."""

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.core.clock import Clock
from holdfast.core.errors import FormatError, NoCheckpointError, StorageError
from holdfast.core.limits import MAX_MANIFEST_BYTES
from holdfast.core.names import MANIFEST_NAME, parse_checkpoint_id
from holdfast.core.values import Checkpoint, CheckpointName, Fork
from holdfast.engine.catalog import Catalog
from holdfast.engine.commit import remove_checkpoint, remove_garbage
from holdfast.format.manifest import decode_manifest
from holdfast.policy.keep import Keep, Verdict, decide
from holdfast.policy.lineage import choose, latest, live_line
from holdfast.storage.store import Store

__all__ = ["Pruned", "is_complete", "needed_by_a_restart", "plan_prune", "prune", "remove_planned"]

_log = logging.getLogger("holdfast")


class Pruned(NamedTuple):
    """What a prune did."""

    removed: list[str]
    freed_bytes: int


def plan_prune(
    catalog: Catalog,
    keep: Keep,
    clock: Clock,
    *,
    origin: str | None = None,
    attempt: int | None = None,
    forks: Sequence[Fork] = (),
    drop_abandoned: bool = False,
    safe_before: int | None = None,
) -> list[Verdict]:
    """What would be kept and removed, and why, oldest first."""
    live = live_line(catalog.checkpoints, origin=origin, attempt=attempt, forks=forks)
    return decide(
        keep,
        catalog.checkpoints,
        now_s=clock.utc_s(),
        live=live,
        drop_abandoned=drop_abandoned,
        safe_before=safe_before,
    )


def prune(
    store: Store, run_id: str, catalog: Catalog, verdicts: list[Verdict], *, attempt: int, last_garbage: int
) -> Pruned:
    """Remove what the verdicts give up, and what crashes left behind of attempts up to `last_garbage`."""
    removed = remove_planned(store, run_id, catalog, verdicts, attempt=attempt)
    for name in catalog.garbage:
        parsed = parse_checkpoint_id(name)
        if parsed is not None and parsed.attempt <= last_garbage:
            remove_garbage(store, name, attempt=attempt, run_id=run_id)
    return removed


def remove_planned(
    store: Store, run_id: str, catalog: Catalog, verdicts: list[Verdict], *, attempt: int | None
) -> Pruned:
    """Remove the checkpoints that the verdicts give up, oldest first.

    What a restart would take stays in any case: where the newest are not complete, the first one that is (I6).
    """
    by_id = {checkpoint.id: checkpoint for checkpoint in catalog.checkpoints}
    where = store.location
    doomed = [verdict.id for verdict in verdicts if not verdict.keep]
    if not doomed:
        return Pruned([], 0)
    needed = needed_by_a_restart(store, run_id, catalog.checkpoints)
    if not needed:
        _log.warning("%s: nothing was pruned, because no checkpoint that a restart would take is complete (I6)", where)
        return Pruned([], 0)
    if needed[-1] in doomed:
        _log.warning("%s: %s is not pruned, because newer ones are not complete (I6)", where, needed[-1])
        doomed.remove(needed[-1])
    removed = [name for name in doomed if remove_checkpoint(store, name, attempt=attempt)]
    return Pruned(removed, sum(by_id[name].size_bytes for name in removed))


def needed_by_a_restart(store: Store, run_id: str, checkpoints: Sequence[Checkpoint]) -> list[CheckpointName]:
    """What it would try, up to the first one that is complete; nothing where none is."""
    tried: list[CheckpointName] = []
    for checkpoint in _tried_by_a_restart(checkpoints):
        tried.append(checkpoint.id)
        if is_complete(store, run_id, checkpoint.id):
            return tried
    return []


def is_complete(store: Store, run_id: str, checkpoint_id: str) -> bool:
    """Whether the manifest is intact and every shard there in its full size; the cheap half of a verification."""
    key = f"{checkpoint_id}/{MANIFEST_NAME}"
    try:
        data = store.read(key, MAX_MANIFEST_BYTES)
        body = decode_manifest(data, where=key, checkpoint_id=checkpoint_id, run_id=run_id).body
        for shard in body.shards:
            reader = store.open(f"{checkpoint_id}/{shard.name}")
            size_bytes = reader.size_bytes
            reader.close()
            if size_bytes != shard.size_bytes:
                return False
    except (FormatError, StorageError):
        return False
    return True


def _tried_by_a_restart(checkpoints: Sequence[Checkpoint]) -> Iterator[Checkpoint]:
    # Unsound ones are left out of the answer, not of the question: they, too, tell which line is the live one.
    try:
        first = latest(checkpoints)
    except NoCheckpointError:
        return
    if first.is_sound:
        yield first  # mostly the only one that is asked for: after every save, of a history of thousands
    yield from (checkpoint for checkpoint in choose(checkpoints, "latest")[1:] if checkpoint.is_sound)
