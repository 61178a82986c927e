"""What sensors say together, and for how long something that happened counts."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.policy.risk import CALM, IMMINENT, MOST, SERIOUS, SLIGHT, Lingering, Reading, bounded, combine


def _of(*risks: float) -> float:
    return combine(Reading("", risk) for risk in risks)


def test_nothing_to_see_is_the_usual_risk() -> None:
    assert _of() == CALM
    assert _of(1.0, 1.0, 1.0) == CALM


def test_each_adds_what_it_raises_the_rate_by() -> None:
    assert _of(SLIGHT) == SLIGHT
    assert _of(SLIGHT, SERIOUS, CALM) == SLIGHT + SERIOUS - 1


def test_there_is_a_most() -> None:
    assert _of(IMMINENT, IMMINENT, math.inf) == MOST


@pytest.mark.parametrize("nonsense", [math.nan, -math.inf, -3.0, 0.0, 0.5])
def test_what_is_not_a_risk_changes_nothing(nonsense: float) -> None:
    assert bounded(nonsense) == CALM
    assert _of(nonsense, SERIOUS) == SERIOUS


@given(st.lists(st.floats()))
def test_whatever_is_said_the_risk_is_between_1_and_the_most(risks: list[float]) -> None:
    assert CALM <= _of(*risks) <= MOST


def test_what_happened_counts_for_a_while() -> None:
    lingering = Lingering(60)

    lingering.happened(100, SLIGHT, "an error")

    assert lingering.reading(159, "5 errors") == Reading("5 errors", SLIGHT, "an error")
    assert lingering.reading(160, "5 errors") == Reading("5 errors", CALM, "")


def test_what_is_worse_stays_and_what_is_as_bad_begins_anew() -> None:
    lingering = Lingering(60)
    lingering.happened(100, SERIOUS, "many")

    lingering.happened(110, SLIGHT, "few")
    assert lingering.reading(150, "").concluded == "many"

    lingering.happened(150, SERIOUS, "many again")
    assert lingering.risk(200) == SERIOUS

    lingering.happened(300, SLIGHT, "few")
    assert lingering.reading(301, "") == Reading("", SLIGHT, "few")
