"""The automatic trigger: its options, and when it is due for the interval that it is given."""

import dataclasses
import math
from datetime import timedelta

import pytest

from holdfast.core.errors import UsageError
from holdfast.policy.auto import Auto, auto
from holdfast.policy.moment import Moment
from holdfast.policy.triggers import every
from holdfast.testing.trigger_suite import TRIGGER_CHECKS, TriggerCheck


def moment(step: int, now_s: float, **more: object) -> Moment:
    known: dict[str, object] = {"began_s": 0.0, "step_s": 1.0, "interval_steps": 100, "saved_step": 0, "saved_s": 0.0}
    return Moment(step=step, now_s=now_s, **{**known, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("check", TRIGGER_CHECKS, ids=str)
def test_it_does_what_every_trigger_does(check: TriggerCheck) -> None:
    check(auto)


def test_the_defaults() -> None:
    assert auto() == Auto(overhead=0.035, lose_at_most_s=600.0, at_least_every_steps=None, mtbf_s=86_400.0)


def test_durations_are_given_as_people_write_them() -> None:
    asked = auto(lose_at_most="1h30m", mtbf=timedelta(days=2))

    assert (asked.lose_at_most_s, asked.mtbf_s) == (5400.0, 172_800.0)
    assert auto(lose_at_most=None).lose_at_most_s is None


def test_it_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        auto().overhead = 1.0  # type: ignore[misc]


@pytest.mark.parametrize("overhead", [0, -0.1, 1.01, 35, 10**400, 1e-320, math.nan, math.inf, True, "3.5 %", None])
def test_an_overhead_that_is_no_fraction_is_refused(overhead: object) -> None:
    with pytest.raises(UsageError, match="overhead=") as error:
        auto(overhead=overhead)  # type: ignore[arg-type]

    assert "0.035" in error.value.hint


@pytest.mark.parametrize("overhead", [1, 1.0, 1e-9])
def test_the_ends_of_the_range_are_taken(overhead: float) -> None:
    assert auto(overhead=overhead).overhead == overhead


@pytest.mark.parametrize("given", [0, -1, "soon", "", math.inf, math.nan, object()])
@pytest.mark.parametrize("option", ["lose_at_most", "mtbf"])
def test_a_duration_that_is_none_is_refused(option: str, given: object) -> None:
    with pytest.raises(UsageError, match=option):
        auto(**{option: given})  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [0, -1, 1.5, "10", True])
def test_a_number_of_steps_that_is_none_is_refused(steps: object) -> None:
    with pytest.raises(UsageError, match="at_least_every_steps"):
        auto(at_least_every_steps=steps)  # type: ignore[arg-type]


def test_it_is_due_when_the_interval_is_over() -> None:
    trigger = auto(lose_at_most=None)

    before, after = trigger.decide(moment(99, 99.0)), trigger.decide(moment(100, 100.0))

    assert (before.due, before.ask_at) == (False, 100)
    assert after.due
    assert "every 100" in after.reason


def test_it_is_not_due_before_there_is_an_interval() -> None:
    decision = auto().decide(moment(5, 5.0, interval_steps=None))

    assert not decision.due
    assert 5 < decision.ask_at < math.inf


def test_it_is_not_due_twice_at_the_same_step() -> None:
    assert not auto().decide(moment(0, 0.0)).due


def test_steps_that_became_slower_do_not_make_more_be_lost() -> None:
    trigger = auto(lose_at_most="2 min")

    early = trigger.decide(moment(20, 40.0))
    late = trigger.decide(moment(30, 119.5))

    assert not early.due
    assert early.ask_at < 100  # it looks again before, for the steps may become slower still
    assert late.due
    assert "lose_at_most" in late.reason


def test_an_interval_that_is_longer_by_itself_is_left_alone() -> None:
    assert not auto(lose_at_most="1 min").decide(moment(80, 80.0)).due


@pytest.mark.parametrize("now_s", [math.nan, -1e9, math.inf])
def test_clocks_that_jump_do_no_harm(now_s: float) -> None:
    assert not auto().decide(moment(50, now_s)).due
    assert auto().decide(moment(100, now_s)).due


def test_it_combines_with_others() -> None:
    both = auto() | every(steps=30)

    assert both.decide(moment(30, 30.0)).due
    assert both.decide(moment(29, 29.0)).ask_at == 30
