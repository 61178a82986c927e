"""When something will be used up."""

import math

import pytest

from holdfast.policy.trend import Trend


def _after(values: list[float], *, every_s: float = 10.0, span_s: float = 600.0, least_s: float = 20.0) -> Trend:
    trend = Trend(span_s, least_s=least_s)
    for count, value in enumerate(values):
        trend.note(count * every_s, value)
    return trend


def test_a_steady_fall_ends_when_it_is_used_up() -> None:
    trend = _after([1000 - 10 * count for count in range(31)])

    assert trend.per_s() == pytest.approx(-1)
    assert trend.used_up_in_s() == pytest.approx(700)


def test_what_stays_or_grows_is_never_used_up() -> None:
    assert _after([5.0] * 20).used_up_in_s() == math.inf
    assert _after([float(count) for count in range(20)]).used_up_in_s() == math.inf


def test_ups_and_downs_on_the_way_do_not_hide_it() -> None:
    trend = _after([1000 - 10 * count + (300 if count % 3 == 0 else 0) for count in range(31)])

    assert 600 < trend.used_up_in_s() < 1100


def test_checkpoints_that_come_and_go_are_no_trend() -> None:
    trend = _after([1000.0 - 200 * (count % 4) for count in range(60)])

    assert trend.used_up_in_s() > 3600


def test_nothing_is_said_before_there_are_enough_samples_over_enough_time() -> None:
    assert _after([100.0, 50.0, 25.0]).used_up_in_s() == math.inf
    assert _after([100.0, 80.0, 60.0, 40.0], every_s=1, least_s=20).used_up_in_s() == math.inf
    assert _after([100.0, 80.0, 60.0, 40.0], every_s=10, least_s=20).used_up_in_s() < 30


def test_what_is_long_past_does_not_count() -> None:
    trend = _after([1000.0 - 8 * count for count in range(60)] + [500.0] * 60, span_s=200)

    assert trend.used_up_in_s() == math.inf


def test_a_clock_that_jumps_back_begins_anew() -> None:
    trend = _after([100.0, 80.0, 60.0, 40.0])
    assert trend.used_up_in_s() < math.inf

    trend.note(25.0, 30.0)

    assert trend.used_up_in_s() == math.inf
