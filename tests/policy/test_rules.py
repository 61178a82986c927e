"""What the rules say: figures that give the interval, and words that say where they come from."""

import re
from typing import Any

import pytest

from holdfast.policy.auto import Auto, auto
from holdfast.policy.durations import seconds_of
from holdfast.policy.profile import Profile
from holdfast.policy.rules import Facts, Plan, demand, explain

_FACTS = Facts(
    step_s=0.02,
    cost_s=0.012,
    careful_s=0.021,
    dearest_s=0.021,
    durable_s=0.08,
    mtbf_s=86_400.0,
    lifetime_s=86_400.0,
    spent_s=0.1,
    spent_most_s=0.1,
    credit_s=0.0,
    saved=10,
    saved_base_s=100.0,
    risky=False,
    gap_steps=0,
)


def _plan(rule: Auto = auto(), **changed: Any) -> Plan:  # noqa: B008  a frozen value
    spent_s = changed.get("spent_s", _FACTS.spent_s)
    facts = _FACTS._replace(**{"spent_most_s": spent_s} | changed)
    wishes = demand(rule, facts)
    return explain(rule, facts, wishes, max(1, round(wishes.wanted)), Profile())


def _text(plan: Plan, name: str) -> str:
    return next(wish.text for wish in plan.rules if wish.name == name)


def _steps(plan: Plan, name: str) -> int:
    return next(wish.steps for wish in plan.rules if wish.name == name)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "up to 21 ms a checkpoint, within 95 % of the allowed 3.5 %"),
        (
            {"spent_s": 3.567},
            "up to 21 ms a checkpoint and 54 ms that earlier ones cost too much, within 95 % of the allowed 3.5 %",
        ),
    ],
)
def test_the_overhead_rule_names_the_figures_that_its_interval_comes_from(changed: dict[str, Any], words: str) -> None:
    plan = _plan(**changed)

    figures_s = [seconds_of(figure, "x") for figure in re.findall(r"\d+ ms", words)]
    assert _text(plan, "overhead") == words
    assert _steps(plan, "overhead") * 0.02 == pytest.approx(sum(figures_s) / (0.95 * 0.035), abs=0.04)


def test_while_there_is_risk_the_overhead_rule_counts_all_that_was_spent() -> None:
    plan = _plan(risky=True, mtbf_s=10_800.0, spent_s=4.0)

    assert _text(plan, "overhead") == (
        "4 s spent until now and 21 ms for the next, within 95 % of the allowed 3.5 %: what was not spent before may "
        "be now"
    )
    assert _steps(plan, "overhead") * 0.02 == pytest.approx(4.021 / (0.95 * 0.035) - 100.0, abs=0.02)


def test_a_run_that_has_spent_far_too_much_is_told_by_how_much() -> None:
    plan = _plan(spent_s=40.0, saved=80)

    assert (
        _text(plan, "overhead")
        == "up to 40 s spent until now and 96 ms for a dear one, within 4.03 % of the training's time"
    )
    assert _steps(plan, "overhead") * 0.02 == pytest.approx(40.096 / 0.04025 - 100.0, abs=0.02)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "least time lost at a failure every 1 d, as is assumed at first"),
        ({"mtbf_s": 43_200.0, "lifetime_s": 43_200.0}, "a failure every 12 h; at first 1 d is assumed"),
        ({"mtbf_s": 10_800.0, "risky": True}, "a failure every 3 h while there is trouble, else 1 d"),
    ],
)
def test_the_failure_rule_says_what_was_assumed(changed: dict[str, Any], words: str) -> None:
    assert _text(_plan(**changed), "failures").endswith(words)


@pytest.mark.parametrize(("steps", "words"), [(1, "at least at every step as"), (20, "at least every 20 steps as")])
def test_what_was_asked_for_is_said_beside_it(steps: int, words: str) -> None:
    assert words in _text(_plan(auto(at_least_every_steps=steps)), "failures")


def test_the_durable_rule_has_room_for_a_slow_one_and_says_so() -> None:
    assert _text(_plan(), "durable") == "durable within 80 ms, even a slow one, before the next"


def test_a_gap_to_measure_a_step_again_is_not_put_down_to_the_storage() -> None:
    plan = _plan(gap_steps=500)

    assert _steps(plan, "durable") == 500
    assert _text(plan, "durable") == "some steps while nothing is written, to see again what one takes"


def test_what_cannot_be_held_is_said_in_per_cent() -> None:
    plan = _plan(auto(lose_at_most="1 min"), cost_s=6.0, careful_s=6.0, durable_s=10.0)

    assert "; an overhead of 3.5 % cannot be held against lose_at_most=1 min; it will be about 12 %: allow" in plan.why
