"""When a checkpoint is due: triggers, combined with `|` and `&`; each decides on a `Moment`, and says why."""

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from numbers import Real
from typing import cast

from holdfast.core.calls import public_call
from holdfast.core.errors import UsageError, in_words
from holdfast.policy.durations import seconds_of, words_of
from holdfast.policy.functions import Answer, ask, check_function, in_short, name_of
from holdfast.policy.moment import Decision, Moment

__all__ = [
    "WATCHABLE",
    "Trigger",
    "as_trigger",
    "decided",
    "every",
    "metrics_in",
    "never",
    "on_best",
    "on_error",
    "on_stop",
    "when",
]

WATCHABLE = frozenset({"epoch", "metrics", "error", "stop"})
"""What else than the step and the time may change a decision."""

# A time trigger that looked further ahead would be late by as many steps if they became a hundred times slower.
_LOOK_AHEAD_STEPS = 100
_MOST = 10**15


class Trigger(ABC):
    """When a checkpoint is due. Made by `every(...)`, `on_best(...)` and others, combined with `|` and `&`.

    Own ones derive from it, define `decide`, and pass `holdfast.testing.check_trigger`.
    """

    @property
    def watches(self) -> frozenset[str]:
        """Upon what it must be asked again before `ask_at`: each time that the epoch changes, that metrics are given,
        that an exception leaves the loop (error) or that the program is asked to stop. On an exception nobody is asked
        who does not watch errors."""
        return frozenset()

    @abstractmethod
    def decide(self, moment: Moment) -> Decision:
        """Whether a checkpoint is due at the end of this step. Pure; never raises; not due where the step has one."""

    def __or__(self, other: "Trigger") -> "Trigger":
        if not isinstance(other, Trigger):
            raise _uncombined(self, other)
        return _Any((*_parts(self, _Any), *_parts(other, _Any)))

    def __and__(self, other: "Trigger") -> "Trigger":
        if not isinstance(other, Trigger):
            raise _uncombined(self, other)
        return _All((*_parts(self, _All), *_parts(other, _All)))

    def __ror__(self, other: "Trigger") -> "Trigger":
        # Asked only where the left side is no trigger.
        raise _uncombined(self, other)

    __rand__ = __ror__

    def __bool__(self) -> bool:
        # `a or b` would silently be `a`.
        raise UsageError(f"{self!r} is neither true nor false", hint="combine triggers with | and &, not or and and")


@public_call("holdfast.every")
def every(
    *,
    steps: int | None = None,
    seconds: float | None = None,
    minutes: float | None = None,
    hours: float | None = None,
    epochs: int | None = None,
) -> Trigger:
    """Due when a multiple of so many steps or epochs was reached, or so much time has passed, since the last one.

    Give exactly one. Time is monotonic, and counts from the begin of the last checkpoint, or of the attempt; it is
    looked at between steps, so that a checkpoint is due at the end of the step in which the time was up.
    """
    counts = {"steps": steps, "epochs": epochs}
    times = {"seconds": seconds, "minutes": minutes, "hours": hours}
    given = [name for name, value in (counts | times).items() if value is not None]
    if len(given) != 1:
        found = " and ".join(f"{name}=" for name in given) + " are given" if given else "nothing is given"
        raise UsageError(
            f"every: {found}, expected one of {', '.join(f'{name}=' for name in counts | times)}",
            hint="for example every(steps=1000), or every(steps=1000) | every(minutes=10)",
        )
    (name,) = given
    if name == "steps":
        return _EverySteps(_count("steps", steps))
    if name == "epochs":
        return _EveryEpochs(_count("epochs", epochs))
    return _EverySeconds(_time_s(name, times[name]))


@public_call("holdfast.on_best")
def on_best(metric: str, mode: str = "min") -> Trigger:
    """Due at a step whose metric is better than at all steps before: lower, or with mode="max" higher."""
    if not isinstance(metric, str) or not metric:
        raise UsageError(f"on_best: metric is {metric!r}, expected its name", hint='for example on_best("val_loss")')
    if mode not in ("min", "max"):
        raise UsageError(f"on_best: mode {mode!r} is not known", hint='use mode="min" or mode="max"')
    return _OnBest(metric, mode)


@public_call("holdfast.on_error")
def on_error() -> Trigger:
    """Due when an exception leaves the loop, and steps were made since the last checkpoint."""
    return _OnError()


@public_call("holdfast.on_stop")
def on_stop() -> Trigger:
    """Due from the moment on at which the program is asked to stop, at each step that has no checkpoint."""
    return _OnStop()


