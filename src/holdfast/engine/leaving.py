"""How a program leaves its loop before it is done: its time is over, or an exception was raised."""

import logging
import os
from collections.abc import Callable
from typing import NoReturn

from holdfast.core.errors import SaveFailedError
from holdfast.engine.pace import Pace
from holdfast.engine.pace_history import STOPPED
from holdfast.engine.pacing import Look
from holdfast.engine.updates import Updates

__all__ = ["RESTART_STATUS", "end_in_step", "save_on_error", "stop"]

_log = logging.getLogger("holdfast")

RESTART_STATUS = 85
"""The status of a program that has more to do, and wants to be started again."""


def stop(
    look: Look,
    step: int,
    pace: Pace,
    *,
    save: Callable[[], object],
    note: Callable[..., None],
    close: Callable[[float], None],
) -> NoReturn:
    """Make durable what can be, say what is lost, and end the program. `close` is told how many seconds there are."""
    pace.end_is_near()
    if look.saves:
        save()
    if look.waits:
        pace.wait_for_last()
    lost = pace.lost_steps(step)
    note(STOPPED, step=step, why=look.why, lost_steps=lost)
    if lost:
        _log.warning("stopping at step %d; the last %d of them are not saved: %s", step, lost, look.why)
    else:
        _log.info("stopping at step %d, which is saved: %s", step, look.why)
    try:
        close(pace.wait_s() if look.waits else 0.0)
    except SaveFailedError as failure:
        _log.error("%s", failure)  # the status is not that of success (I8)
    raise SystemExit(RESTART_STATUS)


def end_in_step(step: int, pace: Pace, *, note: Callable[..., None]) -> NoReturn:
    """The same from another thread, while the program is in the middle of a step: only what was copied can be saved.

    Nothing of the program runs any more: it would be killed in a moment.
    """
    pace.wait_for_last()
    lost = pace.lost_steps(step)
    note(STOPPED, step=step, why="the time was over in the middle of a step", lost_steps=lost)
    _log.error("the time is over in the middle of a step: stopping after step %d; %d of them are not saved", step, lost)
    logging.shutdown()
    os._exit(RESTART_STATUS)


def save_on_error(error: Exception, step: int, pace: Pace, updates: Updates, save: Callable[[str], object]) -> None:
    """Where the trigger asks for it; `save` is given a note. Nothing is raised: the program's own matters more."""
    try:
        if not pace.due_on_error(step, error).due:
            return
        if updates.is_half_done(error):
            _log.warning("nothing is saved at this exception: it came out of a weight update that was half done")
            return
        save(f"at {type(error).__name__}")
    except Exception as failure:  # noqa: BLE001
        _log.error("no checkpoint could be made at this exception: %s", failure)
