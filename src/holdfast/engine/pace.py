"""`every=` at work, with what belongs to it: the end of the job, and signs of trouble.

Made with the Checkpointer, begun at its first step: a program that calls `save` itself starts no threads.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from holdfast.core.clock import Clock
from holdfast.core.errors import in_words
from holdfast.core.values import Checkpoint
from holdfast.engine.journal import read_events
from holdfast.engine.last_call import LastCall
from holdfast.engine.outcome import PendingCheckpoint
from holdfast.engine.pace_history import Past, read_past
from holdfast.engine.pacing import Look, Pacer, auto_in
from holdfast.engine.queueing import Queued
from holdfast.engine.session import Session
from holdfast.engine.signs import Signs
from holdfast.engine.time_left import TimeLeft, TimeLeftOption, find_time_left
from holdfast.policy.functions import check_function
from holdfast.policy.moment import Decision
from holdfast.policy.triggers import Trigger, never

__all__ = ["Limit", "Pace"]

_log = logging.getLogger("holdfast")

# For a storage that is slow.
_MOST_WAIT_S = 600.0
# For what is being written, where somebody has pressed Ctrl-C twice.
_QUIT_WAIT_S = 60.0
_PAUSE_S = 0.05


class _Reserves(NamedTuple):
    """What of the time left is not for saving."""

    in_step_s: float = 3.0
    """In the middle of a step: a limit is not given to the second, as a grace is. Later than a look at the end of
    a step would stop the program, or the one would come in the way of the other."""
    exit_s: float = 1.0
    """For the end of the process."""
    last_s: float = 0.5
    """A program that is ending, and has not ended by then, is ended."""

    @classmethod
    def of(cls, whole_s: float) -> "_Reserves":
        """No more than a part of a short limit, and less than its decisions leave for the end: or nothing was saved."""
        most = cls()
        return cls(
            min(most.in_step_s, 0.05 * whole_s), min(most.exit_s, 0.03 * whole_s), min(most.last_s, 0.015 * whole_s)
        )


_OF_GRACE = _Reserves()


class _Notice(NamedTuple):
    """Somebody asks the program to stop."""

    reason: str
    end_s: float | None
    """When it will be killed; None where nobody says."""
    likely_s: float | None = None
    """When it will be killed in all likelihood: a step that has not ended by then is not waited for. Nothing else
    hurries because of it."""


class Limit:
    """How long the job may run, as the program and the environment say; what they say in figures counts from now on.

    UsageError where it makes no sense. Functions and schedulers are asked only once somebody wants to know.
    """

    def __init__(self, option: TimeLeftOption, clock: Clock, *, total_steps: int | None = None) -> None:
        self.total_steps = total_steps
        self._option = option
        self._clock = clock
        given = {name: value for name, value in os.environ.items() if name.startswith("HOLDFAST_")}
        if callable(option):
            check_function(option, "time_left", given="")
        self._found = None if callable(option) else find_time_left(option, given, clock)
        self.is_given = self._found is not None
        """Whether it was given in figures; else a function or a scheduler may know, and is asked at the first step."""

    def find(self) -> TimeLeft | None:
        """Whoever knows; None where nobody does."""
        return self._found or find_time_left(self._option, os.environ, self._clock)


class Pace:
    """One per Checkpointer. Called with its lock held."""

    def __init__(
        self, trigger: Trigger, session: Session, *, limit: Limit, note: Callable[..., None], signs: Signs
    ) -> None:
        self._trigger = trigger
        self._session = session
        self._note = note
        self._limit = limit
        self._signs = signs
        self._time_left: TimeLeft | None = None
        self._began_s = session.clock.monotonic_s()
        self._restored: Checkpoint | None = None
        self._saves: list[PendingCheckpoint] = []
        self._pacer: Pacer | None = None
        self._notice: _Notice | None = None
        self._quits = 0
        self.quit_end_s = math.inf
        """When the program ends in any case, because somebody has said so; by the clock that does not jump."""
        self._saves_once = False
        self._last_call: LastCall | None = None
        self._reserves = _Reserves()
        self._is_released = self._is_saving_last = False
        self.is_ending = False
        """Whether the program, or the Checkpointer, is about to end by itself."""
        self.end_in_step: Callable[[], bool] = lambda: False
        """Called by another thread when the time is over, and the program is in the middle of a step; whether to call
        it again."""

    def watch_limit(self) -> None:
        """Where a limit was given, it holds from now on: the first step may take longer than all of it."""
        if self._limit.is_given:
            self._time_left = self._limit.find()
            left_s = None if self._time_left is None else self._time_left.left_s()
            # One that is over already is for the first look to see, which ends the program as usual.
            if left_s is None or left_s > 0:
                self._call_last()

    @property
    def total_steps(self) -> int | None:
        """How many there are to be, where the program says so."""
        return self._limit.total_steps

    @property
    def ask_at(self) -> float:
        """The step before which there is nothing to look at."""
        return 0 if self._pacer is None else self._pacer.ask_at

    def look(self, step: int, epoch: int | None, metrics: Mapping[str, object], *, writing: bool) -> Look:
        """At the end of a step; `leave` must follow."""
        pacer, notice = self._begun(), self._notice
        if notice is None or not notice.reason:
            return pacer.look(step, epoch, metrics, writing=writing)
        return pacer.look(step, epoch, metrics, writing=writing, stop=notice.reason, grace_s=self._grace_s())

    def ask_to_stop(self, reason: str, grace_s: float | None, likely_s: float | None = None) -> None:
        """The next look ends the program; where none comes within the grace, the last call does.

        `likely_s` is a grace that nobody promised.
        """
        before = self._notice or _Notice("", None)
        now_s = self._session.clock.monotonic_s()
        # One says that it will be killed: that stays true.
        self._notice = _Notice(
            reason, _earliest(before.end_s, now_s, grace_s), _earliest(before.likely_s, now_s, likely_s)
        )
        if grace_s is not None or likely_s is not None:
            self._call_last()

    def ask_to_quit(self) -> None:
        """Not even the next look is waited for: only what is being written becomes durable. Again: not even that."""
        self._quits += 1
        # Again: at once.
        self.quit_end_s = -math.inf if self._quits > 1 else time.monotonic() + _QUIT_WAIT_S
        self._call_last()

    def ask_to_save(self) -> None:
        """The next look has a checkpoint made."""
        self._saves_once = True

    @property
    def is_asked_to_save(self) -> bool:
        """Whether somebody wants a checkpoint at the next look."""
        return self._saves_once

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether the next look will end the program."""
        return self._notice is not None and bool(self._notice.reason)

    @property
    def why_stopping(self) -> str:
        """Who asks for that; empty where nobody does."""
        return "" if self._notice is None else self._notice.reason

    @property
    def quits(self) -> bool:
        """Whether the program is ended because somebody does not want to wait."""
        return self._quits > 0

    def go_on(self) -> None:
        """It has stopped, and is not ended. Where it will be killed, that stays true."""
        notice, self._notice = self._notice, None
        if notice is not None and notice.end_s is not None:
            self._notice = _Notice("", notice.end_s)
        self._quits, self.quit_end_s, self.is_ending = 0, math.inf, False
        if self._last_call is not None:
            self._last_call.look_again()

    def end_is_near(self) -> None:
        """The program is being ended; the last call only sees to it that this does not take too long."""
        self.is_ending = True
        if self._last_call is not None:
            self._last_call.look_again()

    def is_over(self) -> bool:
        """Whether there is no time left, not even to end."""
        left_s = self._left_s(_OF_GRACE.last_s, self._reserves.last_s)
        return left_s is not None and left_s <= 0

    def release(self) -> None:
        """All is done: nobody has to be ended, or asked, any more."""
        self.end_last_call()
        if self._time_left is not None:
            self._time_left.close()

    def end_last_call(self) -> None:
        """Nobody has to be ended any more. Takes no lock."""
        self.is_ending = self._is_released = True
        if self._last_call is not None:
            self._last_call.close()

    def peek(self, step: int, epoch: int | None, metrics: Mapping[str, object]) -> Decision:
        """Whether a look would have a checkpoint made; nothing else happens."""
        pacer, notice = self._begun(), self._notice
        if notice is None or not notice.reason:
            return pacer.peek(step, epoch, metrics)
        return pacer.peek(step, epoch, metrics, stop=notice.reason, grace_s=self._grace_s())

    def leave(self, *, writing: bool) -> None:
        """The program goes on."""
        if self._pacer is not None:
            self._pacer.leave(writing=writing)
        # Not before: a look that finds the time over ends the program by itself.
        if self._time_left is not None and self._last_call is None:
            self._call_last()

    def due_on_error(self, step: int, error: BaseException) -> Decision:
        """Whether a checkpoint is due because that exception leaves the loop."""
        if self._pacer is None:
            return Decision(due=False, reason="no step was made")
        return self._pacer.due_on_error(step, in_words(error))

    def note_saved(self, pending: PendingCheckpoint, stall_s: float, *, epoch: int | None) -> None:
        """A checkpoint was begun, by a step or by the program itself."""
        self._saves = [*self._not_in_vain(), pending]
        self._saves_once = False
        if self._pacer is not None:
            self._pacer.note_saved(pending, stall_s, epoch=epoch)

    def note_skipped(self) -> bool:
        """One was due, and left out; whether it counts, because it was not left out before."""
        return self._pacer is not None and self._pacer.note_skipped()

    def note_restored(self, checkpoint: Checkpoint) -> None:
        """The training goes on from there."""
        self._restored = checkpoint
        self._began_s = self._session.clock.monotonic_s()
        self._saves = []
        if self._pacer is not None:
            self._tell_restored(self._pacer, checkpoint)

    def due_at_end(self, step: int, *, is_complete: bool, is_whole: bool) -> Decision:
        """Whether a checkpoint is due because the program is done: where it is left to us when to save, where one that
        was due was left out, or where all epochs are complete.

        `is_whole`: the position in the data is that of the last step. Says where the end of the training is in none.
        """
        pacer = self._pacer
        unsaved = 0 if pacer is None else pacer.unsaved_steps(step)
        if pacer is None or not unsaved:
            return Decision(due=False, reason="no step since the last checkpoint")
        wanted = auto_in(self._trigger) is not None or pacer.owes_one
        if is_complete and self._trigger != never():
            return Decision(due=True, reason=f"all epochs are complete, {unsaved} steps after the last checkpoint")
        if wanted and is_whole:
            return Decision(due=True, reason=f"the program is done, {unsaved} steps after the last checkpoint")
        if wanted:
            _log.warning("the end is not saved: batches were used since the last step(), and the data cannot go back")
        # Which may be called by another name.
        if not self._saves and frozenset(self._trigger.watches) & {"epoch", "metrics"}:
            _log.warning("no checkpoint was made in %d steps: %s", unsaved, pacer.why_none(step))
        return Decision(due=False, reason=f"the last {unsaved} steps are in no checkpoint")

    def lost_steps(self, step: int) -> int:
        """How many there are since what is durable, or was restored."""
        began = 0 if self._restored is None else self._restored.step
        return max(0, step - max((pending.step for pending in self._saves if pending.durable), default=began))

    def from_step(self) -> int:
        """The step that it has gone on from."""
        return 0 if self._restored is None else self._restored.step

    def durable_step(self) -> int | None:
        """The step that a restart would go on from; None where there is none."""
        began = -1 if self._restored is None else self._restored.step
        step = max((pending.step for pending in self._saves if pending.durable), default=began)
        return step if step >= 0 else None

    def durable_s(self) -> float | None:
        """What checkpoints take to be durable, for the next attempt to know."""
        return None if self._pacer is None else self._pacer.durable_s

    def wait_s(self) -> float:
        """How long may be waited at the end."""
        left_s = self._left_s(_OF_GRACE.exit_s, self._reserves.exit_s)
        return _MOST_WAIT_S if left_s is None else max(0.0, min(_MOST_WAIT_S, left_s))

    def wait_for_last(self) -> None:
        """Until the last save is durable or has failed, while the job has time left."""
        if self._saves:
            self._saves[-1].settle(self.wait_s())

    @contextmanager
    def saving_last(self) -> Iterator[None]:
        """Around the save before the end."""
        self._is_saving_last = True
        try:
            yield
        finally:
            self._is_saving_last = False

    def wait_to_quit(self) -> None:
        """The same, by another thread, for somebody who sits there, and may say once more that it is enough."""
        end_s = time.monotonic() + self.wait_s()
        while self._is_writing() and time.monotonic() < min(end_s, self.quit_end_s):
            time.sleep(_PAUSE_S)

    def _is_writing(self) -> bool:
        return self._is_saving_last or bool(self._saves and not self._saves[-1].settled)

    def close(self) -> None:
        """Tell the next attempt what was learnt; `release` must follow."""
        self.end_is_near()
        if self._pacer is not None:
            try:
                self._pacer.close()
            except Exception as error:  # noqa: BLE001  the run must be let go, whatever was measured
                _log.warning("what was measured is not kept: %s: %s", type(error).__name__, error)

    def _begun(self) -> Pacer:
        if self._pacer is None:
            session, past = self._session, Past()
            self._time_left = self._time_left or self._limit.find()
            if auto_in(self._trigger) is not None or self._time_left is not None:
                past = read_past(read_events(session.store), attempt=session.attempt)
            self._pacer = Pacer(
                self._trigger,
                session.clock,
                began_s=self._began_s,
                note=self._note,
                past=past,
                time_left=self._time_left,
                total_steps=self._limit.total_steps,
                risk=self._signs.risk,
                on_settled=self._signs.note_settled,
                queued=Queued(),
            )
            if self._restored is not None:
                self._tell_restored(self._pacer, self._restored)
        return self._pacer

    def _call_last(self) -> None:
        if self._is_released:
            return
        if self._last_call is not None:
            self._last_call.look_again()
            return
        left_s = None if self._time_left is None else self._time_left.left_s()
        if left_s is not None and left_s > 0:
            self._reserves = _Reserves.of(left_s)
        self._last_call = LastCall(self._left_in_step_s, self._need_s, lambda: self.end_in_step())
        self._last_call.start()

    def _left_s(self, of_grace_s: float, of_limit_s: float) -> float | None:
        """The shortest of what the job and a notice leave, less so much of each."""
        return _shortest(
            (self._grace_s(), of_grace_s), (None if self._time_left is None else self._time_left.left_s(), of_limit_s)
        )

    def left_to_end_s(self) -> float:
        """Until a program that was stopped, and does not come to its end, has to be ended."""
        left_s = self._left_s(_OF_GRACE.last_s, self._reserves.last_s)
        shortest_s = _shortest((left_s, 0.0), (self._likely_s(), _OF_GRACE.last_s))
        return math.inf if shortest_s is None else shortest_s

    def _left_in_step_s(self) -> float | None:
        """Until a program that is in the middle of a step has to end."""
        if self._quits:
            return 0.0
        if self.is_ending:
            return self._left_s(_OF_GRACE.last_s, self._reserves.last_s)
        left_s = self._left_s(_OF_GRACE.exit_s, self._reserves.in_step_s)
        return _shortest((left_s, 0.0), (self._likely_s(), _OF_GRACE.exit_s))

    def _grace_s(self) -> float | None:
        notice = self._notice
        return None if notice is None or notice.end_s is None else notice.end_s - self._session.clock.monotonic_s()

    def _likely_s(self) -> float | None:
        notice = self._notice
        return (
            None if notice is None or notice.likely_s is None else notice.likely_s - self._session.clock.monotonic_s()
        )

    def _need_s(self) -> float:
        return 0.0 if self._pacer is None or self.is_ending or self._quits else self._pacer.flush_s()

    def _tell_restored(self, pacer: Pacer, checkpoint: Checkpoint) -> None:
        pacer.note_restored(checkpoint.step, checkpoint.epoch, checkpoint.metrics, at_s=self._began_s)

    def _not_in_vain(self) -> list[PendingCheckpoint]:
        """Those that may still become durable, and the newest one that is."""
        durable = [pending for pending in self._saves if pending.durable]
        return [*durable[-1:], *(pending for pending in self._saves if not pending.settled)]


def _earliest(before_s: float | None, now_s: float, grace_s: float | None) -> float | None:
    """Of a moment, and the end of a grace that begins now."""
    if grace_s is None:
        return before_s
    return now_s + grace_s if before_s is None else min(before_s, now_s + grace_s)


def _shortest(*limits: tuple[float | None, float]) -> float | None:
    """Of what is left of each, less what is not to be used of it; None where there is no limit that is known."""
    known = [left_s - less_s for left_s, less_s in limits if left_s is not None and not math.isnan(left_s)]
    return min(known, default=None)
