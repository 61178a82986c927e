"""Sizes, ages and numbers in words."""

import json
import math

import pytest

from holdfast.cli.words import age, amount, duration, json_text, parse_bytes, size
from holdfast.core.errors import UsageError


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (4096, "4.00 KiB"),
        (10_230, "9.99 KiB"),
        (10_236, "10.0 KiB"),
        (1_300_000_000, "1.21 GiB"),
        (5 << 40, "5.00 TiB"),
    ],
)
def test_sizes_have_three_digits(size_bytes, text):
    assert size(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (3600, "1 h"),
        (19_200, "5 h 20 min"),
        (90_000, "1 d 1 h"),
        (40 * 86_400, "40 d"),
    ],
)
def test_durations_are_as_exact_as_anybody_asks(seconds, text):
    assert duration(seconds) == text


def test_an_age_is_in_the_past_or_says_that_it_is_not():
    assert age(180) == "3 min ago"
    assert age(2) == "just now"
    assert age(-5) == "just now"
    assert age(-3600) == "in the future"


def test_amounts_of_elements_are_short():
    assert [amount(number) for number in (0, 999, 1000, 110_000_000)] == ["0", "999", "1.00k", "110M"]


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("2000", 2000),
        ("4K", 4096),
        ("1.5GiB", 3 << 29),
        ("10 gb", 10**10),
        ("50G", 50 << 30),
        ("1TB", 10**12),
    ],
)
def test_sizes_are_read_as_people_write_them(text, size_bytes):
    assert parse_bytes(text, option="--size") == size_bytes


@pytest.mark.parametrize("text", ["", "G", "-1", "ten", "1XB", "nan", "inf", "1e400", "1e308G"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(UsageError, match=r"--size: .* is not a size"):
        parse_bytes(text, option="--size")


def test_json_stays_json_where_numbers_are_not_finite():
    document = {"loss": math.nan, "best": [math.inf, -math.inf], 3: (1, None, True), "path": object}

    read = json.loads(json_text(document))

    assert read["loss"] == "nan"
    assert read["best"] == ["inf", "-inf"]
    assert read["3"] == [1, None, True]