@public_call("holdfast.never")
def never() -> Trigger:
    """Never due: only `save` makes checkpoints."""
    return _Never()


@public_call("holdfast.when")
def when(function: Callable[[Moment], Answer]) -> Trigger:
    """Due when the function says so: True, the reason as text, or a `Decision`; False or an empty text is not due.

    It is asked at every step, or at the `ask_at` of the `Decision` that it returned. What it raises does not reach the
    training: not due, and the reason names the exception (I7); the same where it returns something else. On an
    exception that leaves the loop it is asked only together with `on_error()`.
    """
    makers: tuple[object, ...] = (every, on_best, on_error, on_stop, never, when)
    if any(function is maker for maker in makers):
        name = name_of(function)
        raise UsageError(f"{name} is given without its parentheses", hint=f"call it: {name}(…)")
    check_function(function)
    return _When(function)


def as_trigger(given: object, what: str = "every") -> Trigger:
    """What the option `what` is given, as a trigger: one, a number of steps, a time as text, a function, or None.

    "auto" is for the caller to look for first: it is text that is refused here, like any other that is no duration.
    """
    if isinstance(given, Trigger):
        return given
    if given is None:
        return never()
    if isinstance(given, str | timedelta):
        return every(seconds=_written_s(given, what))
    if callable(given):
        return when(given)
    try:
        steps = None if isinstance(given, bool) else operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        steps = None
    if steps is None or steps < 1:
        raise _unaccepted(given, what)
    return every(steps=steps)


def decided(trigger: Trigger, moment: Moment) -> Decision:
    """What the trigger says; UsageError where one of the program raises, or says what is no decision."""
    name = type(trigger).__name__
    try:
        decision: object = trigger.decide(moment)
    except UsageError:
        raise  # of one that it is combined from
    except Exception as error:
        raise UsageError(f"the trigger {name} fails: {in_words(error)}") from error
    match decision:
        # numpy's numbers are no int or float, and as good as them.
        case Decision(due=bool(), reason=str()) if isinstance(cast("object", decision.ask_at), Real):
            return decision
    raise UsageError(f"the trigger {name} fails: it gave {in_short(repr(decision))}, expected a Decision")


def metrics_in(trigger: Trigger) -> tuple[str, ...]:
    """The names of the metrics that it waits for, or those that it is combined from do: nothing else would tell it."""
    if isinstance(trigger, _OnBest):
        return (trigger.metric,)
    parts = trigger.triggers if isinstance(trigger, _Any | _All) else ()
    return tuple(dict.fromkeys(name for part in parts for name in metrics_in(part)))


def _written_s(given: str | timedelta, what: str) -> float:
    try:
        seconds = seconds_of(given, what)
    except UsageError:
        raise _unaccepted(given, what) from None
    # "500" may be meant as steps: a unit is asked for.
    if seconds == 0 or (isinstance(given, str) and not any(c.isalpha() or c == ":" for c in given)):
        raise _unaccepted(given, what)
    return seconds


def _unaccepted(given: object, what: str) -> UsageError:
    return UsageError(
        f"{what} is {in_short(repr(given))}, expected a number of steps, a time with its unit, a trigger or a function",
        hint=f'{what}=500 (steps), {what}="10 min", {what}="auto", {what}=None, '
        f"or a trigger such as holdfast.every(epochs=1) | holdfast.on_stop()",
    )


def _uncombined(trigger: Trigger, other: object) -> UsageError:
    """What every= takes by itself is not taken here: of `500 | 1000 | on_stop()`, Python makes 1020 before we know."""
    hint = "for example every(steps=500) | on_stop()"
    if isinstance(other, str) and other == "auto":
        hint = "write auto()"
    elif callable(other):
        hint = f"write {when(other)!r}"
    elif other is not None:
        with suppress(UsageError):
            hint = f"write {as_trigger(other)!r}"
    return UsageError(f"{in_short(repr(other))} is no trigger, and cannot be combined with {trigger!r}", hint=hint)


@dataclass(frozen=True)
class _EverySteps(Trigger):
    steps: int

    def decide(self, moment: Moment) -> Decision:
        next_step = _next_multiple(moment.since_step, self.steps)
        if moment.step < next_step:
            return _not_due(f"not before step {next_step} (every {_counted(self.steps, 'step')})", next_step)
        reached = moment.step // self.steps * self.steps
        return _due(moment, f"step {reached} is reached (every {_counted(self.steps, 'step')})")

    def __repr__(self) -> str:
        return f"every(steps={self.steps})"


