"""How a program leaves its loop before it is done: its time is over, or an exception was raised."""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from holdfast.core.errors import FencedError, HoldfastError, SaveFailedError, UsageError
from holdfast.engine.pace import Pace
from holdfast.engine.pace_history import STOPPED
from holdfast.engine.pacing import Look
from holdfast.engine.updates import Updates

if TYPE_CHECKING:
    from threading import RLock  # a function, to Python itself

__all__ = [
    "LEAST_PATIENCE_S",
    "end_at_once",
    "end_in_step",
    "leave",
    "quit_at_once",
    "save_on_error",
    "stop",
    "wait_for_lock",
]

_log = logging.getLogger("holdfast")

LEAST_PATIENCE_S = 0.5
"""For a look, a save, or a stop that is under way when the time is over."""
# Somebody may not want to wait any more.
_LOOK_S = 0.1
_SAY_S = 1.0
# Of a program that somebody interrupts, and who does not want to wait: 128 + SIGINT, as shells have it.
_QUIT_STATUS = 130
# As of an exception that nobody catches.
_FENCED_STATUS = 1


def stop(
    look: Look,
    step: int,
    pace: Pace,
    *,
    save: Callable[..., object],
    note: Callable[..., None],
    finish: Callable[[str], None],
) -> None:
    """Make durable what can be, say what is lost, and let the program end as it wants to.

    `save` is told `with_metrics`, whether to save them, too; `finish` what there is to say. The last call stays until
    all that is done: nobody else would end a program whose storage hangs now.
    """
    pace.end_is_near()
    try:
        if look.saves:
            with pace.saving_last():
                _save_last(save)
        if look.waits:
            pace.wait_for_last()
        lost = pace.lost_steps(step)
        note(STOPPED, step=step, why=look.why, lost_steps=lost, durable_s=pace.durable_s())
    except BaseException:
        pace.release()
        raise
    finish(f"at step {step}{_what_is_saved(step, lost, pace)}: {look.why}")


def _what_is_saved(step: int, lost: int, pace: Pace) -> str:
    if lost:
        return f"; the last {lost} of them are not saved"
    durable = pace.durable_step()
    if durable is None:
        return "; there is no checkpoint yet"
    # A program that also saves with numbers of its own may have one of a later step.
    return ", which is saved" if durable == step else f", which is not saved; the last checkpoint is of step {durable}"


def leave(
    said: str, pace: Pace, *, close: Callable[[], None], depart: Callable[[float], SystemExit], status: int
) -> NoReturn:
    """End the program, with the status that asks for a restart. `depart` is told how long that may take."""
    # A warning, so that it is seen: a program that ends without a word looks like one that crashed.
    _log.warning("stopping %s; status %d asks for a restart", said, status)
    departure: SystemExit | FencedError = depart(pace.left_to_end_s())  # from here on, no signal changes the status
    try:
        close()
    except SaveFailedError as failure:
        _log.error("%s", failure)  # the status is not that of success (I8)
        if isinstance(failure.__cause__, FencedError):
            # It was started again already: to ask for a restart would end the one that has taken over.
            departure, status = failure.__cause__, _FENCED_STATUS
    finally:
        pace.release()
    if threading.current_thread() is not threading.main_thread():
        # An exception would end this thread, and the program with the status of success.
        _within(_SAY_S, _flush_output)
        os._exit(status)
    try:
        raise departure
    finally:
        del departure  # or this frame would keep it, and nobody would learn that it was caught


def end_in_step(
    step: int, pace: Pace, *, note: Callable[..., None], flush: Callable[[float], object], status: int
) -> NoReturn:
    """The same from another thread, while the program is in the middle of a step: only what was copied can be saved.

    Nothing of the program runs any more: it would be killed in a moment. Nothing that fails or hangs here, not even a
    log that somebody else holds, keeps it from ending.
    """
    try:
        pace.wait_to_quit() if pace.quits else pace.wait_for_last()
        lost = pace.lost_steps(step)
        why = pace.why_stopping if pace.quits else "the time was over in the middle of a step"
        note(STOPPED, step=step, why=why, lost_steps=lost)

        def say() -> None:
            because = "asked to quit" if pace.quits else "the time is over"
            saved = _what_is_saved(step, lost, pace)
            _log.error("%s in the middle of a step: stopping after step %d%s", because, step, saved)
            flush(_SAY_S)
            _flush_output()

        _within(_SAY_S, say)
    finally:
        os._exit(_QUIT_STATUS if pace.quits else status)


def end_at_once(step: int, *, status: int, why: str = "the time is over") -> NoReturn:
    """From another thread, while the program is being stopped and does not come to its end in time."""
    try:
        _within(_SAY_S / 2, lambda: _log.error("%s: stopping at step %d, before all was done", why, step))
    finally:
        os._exit(status)


def quit_at_once(step: int, pace: Pace) -> NoReturn:
    """The same, where somebody does not want to wait but for what is being written."""
    try:
        pace.wait_to_quit()
    finally:
        end_at_once(step, status=_QUIT_STATUS, why="asked to quit")


def wait_for_lock(lock: "RLock", pace: Pace, *, is_restoring: bool) -> bool:
    """At the end: a save is worth waiting for, and a step that ends now; whether it is held now."""
    if pace.is_ending or is_restoring:  # which has nothing that could be lost
        return lock.acquire(blocking=False)
    end_s = time.monotonic() + max(LEAST_PATIENCE_S, pace.wait_s())
    while not (is_held := lock.acquire(timeout=_LOOK_S)):
        if time.monotonic() >= min(end_s, pace.quit_end_s):
            break
    return is_held


def _save_last(save: Callable[..., object]) -> None:
    """Whatever is wrong with it, the program ends as it is supposed to."""
    try:
        save(with_metrics=True)
    except FencedError:
        raise
    except UsageError as error:
        _log.error("%s; trying without the metrics", error)
        try:
            save(with_metrics=False)
        except HoldfastError as failure:
            _log.error("no checkpoint could be made: %s", failure)
    except HoldfastError as error:
        _log.error("no checkpoint could be made: %s", error)


def _within(seconds: float, work: Callable[[], None]) -> None:
    """Do it, but wait no longer than that."""
    thread = threading.Thread(target=work, name="holdfast-end", daemon=True)
    try:
        thread.start()
        thread.join(seconds)
    except RuntimeError:  # no more threads
        pass


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    logging.shutdown()


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
