"""Suspicion: mark the checkpoints of a training whose loss fails, so that a restart can go back to a healthy one."""

import logging

from holdfast.core.errors import HoldfastError
from holdfast.engine.catalog import read_catalog
from holdfast.engine.marks import SUSPECT, set_mark
from holdfast.engine.writing import Attempt
from holdfast.policy.lineage import in_order, live_line

__all__ = ["mark_suspects"]

_log = logging.getLogger("holdfast")


def mark_suspects(writer: Attempt, *, from_step: int, reason: str) -> list[str]:
    """Mark what the live line has of that step and later ones; the ids that were not marked before.

    That includes the checkpoint that the attempt went on from: if the first losses after it are bad, so is it. A mark
    that cannot be written is a warning (I7).
    """
    marked: list[str] = []
    try:
        checkpoints = read_catalog(writer.store, writer.run_id, cache=writer.heads).checkpoints
        live = live_line(checkpoints, origin=writer.origin, attempt=writer.attempt, forks=writer.forks)
        for checkpoint in in_order(checkpoints):
            is_new = not checkpoint.suspect and not checkpoint.quarantined
            if is_new and checkpoint.id in live and checkpoint.step >= from_step:
                set_mark(writer.store, checkpoint.id, SUSPECT, reason=reason, clock=writer.clock)
                marked.append(checkpoint.id)
    except HoldfastError as error:
        _log.warning("checkpoints from step %d on cannot be marked suspect: %s", from_step, error.message)
    if marked:
        writer.journal.record("suspect", ids=marked, reason=reason)
    return marked
