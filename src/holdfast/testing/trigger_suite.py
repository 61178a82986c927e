"""The conformance suite of triggers: `TRIGGER_CHECKS` lists what every trigger does, `check_trigger` runs it all.

Under pytest: `@pytest.mark.parametrize("check", TRIGGER_CHECKS, ids=str)`, then `check(make)`.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from holdfast.core.errors import HoldfastError
from holdfast.policy.moment import Decision, Moment
from holdfast.policy.triggers import WATCHABLE, Trigger, never

__all__ = ["TRIGGER_CHECKS", "MakeTrigger", "TriggerCheck", "check_trigger", "due_steps", "moments_of_a_loop"]

MakeTrigger = Callable[[], Trigger]
"""Makes the trigger, the same at each call."""

_METRICS = ("loss", "val_loss", "accuracy")
_REASON_LENGTH = 400


class TriggerCheck:
    """One behaviour. Call it with a function that makes the trigger."""

    def __init__(self, check: Callable[[MakeTrigger], None]) -> None:
        self._check = check
        self.name = check.__name__

    def __call__(self, make: MakeTrigger) -> None:
        self._check(make)

    def __repr__(self) -> str:
        return self.name


def check_trigger(make: MakeTrigger) -> None:
    """Run all checks; AssertionError at the first behaviour that differs."""
    for check in TRIGGER_CHECKS:
        try:
            check(make)
        except (AssertionError, HoldfastError) as error:
            raise AssertionError(f"{check.name}: {error}") from error


def moments_of_a_loop(
    steps: int, *, step_s: float = 0.5, steps_per_epoch: int = 10, metrics_every: int = 4, stop_at: int | None = None
) -> Iterator[Moment]:
    """The moments of a loop as long as nothing is saved: epochs from 0 on, metrics that fall and rise now and then."""
    lowest: dict[str, float] = {}
    highest: dict[str, float] = {}
    for step in range(1, steps + 1):
        metrics = _metrics_at(step) if step % metrics_every == 0 else {}
        yield Moment(
            step=step,
            now_s=1000.0 + step * step_s,
            began_s=1000.0,
            epoch=(step - 1) // steps_per_epoch,
            step_s=step_s,
            interval_steps=7,
            metrics=metrics,
            lowest=dict(lowest),
            highest=dict(highest),
            stop="SIGTERM" if stop_at is not None and step >= stop_at else "",
        )
        for name, value in metrics.items():
            lowest[name] = min(value, lowest.get(name, value))
            highest[name] = max(value, highest.get(name, value))


def due_steps(trigger: Trigger, loop: Iterator[Moment], *, everywhere: bool = False) -> list[int]:
    """The steps of the loop at which a checkpoint is made.

    The trigger is asked where it wants to be (at `ask_at`, and upon what it watches), as `Checkpointer.step` does; or,
    to compare, everywhere.
    """
    found: list[int] = []
    saved: Moment | None = None
    ask_at: float = 0
    asked: Moment | None = None
    for bare in loop:
        moment = bare
        if saved is not None:
            moment = bare._replace(saved_step=saved.step, saved_s=saved.now_s, saved_epoch=saved.epoch)
        if not everywhere and moment.step < ask_at and not _has_changed(trigger.watches, asked, moment):
            continue
        decision, asked = trigger.decide(moment), moment
        ask_at = moment.step + 1 if decision.due else decision.ask_at
        if decision.due:
            found.append(moment.step)
            saved = moment
    return found


def _has_changed(watches: frozenset[str], before: Moment | None, moment: Moment) -> bool:
    if before is None or ("metrics" in watches and moment.metrics):
        return True
    return any(getattr(moment, name) != getattr(before, name) for name in watches - {"metrics"})


def _metrics_at(step: int) -> Mapping[str, float]:
    wave = 1.0 / step + 0.05 * ((step * 7) % 11)
    return {"loss": wave, "val_loss": wave + 0.1, "accuracy": 1.0 - wave}


class _Case(NamedTuple):
    name: str
    moment: Moment


def _odd_moments() -> list[_Case]:
    usual = Moment(step=100, now_s=1100.0, began_s=1000.0, epoch=3, saved_step=50, saved_s=1050.0, step_s=1.0)
    return [
        _Case("usual", usual),
        _Case("the first step", Moment(step=1, now_s=0.0, began_s=0.0)),
        _Case("no step yet", Moment(step=0, now_s=0.0, began_s=0.0)),
        _Case("after a restore", usual._replace(began_step=99, saved_step=99, saved_epoch=3)),
        _Case("a step before the last checkpoint", usual._replace(saved_step=200)),
        _Case("an epoch before that of the last checkpoint", usual._replace(saved_epoch=7)),
        _Case("a step beyond 64 bits", usual._replace(step=1 << 70)),
        _Case("a clock that went back", usual._replace(now_s=-1e9)),
        _Case("a clock that jumped ahead", usual._replace(now_s=1e18)),
        _Case("a clock without a value", usual._replace(now_s=math.nan)),
        _Case("a clock at infinity", usual._replace(now_s=math.inf)),
        _Case("steps of no time", usual._replace(step_s=0.0)),
        _Case("steps of nanoseconds", usual._replace(step_s=1e-9)),
        _Case("steps of days", usual._replace(step_s=1e6)),
        _Case("steps of less than no time", usual._replace(step_s=-1.0)),
        _Case("steps of an unknown time", usual._replace(step_s=math.nan)),
        _Case("no epoch", usual._replace(epoch=None)),
        _Case("metrics that are not finite", usual._replace(metrics=dict.fromkeys(_METRICS, math.nan))),
        _Case("infinite metrics", usual._replace(metrics=dict.fromkeys(_METRICS, -math.inf))),
        _Case("the first metrics", usual._replace(metrics=dict.fromkeys(_METRICS, 0.5))),
        _Case("bests that are no numbers", _with_metrics(usual, 0.5, best=math.nan)),
        _Case("new bests", _with_metrics(usual, 0.5, best=0.6)),
        _Case("the same metrics again", _with_metrics(usual, 0.5, best=0.5)),
        _Case("an exception", usual._replace(error="RuntimeError: first line\nsecond line \x1b[31m")),
        _Case("a stop", usual._replace(stop="SIGTERM")),
        _Case("a long text", usual._replace(stop="x" * 10_000, error="y" * 10_000)),
        _Case("everything at once", _with_metrics(usual, 0.5, best=0.6)._replace(error="KeyError: 'x'", stop="SIGINT")),
        _Case("an interval from the tuner", usual._replace(interval_steps=10)),
    ]


def _with_metrics(moment: Moment, value: float, *, best: float) -> Moment:
    bests = dict.fromkeys(_METRICS, best)
    return moment._replace(metrics=dict.fromkeys(_METRICS, value), lowest=bests, highest=bests)


def _decided(make: MakeTrigger) -> Iterator[tuple[_Case, Decision]]:
    for case in _odd_moments():
        try:
            decision = make().decide(case.moment)
        except Exception as error:
            raise AssertionError(f"{case.name}: raised {type(error).__name__}: {error}") from error
        yield case, decision


def _expect(condition: object, text: str) -> None:
    if not condition:
        raise AssertionError(text)


@TriggerCheck
def a_decision_whatever_the_moment(make: MakeTrigger) -> None:
    for case, decision in _decided(make):
        _expect(isinstance(decision, Decision), f"{case.name}: {decision!r} is not a Decision")
        _expect(isinstance(decision.due, bool), f"{case.name}: due is {decision.due!r}")


@TriggerCheck
def a_reason_in_words_on_one_line(make: MakeTrigger) -> None:
    for case, decision in _decided(make):
        reason = decision.reason
        _expect(isinstance(reason, str) and reason.strip(), f"{case.name}: the reason is {reason!r}")
        _expect(reason.isprintable(), f"{case.name}: the reason is not printable: {reason!r}")
        _expect(len(reason) <= _REASON_LENGTH, f"{case.name}: the reason has {len(reason)} characters")


@TriggerCheck
def the_same_decision_on_the_same_moment(make: MakeTrigger) -> None:
    trigger = make()
    cases = _odd_moments()

    forth = [trigger.decide(case.moment) for case in cases]
    back = [trigger.decide(case.moment) for case in reversed(cases)]

    for case, first, second in zip(cases, forth, reversed(back), strict=True):
        _expect(first == second, f"{case.name}: first {first}, then {second}")


@TriggerCheck
def a_moment_is_left_as_it_is(make: MakeTrigger) -> None:
    for case in _odd_moments():
        before = repr(case.moment)

        make().decide(case.moment)

        _expect(repr(case.moment) == before, f"{case.name}: the moment is {case.moment!r}, and was {before}")


@TriggerCheck
def where_it_is_not_due_it_names_a_later_step(make: MakeTrigger) -> None:
    for case, decision in _decided(make):
        later = decision.due or decision.ask_at > case.moment.step
        _expect(later, f"{case.name}: step {case.moment.step}, ask_at {decision.ask_at}")


@TriggerCheck
def a_step_that_has_a_checkpoint_gets_no_second_one(make: MakeTrigger) -> None:
    for case in _odd_moments():
        saved = case.moment._replace(
            saved_step=case.moment.step, saved_s=case.moment.now_s - 1e6, saved_epoch=case.moment.epoch
        )
        _expect(not make().decide(saved).due, f"{case.name}: due, though it was just saved")


@TriggerCheck
def it_watches_what_there_is_to_watch(make: MakeTrigger) -> None:
    watches = make().watches

    _expect(isinstance(watches, frozenset), f"watches is {watches!r}, expected a frozenset")
    _expect(watches <= WATCHABLE, f"{sorted(watches - WATCHABLE)} is not among {sorted(WATCHABLE)}")


@TriggerCheck
def asked_only_where_it_wants_to_be_it_finds_the_same_steps(make: MakeTrigger) -> None:
    loops = [
        partial(moments_of_a_loop, 400),
        partial(moments_of_a_loop, 400, step_s=1e-3),
        partial(moments_of_a_loop, 400, step_s=90.0, steps_per_epoch=37),
        partial(moments_of_a_loop, 400, step_s=7.0, steps_per_epoch=1, metrics_every=1),
        partial(moments_of_a_loop, 400, step_s=30.0, steps_per_epoch=1000, metrics_every=1000, stop_at=390),
    ]
    for loop in loops:
        sparsely = due_steps(make(), loop())
        everywhere = due_steps(make(), loop(), everywhere=True)
        _expect(sparsely == everywhere, f"{loop.keywords}: {sparsely[:10]}…, expected {everywhere[:10]}…")


@TriggerCheck
def combined_with_never_it_is_itself_or_never(make: MakeTrigger) -> None:
    for case, decision in _decided(make):
        for either in (make() | never(), never() | make()):
            _expect(either.decide(case.moment).due == decision.due, f"{case.name}: {either!r} decides otherwise")
        for both in (make() & never(), never() & make()):
            _expect(not both.decide(case.moment).due, f"{case.name}: {both!r} is due")


@TriggerCheck
def it_says_what_it_is(make: MakeTrigger) -> None:
    text = repr(make())

    _expect(" object at 0x" not in text and text.isprintable(), f"repr is {text!r}")
    _expect(repr(make()) == text, f"repr is {text!r}, then {make()!r}")


TRIGGER_CHECKS: list[TriggerCheck] = [value for value in list(vars().values()) if isinstance(value, TriggerCheck)]
