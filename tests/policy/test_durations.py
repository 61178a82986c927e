"""Durations as they are written and read."""

import math
from datetime import timedelta
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import UsageError
from holdfast.policy.durations import seconds_of, words_of


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (600, 600),
        (0, 0),
        (0.25, 0.25),
        (Fraction(1, 4), 0.25),
        (np.float32(0.5), 0.5),
        (np.int64(90), 90),
        (timedelta(minutes=10), 600),
        ("90", 90),
        ("1.5", 1.5),
        ("90 s", 90),
        ("90s", 90),
        ("10 min", 600),
        ("10min", 600),
        (" 10  Minutes ", 600),
        (".5 h", 1800),
        ("1.5 hours", 5400),
        ("2 hours", 7200),
        ("1h30m", 5400),
        ("1 h 30 min", 5400),
        ("1d 2h 3m 4s 5ms", 93_784.005),
        ("2 weeks", 1_209_600),
        ("250 ms", 0.25),
        ("5 µs", 5e-6),
        ("1:30:00", 5400),
        ("48:00:00", 172_800),
        ("0:00:01.5", 1.5),
        ("2-00:00:00", 172_800),
        ("1-12", 129_600),
        ("1-12:30", 131_400),
    ],
)
def test_a_duration_is_understood(written: object, seconds: float) -> None:
    assert seconds_of(written, "lose_at_most") == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    "written",
    [
        "",
        " ",
        "soon",
        "ten minutes",
        "10 parsecs",
        "min 10",
        "10 min soon",
        "10 min 5",
        "5 10 min",
        "10 min 5 min",
        "30 min 1 h",
        "1.2.3 s",
        "1,5 h",
        "1e3",
        "١٠ min",
        "1:75:00",
        "1:30:00:00",
        "1-24:00:00",
        "1 s\n2 s ;",
        "9" * 1000,
        "9" * 400 + " h",
        "9" * 400 + "-00:00:00",
        10**400,
        math.nan,
        math.inf,
        "nan",
        "inf",
        True,
        False,
        None,
        b"10 min",
        [10],
        1j,
    ],
)
def test_what_is_no_duration_is_refused_and_the_error_says_for_what(written: object) -> None:
    with pytest.raises(UsageError, match=r"lose_at_most is .*, expected a (finite )?duration") as caught:
        seconds_of(written, "lose_at_most")

    assert caught.value.hint.startswith("give seconds (600)")
    assert len(caught.value.message) < 150


@pytest.mark.parametrize("written", [-1, -0.5, timedelta(seconds=-1), "-5", "-10 min", "- 1h30m"])
def test_a_negative_duration_is_refused(written: object) -> None:
    with pytest.raises(UsageError, match="expected a duration that is not negative"):
        seconds_of(written, "time_left")


def test_two_numbers_may_mean_two_things_and_are_refused_with_both() -> None:
    with pytest.raises(UsageError, match="'1:30', expected a duration") as caught:
        seconds_of("1:30", "time_left")

    assert caught.value.hint == "write 1:30:00 for hours, or 0:01:30 for minutes"


@given(st.text(max_size=20) | st.text("0123456789.:- hmsdinµ", max_size=12))
def test_any_text_is_a_finite_duration_or_refused(text: str) -> None:
    try:
        seconds = seconds_of(text, "x")
    except UsageError:
        return

    assert 0 <= seconds < math.inf


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (1e-12, "0 s"),
        (2.5e-7, "0.25 µs"),
        (5e-4, "500 µs"),
        (0.0025, "2.5 ms"),
        (0.25, "250 ms"),
        (0.9997, "1 s"),
        (1, "1 s"),
        (1.54, "1.5 s"),
        (9.97, "10 s"),
        (12, "12 s"),
        (59.7, "1 min"),
        (61, "1 min 1 s"),
        (600, "10 min"),
        (3599.7, "1 h"),
        (5400, "1 h 30 min"),
        (86_399, "1 d"),
        (183_600, "2 d 3 h"),
        (1e9, "11574 d 2 h"),
        (-12, "-12 s"),
        (1e300, "an unlimited time"),
        (math.inf, "an unlimited time"),
        (-math.inf, "-an unlimited time"),
        (math.nan, "an unknown time"),
    ],
)
def test_seconds_are_said_in_words(seconds: float, words: str) -> None:
    assert words_of(seconds) == words


@given(st.floats(min_value=1e-6, max_value=1e12))
def test_words_are_near_the_seconds_and_understood_again(seconds: float) -> None:
    words = words_of(seconds)

    assert seconds_of(words, "x") == pytest.approx(seconds, rel=0.051)
    assert not words.startswith(("1000 ", "60 s", "60 min"))


@given(st.floats())
def test_all_seconds_have_words(seconds: float) -> None:
    assert words_of(seconds).isprintable()
