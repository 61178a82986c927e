"""The pace of a training in words."""

import math

import pytest

from holdfast.engine.pace_words import pace_words, share_words, steps_words, time_words


def test_the_pace_is_one_line_that_leaves_out_what_is_not_known():
    assert pace_words(120, 2.0, overhead=0.021, limit=0.035) == "every 120 steps (≈ 4 min): overhead 2.1 % of 3.5 %"
    assert pace_words(120, 2.0) == "every 120 steps (≈ 4 min)"
    assert pace_words(120, None, overhead=0.021) == "every 120 steps: overhead 2.1 %"
    assert pace_words(1, 3600.0) == "at every step (≈ 1 h)"
    assert pace_words(None, 2.0) == "no interval yet: measuring"
    assert pace_words(5, math.nan, overhead=math.inf, limit=math.nan) == "every 5 steps"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (3e-6, "3 µs"),
        (0.00014, "140 µs"),
        (0.14, "140 ms"),
        (0.9996, "1 s"),
        (2.04, "2 s"),
        (2.1, "2.1 s"),
        (59.7, "1 min"),
        (200, "3.3 min"),
        (3599, "1 h"),
        (50_000, "14 h"),
        (86_399, "1 d"),
        (250_000, "2.9 d"),
        (-5, "-5 s"),
        (1e15, "endless"),
        (math.inf, "endless"),
        (math.nan, "0 s"),
    ],
)
def test_times_have_two_digits_and_one_unit(seconds, words):
    assert time_words(seconds) == words


@pytest.mark.parametrize(
    ("share", "words"),
    [(0, "0.0 %"), (0.00001, "< 0.01 %"), (0.0003, "0.03 %"), (0.035, "3.5 %"), (0.123, "12 %"), (math.nan, "? %")],
)
def test_shares_are_per_cent(share, words):
    assert share_words(share) == words


def test_steps_are_counted():
    assert [steps_words(steps) for steps in (1, 2, 21_480, 10**15)] == [
        "1 step",
        "2 steps",
        "21,480 steps",
        "1.0e+15 steps",
    ]