@dataclass(frozen=True)
class _EveryEpochs(Trigger):
    epochs: int
    watches = frozenset({"epoch"})

    def decide(self, moment: Moment) -> Decision:
        if nothing_new := _nothing_new(moment):
            return nothing_new
        wanted = f"every {_counted(self.epochs, 'epoch')}"
        if moment.epoch is None:
            return _not_due(f"no epoch is given ({wanted})")
        next_epoch = _next_multiple(moment.saved_epoch or 0, self.epochs)
        if moment.epoch < next_epoch:
            return _not_due(f"not before epoch {next_epoch} ({wanted})")
        return _due(moment, f"epoch {moment.epoch // self.epochs * self.epochs} is reached ({wanted})")

    def __repr__(self) -> str:
        return f"every(epochs={self.epochs})"


@dataclass(frozen=True)
class _EverySeconds(Trigger):
    seconds: float

    def decide(self, moment: Moment) -> Decision:
        if nothing_new := _nothing_new(moment):
            return nothing_new
        passed_s = moment.now_s - moment.since_s
        since = "the start" if moment.saved_s is None else "the last checkpoint"
        if passed_s >= self.seconds:
            return _due(moment, f"{words_of(passed_s)} since {since} (every {words_of(self.seconds)})")
        reason = f"{words_of(max(0.0, passed_s))} of {words_of(self.seconds)} since {since}"
        return _not_due(reason, moment.step + self._look_ahead(self.seconds - passed_s, moment.step_s))

    def _look_ahead(self, left_s: float, step_s: float | None) -> int:
        """Half of the time that is left, in steps: it comes near in a few looks, and is in time at half the speed."""
        if step_s is None or not step_s > 0:
            return 1
        half = left_s / 2 / step_s
        # Not by min and max: where the clock says nan, none of the comparisons is true, and the next step is right.
        return _LOOK_AHEAD_STEPS if half > _LOOK_AHEAD_STEPS else int(half) if half >= 1 else 1

    def __repr__(self) -> str:
        for name, unit_s in (("hours", 3600), ("minutes", 60)):
            # Above 2**53 a product is rounded, and the call would make another trigger.
            if self.seconds % unit_s == 0 and self.seconds < 2**53:
                return f"every({name}={int(self.seconds) // unit_s})"
        return f"every(seconds={int(self.seconds) if self.seconds.is_integer() else self.seconds})"


@dataclass(frozen=True)
class _OnBest(Trigger):
    metric: str
    mode: str
    watches = frozenset({"metrics"})

    def decide(self, moment: Moment) -> Decision:
        if nothing_new := _nothing_new(moment):
            return nothing_new
        if self.metric not in moment.metrics:
            return _not_due(f"the metric {self.metric!r} is not given at this step")
        name, given = self.metric, moment.metrics[self.metric]
        value, best = _number(given), self._best_before(moment)
        if not math.isfinite(value):
            return _not_due(f"{name} is {given!r}, which is never the best")
        if best is None:
            return _due(moment, f"{name} {value:.6g} is the first")
        word = "lower" if self.mode == "min" else "higher"
        if value < best if self.mode == "min" else value > best:
            return _due(moment, f"{name} {value:.6g} is {word} than ever (before: {best:.6g})")
        return _not_due(f"{name} {value:.6g} is not {word} than {best:.6g}")

    def _best_before(self, moment: Moment) -> float | None:
        best = _number((moment.lowest if self.mode == "min" else moment.highest).get(self.metric))
        return None if math.isnan(best) else best

    def __repr__(self) -> str:
        return f"on_best({self.metric!r})" if self.mode == "min" else f"on_best({self.metric!r}, mode={self.mode!r})"


@dataclass(frozen=True)
class _OnError(Trigger):
    watches = frozenset({"error"})

    def decide(self, moment: Moment) -> Decision:
        if not moment.error:
            return _not_due("no exception leaves the loop")
        return _nothing_new(moment) or _due(moment, f"an exception leaves the loop: {moment.error}")

    def __repr__(self) -> str:
        return "on_error()"


@dataclass(frozen=True)
class _OnStop(Trigger):
    watches = frozenset({"stop"})

    def decide(self, moment: Moment) -> Decision:
        if not moment.stop:
            return _not_due("nobody asks the program to stop")
        return _nothing_new(moment) or _due(moment, f"asked to stop: {moment.stop}")

    def __repr__(self) -> str:
        return "on_stop()"


