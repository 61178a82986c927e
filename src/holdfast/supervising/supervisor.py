"""Runs a program until it is done: one attempt after the other."""

import math
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.core.clock import Clock
from holdfast.core.errors import StorageError
from holdfast.engine.beats import BEATS_VARIABLE
from holdfast.policy.durations import words_of
from holdfast.supervising.app import App, Ending
from holdfast.supervising.arrivals import Arrivals
from holdfast.supervising.attending import TICK_S, Attendant
from holdfast.supervising.children import Children
from holdfast.supervising.deciding import Rules, SoFar, Tried, Verdict, judge
from holdfast.supervising.telling import Telling
from holdfast.supervising.watching import Watch
from holdfast.supervising.words import attempt_line, ending_words, live_words

__all__ = ["GRACE_VARIABLE", "RESTARTS_VARIABLE", "Plan", "Supervisor"]

RESTARTS_VARIABLE = "HOLDFAST_RESTARTS"
"""How often the program was started again."""
GRACE_VARIABLE = "HOLDFAST_GRACE"
"""How long the program has from a signal to its end, in seconds."""
_CANNOT_BEGIN = 126
_BY_HAND = (signal.SIGINT, signal.SIGQUIT)


class Plan(NamedTuple):
    """What the supervisor was asked to do."""

    rules: Rules
    restart_status: int
    grace_s: float = 30.0
    tells_grace: bool = False
    """Whether the program is told of it; else it goes by its own."""
    hang_s: float | None = None


