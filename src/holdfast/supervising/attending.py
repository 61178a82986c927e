"""What a supervisor does while it waits: passes signals on, kills what was given long enough, reaps, clears up."""

import math
import os
import signal
from collections.abc import Mapping

from holdfast.core.clock import Clock
from holdfast.engine.process_tree import Process
from holdfast.policy.durations import words_of
from holdfast.supervising.app import App
from holdfast.supervising.arrivals import STOPS, Arrival, Arrivals
from holdfast.supervising.children import Children
from holdfast.supervising.relaying import are_all_catching, relay
from holdfast.supervising.telling import Telling
from holdfast.supervising.watching import Watch

__all__ = ["TICK_S", "Attendant"]

TICK_S = 1.0
"""So often it looks how far the program is."""
_KILLED_S = 10.0
"""What was killed has ended by then; only what waits for a broken device has not."""
_AGENTS_S = 75.0
"""Agents end by themselves within a minute."""
_PATIENT_S = 2.0
"""Nobody asks why, if it does not take longer."""
_HALTED_S = 1.0
"""Who comes so much too late was halted, and the program with it: by Slurm, for one."""
_HURRIED = (signal.SIGTERM, signal.SIGHUP)
"""After these somebody will kill the job."""
_BY_HAND = (signal.SIGINT, signal.SIGQUIT)
"""A second one of these means: quicker."""
_BETWEEN_S = 1.0
"""A program that is ending has no handlers any more, and a signal that follows at once would spoil its status."""


