"""How a program is asked to stop from outside, and what it does then: the options, and their wiring to one run."""

import os
import signal
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Literal, Protocol, get_args

from holdfast.core.errors import Interrupted, Stopped
from holdfast.engine.beats import BEATS_VARIABLE, Beat, Beats
from holdfast.engine.departing import depart, forget_departed
from holdfast.engine.hearing import Asked, Heard, Hearing, SignalsOption, actions_of, grace_of
from holdfast.engine.jobs import restart_status
from holdfast.engine.notebooks import before_each_cell, is_notebook
from holdfast.engine.options import check_choice
from holdfast.engine.signals import Signals

__all__ = ["OnStop", "Stops", "Target"]

_IN_NOTEBOOK = "run the cell again to go on; if it makes the Checkpointer, and not by `with`, ckpt.close() comes first"

OnStop = Literal["exit", "raise", "return"]


class Target(Asked, Protocol):
    """Whoever is asked, in the eyes of notebooks and supervisors, too."""

    def begin_cell(self) -> None: ...
    def beat(self) -> Beat | None: ...


class Stops:
    """Of one Checkpointer."""

    def __init__(
        self,
        *,
        signals: SignalsOption,
        grace: float | str | timedelta | None,
        exit_code: int | None,
        on_stop: OnStop | None,
    ) -> None:
        if on_stop is not None:
            check_choice("on_stop", on_stop, get_args(OnStop))
        self.on_stop: OnStop = on_stop or ("raise" if is_notebook() else "exit")
        self.status = restart_status(exit_code, os.environ)
        self.reason = ""
        """Why the training has stopped, where it has and the program goes on."""
        self._actions = actions_of(signals)
        self._grace = grace_of(grace, os.environ)
        self._hearing: Hearing | None = None
        self._signals: Signals | None = None
        self._beats: Beats | None = None
        self._undo: Callable[[], None] = lambda: None

    def attach(self, target: Target) -> None:
        """Listen, and give signs of life. The target is let go as soon as the program does."""
        there = weakref.ref(target)

        def beat() -> Beat | None:
            found = there()
            return None if found is None else found.beat()

        self._hearing = Hearing(self._actions, self._grace, there)
        signals = self._signals = Signals(self._actions, self._hearing)

        def begin_cell() -> None:
            found = there()
            if found is not None and self._hearing is not None:
                self._hearing.forget()
                found.begin_cell()
                signals.install()

        forget_departed()
        if signals.start():
            self._undo = before_each_cell(begin_cell)
            # At the end of the program, close() does it: until the last checkpoint is durable, somebody listens.
            weakref.finalize(target, _let_go, signals, self._undo).atexit = False
            if _unanswered and not is_notebook():
                self._hearing.hear_late(_unanswered.pop())
        self._beats = Beats(os.environ.get(BEATS_VARIABLE), beat)
        self._beats.start()

    def tell(self) -> None:
        """Give a sign of life now: it goes on from another step."""
        if self._beats is not None:
            self._beats.tell()

    def depart(self, left_s: float, end: Callable[[], None]) -> SystemExit:
        """What ends the program, with the right status; by `end`, where that takes longer than what is left."""
        return depart(self.status, end, numbers=self._actions, grace_of=self._grace.of, left_s=left_s)

    def stopped(self, said: str, reason: str) -> None:
        """It is saved, and the program goes on by itself; Stopped where it is to be told that way."""
        if self._hearing is not None:
            self._hearing.forget()
        _unanswered.clear()
        if self.on_stop == "raise":
            kind = Interrupted if reason == signal.Signals.SIGINT.name else Stopped
            hint = _IN_NOTEBOOK if is_notebook() else "sys.exit(error.status) asks for a restart"
            raise kind(f"stopped {said}", hint=hint, status=self.status)
        self.reason = reason

    def leave_unanswered(self) -> None:
        """A signal may have come since the last step. If the program goes on to train something else, that answers."""
        if self._hearing is not None and self._hearing.unanswered is not None:
            _unanswered[:] = [self._hearing.unanswered]

    def close(self) -> None:
        """Nobody listens any more."""
        self.let_signals_go()
        if self._beats is not None:
            self._beats.close()

    def let_signals_go(self) -> None:
        """Give back the handlers that were there before."""
        if self._signals is not None:
            _let_go(self._signals, self._undo)


_unanswered: list[Heard] = []
os.register_at_fork(after_in_child=_unanswered.clear)


def _let_go(signals: Signals, undo: Callable[[], None]) -> None:
    signals.close()
    undo()