class Supervisor:
    """Of one command. All that ends below this process is reaped by it, and all signals are its own."""

    def __init__(self, app: App, plan: Plan, *, arrivals: Arrivals, telling: Telling, clock: Clock) -> None:
        self._app, self._plan, self._telling, self._clock = app, plan, telling, clock
        self._children = Children(arrivals.mask_of_program)
        self._attendant = Attendant(
            app, self._children, arrivals=arrivals, telling=telling, clock=clock, grace_s=plan.grace_s
        )
        self._so_far = SoFar()
        self._is_hung = False
        self._has_told_of_hang = False

    def run(self, environment: Mapping[str, str]) -> int:
        """Until it is done, is not worth another try, or somebody stops it; the status to end with."""
        try:
            folder = tempfile.TemporaryDirectory(prefix="holdfast-run-", ignore_cleanup_errors=True)
        except OSError as error:
            raise StorageError(
                f"there is no place for temporary files: {error.strerror}", hint="set TMPDIR to a directory"
            ) from error
        with folder as path, self._children.guarded(path):
            try:
                status = self._attempts(path, environment)
            except BaseException:
                self._attendant.abandon()
                raise
            self._attendant.wait_for_agents()
        self._telling.tell("end", "", fields={"status": status})
        return status

    def _attempts(self, folder: str, environment: Mapping[str, str]) -> int:
        number = 0
        while True:
            number += 1
            verdict = self._attempt(number, os.path.join(folder, str(number)), environment)
            is_final = not verdict.goes_on and self._attendant.stopped_by is None
            self._attendant.clear_up(patience_s=self._plan.grace_s if is_final else 0.0)
            if not verdict.goes_on:
                return verdict.status
            self._attendant.pause(verdict.after_s)
            if self._attendant.stopped_by is not None:
                return self._status_between(self._attendant.stopped_by)

    def _attempt(self, number: int, folder: str, environment: Mapping[str, str]) -> Verdict:
        """One of them, and a line of it."""
        started_utc_s, begun_s = self._clock.utc_s(), self._clock.monotonic_s()
        watch = Watch(folder, begun_s)
        self._attendant.attend(watch)
        self._is_hung = False
        command = self._app.begin()
        status, error = self._run_program(number, command, watch, environment={**environment, **self._told(folder)})
        stopped_by = self._attendant.stopped_by
        ending = Ending("failed", status) if error is not None else self._app.end(status)
        watch.look(self._clock.monotonic_s(), ending.step)
        if ending.outcome == "done" and (watch.progress.stopping or self._is_hung):
            # I8: a pipeline has the status of its last part, and so hides that of the program. One that hung was ended
            # by us: many programs take SIGTERM for an orderly end.
            ending = ending._replace(outcome="again", status=self._plan.restart_status)
        tried = Tried(
            ending.outcome,
            ending.status,
            self._clock.monotonic_s() - begun_s,
            from_step=watch.progress.from_step if ending.from_step is None else ending.from_step,
            step=watch.progress.step,
            stopped_by=stopped_by.name if stopped_by is not None else "",
            is_hung=self._is_hung,
        )
        verdict, self._so_far = judge(tried, self._so_far, self._plan.rules)
        words = ending_words(tried, hang_s=self._plan.hang_s) + (f" ({ending.why})" if ending.why else "")
        if error is not None:
            words = f"{command[0]} cannot be started: {error.strerror}"
            if number == 1:  # one that never ran is mistyped, however patient its user
                verdict = Verdict(goes_on=False, status=status, advice="give the command as you would type it")
        self._tell(attempt_line(number, started_utc_s, tried, ending=words, verdict=verdict), number, tried, verdict)
        return verdict

    def _run_program(
        self, number: int, command: Sequence[str], watch: Watch, *, environment: Mapping[str, str]
    ) -> tuple[int, OSError | None]:
        """From its start to its end: its status, and why it could not begin."""
        try:
            self._children.start(command, environment)
        except OSError as error:
            return _CANNOT_BEGIN, error
        looked_s = -math.inf
        while (status := self._children.reap()) is None:
            if self._attendant.is_beyond_killing():
                self._children.pid = 0
                return 128 + signal.SIGKILL, None
            now_s = self._clock.monotonic_s()
            if now_s - looked_s >= TICK_S:
                looked_s = now_s
                watch.look(now_s, self._app.look(self._children.pid))
                # Before its first step, too, where the line would still tell of the attempt before.
                if watch.progress.step is not None or self._so_far.best_step is not None:
                    self._telling.show(live_words(number, watch.progress), watch.progress._asdict())
                self._check_hang(watch, now_s)
            self._attendant.turn(max(0.0, looked_s + TICK_S - now_s))
        return status, self._children.take_error()

    def _check_hang(self, watch: Watch, now_s: float) -> None:
        hang_s = self._plan.hang_s
        if hang_s is None or self._is_hung or self._attendant.stopped_by or now_s - watch.moved_s < hang_s:
            return
        if watch.progress.step is None and self._so_far.best_step is None:
            if not self._has_told_of_hang:
                self._has_told_of_hang = True
                text = "--hang: it tells no steps; to know whether it hangs takes holdfast in it, or --app"
                self._telling.tell("note", text, matters=True)
            return
        self._is_hung = True
        self._telling.tell("hang", f"no step for {words_of(hang_s)}: it is ended", matters=True)
        self._attendant.end_program()

    def _told(self, folder: str) -> dict[str, str]:
        told = {BEATS_VARIABLE: folder, RESTARTS_VARIABLE: str(self._so_far.restarts)}
        return {**told, GRACE_VARIABLE: f"{self._plan.grace_s:g}"} if self._plan.tells_grace else told

    def _status_between(self, stopped_by: signal.Signals) -> int:
        """Stopped between two attempts: there is more to do, which a scheduler is told; a person knows."""
        return 128 + stopped_by if stopped_by in _BY_HAND else self._plan.restart_status

    def _tell(self, line: str, number: int, tried: Tried, verdict: Verdict) -> None:
        is_bad = not verdict.goes_on and tried.outcome == "failed"
        self._telling.tell(
            "attempt",
            line,
            matters=is_bad,
            fields={
                "attempt": number,
                **tried._asdict(),
                "goes_on": verdict.goes_on,
                "after_s": verdict.after_s,
                "why": verdict.why,
            },
        )
        if verdict.advice:
            self._telling.tell("hint", f"hint: {verdict.advice}", matters=is_bad)