class Attendant:
    """Of one program over all its attempts."""

    def __init__(
        self, app: App, children: Children, *, arrivals: Arrivals, telling: Telling, clock: Clock, grace_s: float
    ) -> None:
        self._app, self._children = app, children
        self._arrivals, self._telling, self._clock = arrivals, telling, clock
        self._grace_s = grace_s
        self._watch: Watch | None = None
        self._has_asked_app = self._has_hurried = False
        self._held: dict[signal.Signals, Arrival] = {}
        self._held_s = -math.inf
        self._kill_s = math.inf
        self._first_kill_s = math.inf
        self.stopped_by: signal.Signals | None = None
        """The first signal that somebody sent to end it."""

    def attend(self, watch: Watch) -> None:
        """A new attempt, and where it tells how far it is."""
        self._watch = watch
        self._has_asked_app = self._has_hurried = False
        self._held.clear()
        if self.stopped_by is None:
            self._kill_s = self._first_kill_s = math.inf

    def turn(self, timeout_s: float = TICK_S) -> None:
        """Wait for a signal so long, and do what it asks; kill what was given long enough."""
        due_s = min(self._kill_s, self._held_s if self._held else math.inf)
        begun_s = self._clock.monotonic_s()
        arrival = self._arrivals.fetch(min(timeout_s, due_s - begun_s))
        if self._watch is not None and (now_s := self._clock.monotonic_s()) > begun_s + timeout_s + _HALTED_S:
            self._watch.woken(now_s)
        if arrival is not None:
            self._handle(arrival)
        if self._held and self._clock.monotonic_s() >= self._held_s:
            self._pass_on(self._held.pop(next(iter(self._held))))
        if self._clock.monotonic_s() >= self._kill_s:
            self._kill()

    def end_program(self) -> None:
        """Have it save and end, or be killed; what follows is another's matter."""
        self._kill_s = min(self._kill_s, self._clock.monotonic_s() + self._grace_s)
        self._relay(Arrival(signal.SIGTERM, from_terminal=False, sender=os.getpid()))

    def abandon(self) -> None:
        """Something has failed: leave nothing running."""
        if self._children.pid:
            self.end_program()
        while self._children.pid and not self.is_beyond_killing():
            self.turn()
            self._children.reap()
        self.clear_up(patience_s=0.0)

    def is_beyond_killing(self) -> bool:
        """Whether it was killed, and is there all the same."""
        return self._clock.monotonic_s() >= self._first_kill_s + _KILLED_S

    def pause(self, pause_s: float) -> None:
        """Wait so long, or until somebody wants the end."""
        deadline_s = self._clock.monotonic_s() + pause_s
        self.turn(0.0)  # also where nothing is waited for: the next program would die of what came before it was there
        while self.stopped_by is None and (left_s := deadline_s - self._clock.monotonic_s()) > 0:
            self._telling.show(f"again in {words_of(max(1, round(left_s)))}")
            self.turn(min(left_s, TICK_S))
            self._children.reap()

    def clear_up(self, *, patience_s: float) -> None:
        """See what the program has left behind come to its end: by itself for so long, then by signals."""
        begun_s = self._clock.monotonic_s()
        asked_s, has_told = math.inf, False
        while family := self._children.family():
            now_s = self._clock.monotonic_s()
            if asked_s == math.inf and (now_s >= begun_s + patience_s or self.stopped_by is not None):
                asked_s = now_s
                self._children.send_to_all(signal.SIGTERM)
                self._kill_s = min(self._kill_s, now_s + self._grace_s)
            if self.is_beyond_killing():
                self._telling.tell("note", f"cannot be killed: {_words(family)}", matters=True)
                return
            if not has_told and now_s >= begun_s + _PATIENT_S:
                has_told = True
                self._telling.tell("note", f"waits for what it has left behind: {_words(family)}")
            self.turn(0.1 if now_s < begun_s + _PATIENT_S else TICK_S)
            self._children.reap()

    def wait_for_agents(self) -> None:
        """See what the program gave its agents become durable."""
        begun_s = self._clock.monotonic_s()
        has_told = False
        while self._children.agents() and (now_s := self._clock.monotonic_s()) < begun_s + _AGENTS_S:
            if not has_told and now_s >= begun_s + _PATIENT_S:
                has_told = True
                self._telling.tell("note", "waits until the last checkpoint is written")
            self.turn(0.1)
            self._children.reap()

    def _handle(self, arrival: Arrival) -> None:
        if arrival.number in STOPS:
            self._stop(arrival)
        elif arrival.number == signal.SIGTSTP:
            self._telling.hide()
            if not arrival.from_terminal:
                self._children.send_to_all(signal.SIGTSTP)
            self._arrivals.stop_ourselves()
            if self._watch is not None:
                self._watch.woken(self._clock.monotonic_s())
        elif arrival.number == signal.SIGCONT:
            self._children.send_to_all(signal.SIGCONT)

    def _stop(self, arrival: Arrival) -> None:
        self.stopped_by = self.stopped_by or arrival.number
        now_s = self._clock.monotonic_s()
        if arrival.number in _HURRIED:
            self._kill_s = min(self._kill_s, now_s + self._grace_s)
        if now_s < self._held_s and self._children.pid and not arrival.from_terminal:
            self._held[arrival.number] = arrival
        else:
            self._pass_on(arrival)

    def _pass_on(self, arrival: Arrival) -> None:
        self._held_s = self._clock.monotonic_s() + _BETWEEN_S
        if not self._children.pid:
            self._children.send_to_all(arrival.number)
            self._tell(arrival, ": not started again")
        elif arrival.number not in _BY_HAND and self._is_ending(arrival):
            self._tell(arrival, " changes nothing: the program is ending already")
        elif self._app.ask_to_stop(self._children.pid):
            self._has_asked_app = True
            self._tell(arrival, f": the program is asked to save and end{self._grace_words(arrival)}")
        else:
            self._relay(arrival)

    def _is_ending(self, arrival: Arrival) -> bool:
        """Whether another signal tells it nothing new. That it will be killed soon, it does not know after SIGUSR1."""
        if self._has_asked_app:
            return True
        family = self._children.family()
        if self._watch is None or not self._watch.is_stopping(family):
            return False
        is_news = arrival.number in _HURRIED and not self._has_hurried
        # One that hears it no more would be killed by it, and lose its status.
        return not (is_news and are_all_catching(signal.SIGTERM, family, self._watch.read_beating()))

    def _relay(self, arrival: Arrival) -> None:
        self._has_hurried |= arrival.number in _HURRIED
        beating = self._watch.read_beating() if self._watch is not None else []
        family = self._children.family()
        chosen = relay(arrival, family, beating, child=self._children.pid)
        to = _words({pid: family[pid] for pid in chosen}) or "nobody, it has ended"
        verb = "has reached" if arrival.from_terminal else "passed on to"
        self._tell(arrival, f" {verb} {to}{self._grace_words(arrival)}", chosen)

    def _tell(self, arrival: Arrival, text: str, pids: list[int] | None = None) -> None:
        name = arrival.number.name
        fields = {"signal": name, "sender": arrival.sender, "pids": pids or []}
        self._telling.tell("signal", f"{name}{text}", fields=fields)

    def _grace_words(self, arrival: Arrival) -> str:
        return f", which has {words_of(self._grace_s)}" if arrival.number in _HURRIED else ""

    def _kill(self) -> None:
        """What is left. Once more in a moment, should it have started others meanwhile."""
        now_s = self._clock.monotonic_s()
        self._kill_s = now_s + TICK_S
        family = self._children.family()
        if not family:
            return
        self._children.send_to_all(signal.SIGKILL)
        if self._first_kill_s == math.inf:
            self._first_kill_s = now_s
            text = f"killed, for it has not ended within {words_of(self._grace_s)}: {_words(family)}"
            self._telling.tell("kill", text, matters=True, fields={"pids": sorted(family)})


def _words(family: Mapping[int, Process]) -> str:
    return ", ".join(f"{family[pid].name} (pid {pid})" for pid in sorted(family))