@dataclass(frozen=True)
class _Never(Trigger):
    def decide(self, moment: Moment) -> Decision:  # noqa: ARG002
        return _not_due("only save() makes checkpoints")

    def __repr__(self) -> str:
        return "never()"


@dataclass(frozen=True)
class _When(Trigger):
    function: Callable[[Moment], Answer]
    watches = WATCHABLE - {"error"}  # a function of the step alone must not be due in the middle of one that failed

    def decide(self, moment: Moment) -> Decision:
        return _nothing_new(moment) or ask(self.function, moment)

    def __repr__(self) -> str:
        return f"when({name_of(self.function)})"


@dataclass(frozen=True)
class _Any(Trigger):
    triggers: tuple[Trigger, ...]

    @property
    def watches(self) -> frozenset[str]:
        return frozenset().union(*(trigger.watches for trigger in self.triggers))

    def decide(self, moment: Moment) -> Decision:
        decisions, failures = [], []
        for trigger in self.triggers:
            try:
                decisions.append(decided(trigger, moment))
            except UsageError as error:
                failures.append(error)
        due = [decision for decision in decisions if decision.due]
        if due:
            return _due(moment, _joined(due))
        if failures:
            raise failures[0]  # not before: one that fails does not keep the others from being due (I7)
        return _not_due(_joined(decisions), min(_ask_at(moment, decision) for decision in decisions))

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.triggers))


@dataclass(frozen=True)
class _All(Trigger):
    triggers: tuple[Trigger, ...]

    @property
    def watches(self) -> frozenset[str]:
        return frozenset().union(*(trigger.watches for trigger in self.triggers))

    def decide(self, moment: Moment) -> Decision:
        decisions = [decided(trigger, moment) for trigger in self.triggers]
        lacking = [decision for decision in decisions if not decision.due]
        if not lacking:
            return _due(moment, _joined(decisions))
        # Before the last of them may be due, not all can be.
        return _not_due(_joined(lacking), max(_ask_at(moment, decision) for decision in lacking))

    def __repr__(self) -> str:
        return " & ".join(f"({each!r})" if isinstance(each, _Any) else repr(each) for each in self.triggers)


def _parts(trigger: Trigger, kind: type[_Any] | type[_All]) -> tuple[Trigger, ...]:
    return trigger.triggers if isinstance(trigger, kind) else (trigger,)


def _due(moment: Moment, reason: str) -> Decision:
    return Decision(due=True, reason=in_short(reason), ask_at=moment.step + 1)


def _not_due(reason: str, ask_at: float = math.inf) -> Decision:
    return Decision(due=False, reason=in_short(reason), ask_at=ask_at)


def _nothing_new(moment: Moment) -> Decision | None:
    since = moment.since_step
    if moment.step > since:
        return None
    made = "was made yet" if moment.saved_step is None else f"was made since the last checkpoint, of step {since}"
    return _not_due(f"no step {made}", since + 1)


def _ask_at(moment: Moment, decision: Decision) -> float:
    # Own triggers of the program may say nan, or a step that is over: then the next one, rather than never.
    return decision.ask_at if decision.ask_at > moment.step else moment.step + 1


def _joined(decisions: list[Decision]) -> str:
    return "; ".join(dict.fromkeys(decision.reason for decision in decisions))


def _next_multiple(since: int, interval: int) -> int:
    return (since // interval + 1) * interval


def _number(value: object) -> float:
    try:
        return math.nan if isinstance(value, str) else float(cast("float", value))
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return math.nan


def _counted(number: int, noun: str) -> str:
    return noun if number == 1 else f"{number} {noun}s"


def _count(name: str, value: object) -> int:
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or number < 1:
        raise UsageError(
            f"every: {name}={in_short(repr(value))} is not an integer of at least 1",
            hint=f"{name}={100 if name == 'steps' else 1}, say",
        )
    return min(number, _MOST)  # no training makes more


def _time_s(name: str, value: object) -> float:
    hint = f'for example {name}=10; a text such as "10 min" is for Checkpointer(every="10 min")'
    if isinstance(value, str | timedelta):
        raise UsageError(f"every: {name}={value!r} is not a number", hint=hint)
    seconds = seconds_of(value, f"every: {name}") * {"seconds": 1, "minutes": 60, "hours": 3600}[name]
    if not 0 < seconds < math.inf:
        raise UsageError(f"every: {name}={value!r} is not a time above 0", hint=hint)
    return seconds
