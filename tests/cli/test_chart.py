"""The curve in a terminal: every value is seen, nothing leaves the frame."""

import itertools

import pytest

from holdfast.cli.chart import Chart, Mark, Sign, draw, nice_ticks, time_ticks

_SIGN = Sign("×", "x", "killed", "31", has_line=True)


def _lines(points, end_s, *, width=40, marks=(), ascii_only=False):
    drawn = draw(Chart("Steps", points, marks, end_s), width=width, ascii_only=ascii_only)
    return ["".join(text for text, _ in line) for line in drawn]


def test_a_value_holds_until_the_next():
    lines = _lines([(0, 100), (50, 200)], 100, width=25)

    assert lines == [
        "Steps",
        "200 ┤          ┌─────────",
        "    │          │",
        "150 ┤          │",
        "    │          │",
        "100 ┤──────────┘",
        "    │",
        " 50 ┤",
        "    │",
        "  0 ┤",
        "    └────────────┴───────",
        "     0         1 min",
    ]


def test_a_short_peak_is_seen_in_the_column_in_which_it_was():
    lines = _lines([(0, 100), (50, 200), (50.1, 100)], 100, width=25)

    assert lines[1] == "200 ┤          ╷"
    assert lines[5] == "100 ┤──────────┴─────────"


def test_where_there_is_no_value_there_is_no_line():
    lines = _lines([(0, None), (25, 100), (50, None), (75, 100)], 100, width=25)

    assert [line for line in lines if line.startswith("100")] == ["100 ┤     ─────     ─────"]


def test_values_that_are_far_apart_are_drawn_on_a_logarithmic_scale():
    lines = _lines([(0, 1), (30, 10), (60, 1000)], 100)

    assert lines[0] == "Steps, logarithmic"
    assert [line.split()[0] for line in lines[1:10] if "┤" in line] == ["1,000", "100", "10", "1"]


def test_marks_stand_above_the_curve_and_their_lines_do_not_cover_it():
    lines = _lines([(0, 100)], 100, width=25, marks=[Mark(_SIGN, 50)])

    assert lines[1] == " " * 15 + "×"
    assert lines[2] == "100 ┤" + "─" * 20
    assert lines[3] == "    │" + " " * 10 + "┊"
    assert lines[-1] == "× killed"


def test_the_legend_is_of_what_is_seen():
    hidden, later = Sign("o", "o", "hidden", "31"), Sign("×", "x", "killed", "31")
    marks = [Mark(_SIGN, 50), Mark(hidden, 50), Mark(later, 100)]

    chart = Chart("Steps", [(0, 100)], marks, 100, dotted="a new attempt")
    drawn = ["".join(text for text, _ in line) for line in draw(chart, width=40)]

    assert drawn[-1] == "× killed   ┊ a new attempt"


def test_with_ascii_only_nothing_else_is_drawn():
    lines = _lines([(0, 1), (10, 5), (10.1, 2), (30, 4), (60, 2)], 100, marks=[Mark(_SIGN, 50)], ascii_only=True)

    assert all(line.isascii() for line in lines)


@pytest.mark.parametrize("points", [[], [(0, None)]])
def test_without_values_there_is_nothing_to_draw(points):
    assert _lines(points, 100) == []
    assert _lines([(0, 1)], 0) == []


def test_whatever_is_drawn_stays_within_the_width():
    values = (1, 2, 3, 7, 10**3, 10**6, 10**18)
    for width, first, second, end_s in itertools.product((25, 40, 77, 200), values, values, (1e-3, 1, 5e3, 1e10)):
        lines = _lines([(0, first), (end_s / 3, second), (end_s / 3, first), (end_s / 2, second)], end_s, width=width)

        assert max(map(len, lines)) <= width
        assert len(lines) < 20


@pytest.mark.parametrize("highest", [1, 2, 3, 7, 10, 99, 101, 12_345, 10**18])
def test_ticks_are_round_rise_and_reach_the_highest(highest):
    ticks = nice_ticks(highest, wanted=4)

    assert ticks[0] == 0
    assert ticks[-1] >= highest
    assert 2 <= len(ticks) <= 6
    assert all(tick == round(tick) for tick in ticks)


@pytest.mark.parametrize("end_s", [0.004, 0.5, 3, 59, 61, 3599, 7200, 90_000, 1e7, 1e10])
def test_times_on_the_axis_are_few_and_before_the_end(end_s):
    ticks = time_ticks(end_s, wanted=6)

    assert ticks[0] == 0
    assert ticks[-1] <= end_s * 1.001
    assert len(ticks) <= 7
