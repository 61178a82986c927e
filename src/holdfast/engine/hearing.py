"""What the signals mean to one run: save, save and stop, or stop at once; and how long there is for that."""

import logging
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Literal, NamedTuple, Protocol

from holdfast.core.errors import UsageError
from holdfast.engine.condor_settings import checkpoint_settings
from holdfast.engine.notebooks import is_notebook
from holdfast.policy.durations import seconds_of, words_of

__all__ = ["Action", "Asked", "Grace", "Heard", "Hearing", "SignalsOption", "actions_of", "grace_of"]

_log = logging.getLogger("holdfast")

Action = Literal["stop", "save"]
SignalsOption = Literal["auto"] | Iterable[str | int] | Mapping[str | int, Action] | None

_STOPPING = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT")
# A kernel that is shut down gets SIGTERM, and has to end.
_STOPPING_NOTEBOOK = ("SIGINT",)
_WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
_NEVER = (signal.SIGKILL, signal.SIGSTOP)
_GRACE_VARIABLE = "HOLDFAST_GRACE"
# What Slurm (KillWait), Kubernetes and most others leave between SIGTERM and SIGKILL, unless told otherwise.
_USUAL_GRACE_S = 30.0
_CONDOR_SHARE = 0.8


class Grace:
    """How long after a signal the program is killed."""

    def __init__(
        self, given_s: float | None, *, usual_s: float = _USUAL_GRACE_S, counts_from_warnings: bool = True
    ) -> None:
        self.given_s = given_s
        """As somebody said; None where nobody did."""
        self._counts_from_warnings = counts_from_warnings
        self._usual_s = usual_s

    def of(self, number: int) -> tuple[float | None, float | None]:
        """What is sure, and what is likely: a step that does not end within that is not waited for.

        Nobody kills a program because of SIGUSR1, and who pressed Ctrl-C can do so again.
        """
        if number == signal.SIGINT:
            return None, None
        if self.given_s is not None and (self._counts_from_warnings or number not in _WARNINGS):
            return self.given_s, self.given_s
        return None, self._usual_s if number == signal.SIGTERM else None


def grace_of(given: float | str | timedelta | None, environ: Mapping[str, str]) -> Grace:
    """What the program says, or its environment, or the ads of its HTCondor job; UsageError where that is no time."""
    if given is not None:
        return Grace(seconds_of(given, "grace"))
    if environ.get(_GRACE_VARIABLE):
        # Whoever starts the program knows when it kills it; a warning may come long before.
        return Grace(seconds_of(environ[_GRACE_VARIABLE], _GRACE_VARIABLE), counts_from_warnings=False)
    settings = checkpoint_settings(environ)
    if settings is None or settings.grace_s is None:
        return Grace(None)
    # What HTCondor transfers afterwards has to be done within the same time.
    return Grace(None, usual_s=_CONDOR_SHARE * settings.grace_s)


def actions_of(option: SignalsOption) -> dict[int, Action]:
    """What to do at which signal; UsageError where one is not a signal that a program can hear."""
    if option is None:
        return {}
    if isinstance(option, str):
        if option != "auto":
            raise UsageError(f"signals is {option!r}", hint="a list of names: signals=('SIGTERM', 'SIGUSR1')")
        option = _STOPPING_NOTEBOOK if is_notebook() else _STOPPING
    if not isinstance(option, Iterable):
        raise UsageError(f"signals is {option!r}", hint="a list of names: signals=('SIGTERM', 'SIGUSR1')")
    pairs = option.items() if isinstance(option, Mapping) else [(name, "stop") for name in option]
    actions: dict[int, Action] = {}
    for name, action in pairs:
        if action not in ("stop", "save"):
            raise UsageError(f"signals: {name} is to {action!r}, expected 'stop' or 'save'")
        actions[_number(name)] = "save" if action == "save" else "stop"
    return actions


class Asked(Protocol):
    """Whoever the signals are meant for. Called by handlers and by other threads, so nothing is waited for."""

    def is_training(self) -> bool: ...
    def ask_to_stop(self, reason: str, sure_s: float | None, likely_s: float | None) -> None: ...
    def ask_to_save(self) -> None: ...
    def ask_to_quit(self) -> None: ...
    def tell(self, event: str, **details: object) -> None: ...


class Heard(NamedTuple):
    """A signal that asks for a stop."""

    number: int
    at_s: float
    """By the clock that does not jump."""


class Hearing:
    """The listener of one Checkpointer, which it does not keep alive."""

    def __init__(self, actions: Mapping[int, Action], grace: Grace, target: Callable[[], Asked | None]) -> None:
        self._actions = actions
        self._grace = grace
        self._target = target
        self.unanswered: Heard | None = None
        """The last one that asked for a stop which has not come yet."""
        self._interrupts = 0
        self._is_notebook = is_notebook()

    def takes(self, number: int) -> bool:
        target = self._target()
        if target is None or number != signal.SIGINT:
            return target is not None
        # Before the first step there is nothing to save, and whoever presses Ctrl-C wants to be let go. In a notebook,
        # whoever does so twice wants the prompt, not the end of the kernel.
        return target.is_training() and not (self._is_notebook and self._interrupts)

    def stops(self, number: int) -> bool:
        return self._actions[number] == "stop"

    def hear(self, number: int) -> None:
        target = self._target()
        if target is None:
            return
        if self._actions[number] == "save":
            target.ask_to_save()
            return
        self.unanswered = Heard(number, time.monotonic())
        target.ask_to_stop(signal.Signals(number).name, *self._grace.of(number))
        if number == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts > 1:
                target.ask_to_quit()

    def hear_late(self, heard: Heard) -> None:
        """What came for another run of this program, which had made its last step."""
        target, ago_s = self._target(), time.monotonic() - heard.at_s
        if target is not None and self._actions.get(heard.number) == "stop":
            # A time that is over was not so long after all, or the program would not be here.
            left = [
                None if given is None or given <= ago_s else given - ago_s for given in self._grace.of(heard.number)
            ]
            self.unanswered = heard
            target.ask_to_stop(signal.Signals(heard.number).name, left[0], left[1])

    def heard(self, number: int) -> None:
        target, name = self._target(), signal.Signals(number).name
        if target is not None:
            target.tell("signal", signal=name, action=self._actions[number])
        if self._actions[number] == "save":
            _log.info("%s: saving at the end of this step", name)
        elif number == signal.SIGINT:
            again = "ending as soon as what is being written is durable; once more ends it at once"
            first = "saving at the end of this step, and stopping; Ctrl-C again does not wait for the step"
            _log.warning("%s: %s", name, again if self._interrupts > 1 else first)
        else:
            sure_s, likely_s = self._grace.of(number)
            seconds = likely_s if sure_s is None else sure_s
            within = "" if seconds is None else f", if that ends within {words_of(seconds)}"
            _log.warning("%s: saving at the end of this step, and stopping%s", name, within)

    def forget(self) -> None:
        """The program has stopped, and goes on all the same."""
        self._interrupts = 0
        self.unanswered = None


def _number(name: str | int) -> int:
    try:
        number = signal.Signals[name] if isinstance(name, str) else signal.Signals(name)
    except (KeyError, ValueError, TypeError):
        hint = "for example 'SIGUSR1'; `kill -l` lists them"
        raise UsageError(f"signals: there is no signal {name!r}", hint=hint) from None
    if number in _NEVER:
        raise UsageError(f"signals: no program hears {number.name}", hint="leave it out")
    return int(number)
