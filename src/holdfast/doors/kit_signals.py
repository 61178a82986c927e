"""Signals for the KIT class: the end of a job is announced, each Checkpointer keeps what it has, the program ends.

The work is done at the next `step()`, when the value is whole; where none comes soon, in the handler, with the value
of the last one. Never in the middle of a checkpoint or of a transfer, which is finished first.
"""

import atexit
import logging
import os
import signal
import sys
import threading
import weakref
from types import FrameType
from typing import Any, NoReturn, Protocol

from holdfast.agent.exiting import EXIT_NOT_DURABLE
from holdfast.doors.kit_wakeup import forget_wakeups, wake_up

__all__ = ["SIGNALS", "Leaver", "is_asked", "leave_if_asked", "leave_now", "watch"]

_log = logging.getLogger("holdfast")

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class Leaver(Protocol):
    """What has something to keep before the program ends."""

    is_busy: bool
    """Whether it is in the middle of something that must be finished first."""

    @property
    def step_within_s(self) -> float:
        """How soon a step will end; 0 where that is too late, or nobody calls `step()`."""

    def leave(self, number: int) -> int | None:
        """Keep it; the status to end with, None where that failed."""


_leavers: "list[weakref.ref[Leaver]]" = []
_before: dict[int, Any] = {}
_pid = 0
"""The process whose signals these are; a forked child may get one before it has forgotten them."""
_seen: list[int] = []
"""All that the handler was called for, whatever came of it."""
_sent_again: list[int] = []
"""Each once: a call that is begun again after every signal would never end."""
_asked: list[int] = []
_status: list[int] = []
"""Once the work has been done: of a program that catches SystemExit, to be raised again."""
_is_leaving = False
_timer: threading.Timer | None = None
# Plain values: a handler that interrupts another one would wait for ever for the lock of an event.
_is_own = False
"""Whether the signal that comes next is the timer's."""
_is_starting = False
"""Whether the timer is being started, by a handler, with locks that a second one must not want."""


def watch(leaver: Leaver) -> None:
    """Have it asked before the program ends by a signal. Outside of the main thread that is only a warning."""
    global _pid
    _pid = os.getpid()
    _leavers[:] = [one for one in _leavers if one() is not None]
    _leavers.append(weakref.ref(leaver))
    for number in SIGNALS:
        if number == signal.SIGINT and (hasattr(sys, "ps1") or "ipykernel" in sys.modules):
            continue  # at a prompt, Ctrl-C is for what runs there
        before = signal.getsignal(number)
        if number == signal.SIGINT and before is signal.SIG_IGN:
            continue  # as shells have it for what they start in the background
        if before is _handle:
            continue
        try:
            signal.signal(number, _handle)
        except ValueError:
            _log.warning("made outside of the main thread: the KIT Checkpointer does not see signals")
            return
        _before[number] = before
    if _before and threading.current_thread() is threading.main_thread():
        wake_up(_is_missed)


def is_asked() -> bool:
    """Whether a signal came."""
    return bool(_asked)


def leave_now(number: int) -> NoReturn:
    """As if that signal had come, and no step were to be waited for."""
    _asked.append(number)
    if threading.current_thread() is not threading.main_thread() and signal.getsignal(_asked[0]) is _handle:
        _ask_again()  # the exception would end this thread only
        raise SystemExit
    _leave()


def leave_if_asked() -> None:
    """At a moment at which nothing is half done."""
    if not _asked or (_is_leaving and not _status):
        return  # nobody asked, or what asks here is part of the work that is being done
    if threading.current_thread() is threading.main_thread():
        _leave()
    else:
        _ask_again()


def _handle(number: int, frame: FrameType | None) -> None:
    global _is_own
    if os.getpid() != _pid:
        _forget_in_child()
        if signal.getsignal(number) is _handle:  # put back by somebody else who forgot later
            signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        return
    _seen.append(number)
    is_own, _is_own = _is_own, False
    if not any(one() for one in _leavers):
        _step_back(number)
        return
    if not is_own:
        _chain(number, frame)
    if _is_leaving:
        return  # it is being done; a second signal changes nothing
    is_first = not _asked
    _asked.append(number)
    alive = [leaver for one in _leavers if (leaver := one()) is not None]
    if _is_starting or any(leaver.is_busy for leaver in alive):
        return
    patience_s = max(leaver.step_within_s for leaver in alive)
    if is_first and patience_s > 0:
        _wait_for_step(patience_s)
        return
    _leave()


def _is_missed(number: int) -> bool:
    """Whether it came, and the handler has not been called. Once it was, it sees to what follows."""
    if _seen or number in _sent_again or signal.getsignal(number) is not _handle:
        return False
    _sent_again.append(number)
    return True


def _chain(number: int, frame: FrameType | None) -> None:
    before = _before.get(number)
    if callable(before) and before is not signal.default_int_handler:
        try:
            before(number, frame)
        except (Exception, SystemExit) as error:  # noqa: BLE001  the checkpoint comes before the end it wants
            _log.warning("the handler from before raised %r; the checkpoint is made all the same", error)


def _step_back(number: int) -> None:
    """Nobody is left to be asked: as if nobody had been."""
    _seen.clear()
    _sent_again.clear()
    signal.signal(number, _before.pop(number, None) or signal.SIG_DFL)
    signal.raise_signal(number)


def _wait_for_step(patience_s: float) -> None:
    global _timer, _is_starting
    _timer = threading.Timer(patience_s, _ask_again)
    _timer.daemon = True
    _is_starting = is_waiting = True
    try:
        _timer.start()
    except RuntimeError:  # no more threads
        is_waiting = False
    finally:
        _is_starting = False
    if not is_waiting or len(_asked) > 1:
        _leave()


def _ask_again() -> None:
    global _is_own
    _is_own = True
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, _asked[0])


def _leave() -> NoReturn:
    global _is_leaving
    if not _is_leaving:
        _is_leaving = True
        if _timer is not None:
            _timer.cancel()
        alive = [leaver for one in _leavers if (leaver := one()) is not None]
        found = [leaver.leave(_asked[0]) for leaver in alive]
        _status.append(EXIT_NOT_DURABLE if None in found else found[0] or 0)
    raise SystemExit(_status[0] if _status else EXIT_NOT_DURABLE)


def _silence() -> None:
    """Handlers are gone before a program's last lines are: a signal that comes once more would change its status."""
    if _is_leaving:
        for number in SIGNALS:
            if signal.getsignal(number) is _handle:
                signal.signal(number, signal.SIG_IGN)


def _forget_in_child() -> None:
    """A forked worker is none of ours: signals do to it what they did before."""
    global _is_leaving, _timer, _is_own, _is_starting
    while _before:
        number, before = _before.popitem()
        if signal.getsignal(number) is _handle:  # else it is somebody else's by now
            signal.signal(number, before or signal.SIG_DFL)
    forget_wakeups()
    _leavers.clear()
    _seen.clear()
    _sent_again.clear()
    _asked.clear()
    _status.clear()
    _is_leaving = _is_own = _is_starting = False
    _timer = None


atexit.register(_silence)
os.register_at_fork(after_in_child=_forget_in_child)
