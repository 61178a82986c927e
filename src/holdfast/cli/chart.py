"""A curve over time for terminals: lines of box characters, or of ASCII where a terminal knows nothing else. Pure.

The curve is one of steps: each value holds until the next. Every column stands for a stretch of time, and shows all the
values that were in it, so that a short peak is not lost.
"""

import math
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import NamedTuple

from holdfast.cli.table import Style
from holdfast.engine.pace_words import time_words

__all__ = ["Chart", "Mark", "Piece", "Point", "Sign", "draw", "nice_ticks", "time_ticks"]

Point = tuple[float, float | None]
"""From this time on the value is so much; None where there is none."""
Piece = tuple[str, str]
"""A text and how to paint it."""

_LEAST_COLUMNS = 16
_DOTS = {False: "┊", True: ":"}  # by whether only ASCII is known
_LOG_FROM = 20  # beyond this ratio of the largest to the smallest, the small ones could not be told apart
_TIME_STEPS_S = (
    *(factor * unit_s for unit_s in (1e-3, 1e-2, 0.1) for factor in (1, 2, 5)),
    *(factor * unit_s for unit_s in (1, 60) for factor in (1, 2, 5, 10, 15, 30)),
    *(factor * 3600 for factor in (1, 2, 3, 6, 12)),
)
_DAY_S = 86_400


class Sign(NamedTuple):
    """A kind of mark above the curve."""

    unicode: str
    ascii: str
    words: str
    style: str
    has_line: bool = False
    """Whether a dotted line goes down from it."""


class Mark(NamedTuple):
    """Something that happened at a time, or went on until another."""

    sign: Sign
    at_s: float
    until_s: float | None = None


class Chart(NamedTuple):
    """What to draw."""

    title: str
    points: Sequence[Point]
    marks: Sequence[Mark]
    """Where two are in one column, the first is shown."""
    end_s: float
    dotted: str = ""
    """What a dotted line stands for."""


class _Scale(NamedTuple):
    """Where a value lies, from 0 at the bottom to `rows` − 1, and which rows have a label."""

    low: float
    high: float
    is_log: bool
    rows: int
    labels: dict[int, str]

    def row(self, value: float) -> int:
        if self.is_log:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return max(0, min(self.rows - 1, round(share * (self.rows - 1))))


def draw(chart: Chart, *, width: int, rows: int = 9, ascii_only: bool = False) -> list[list[Piece]]:
    """The lines of the chart, none wider than `width`; none at all where there is nothing to draw."""
    values = [value for _, value in chart.points if value is not None]
    if not values or not 0 < chart.end_s < math.inf:
        return []
    scale = _scale(values, rows)
    gutter = max(map(len, scale.labels.values())) + 2
    columns = max(_LEAST_COLUMNS, width - gutter)
    signs = _signs(chart, columns)
    dotted = {_column(mark.at_s, chart.end_s, columns) for mark in chart.marks if mark.sign.has_line and mark.at_s > 0}
    grid = _curve(chart, scale, columns, ascii_only=ascii_only)
    title = chart.title + (", logarithmic" if scale.is_log else "")
    drawn: list[list[Piece]] = [[(line, Style.DIM)] for line in wrap(title, width)]
    if any(signs):
        cells = [
            (" ", Style.PLAIN) if sign is None else (_character(sign, ascii_only=ascii_only), sign.style)
            for sign in signs
        ]
        drawn.append([(" " * gutter, Style.PLAIN), *_joined(cells)])
    bar, tick = ("|", "+") if ascii_only else ("│", "┤")
    for row in reversed(range(scale.rows)):
        label = scale.labels.get(row, "")
        drawn.append(
            [
                (f"{label:>{gutter - 2}} {tick if label else bar}", Style.DIM),
                *_painted(grid[row], dotted, _DOTS[ascii_only]),
            ]
        )
    drawn += [[(text, Style.DIM)] for text in _time_axis(chart.end_s, gutter, columns, ascii_only=ascii_only)]
    entries = [
        ((_character(sign, ascii_only=ascii_only), sign.style), sign.words) for sign in signs if sign is not None
    ]
    entries += [((_DOTS[ascii_only], Style.DIM), chart.dotted)] if dotted and chart.dotted else []
    return drawn + _legend(dict.fromkeys(entries), width)


def nice_ticks(highest: float, *, wanted: int) -> list[float]:
    """Round numbers from 0 to one that is not less than the highest; all of them whole."""
    step = max(1.0, highest / wanted)
    power = 10.0 ** math.floor(math.log10(step))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))
    return [step * index for index in range(math.ceil(highest / step - 1e-9) + 1)]


def time_ticks(end_s: float, *, wanted: int) -> list[float]:
    """Round times from 0 on, not later than the end."""
    step_s = next((step for step in _TIME_STEPS_S if end_s / step <= wanted), None)
    if step_s is None:
        days = end_s / _DAY_S / wanted
        power = 10.0 ** math.floor(math.log10(max(1.0, days)))
        step_s = _DAY_S * next(factor * power for factor in (1, 2, 5, 10) if factor * power >= days)
    return [step_s * index for index in range(math.floor(end_s / step_s * (1 + 1e-9)) + 1)]


def _scale(values: Sequence[float], rows: int) -> _Scale:
    low, high = min(values), max(values)
    if low > 0 and high / low >= _LOG_FROM:
        bottom = 10.0 ** math.floor(math.log10(low))
        top = 10.0 ** math.ceil(math.log10(high) - 1e-9)
        scale = _Scale(bottom, top, is_log=True, rows=rows, labels={})
        factors = (1, 2, 5) if top / bottom <= 1000 else (1,)
        decades = range(round(math.log10(bottom)), round(math.log10(top)) + 1)
        for tick in (factor * 10.0**power for factor in factors for power in decades):  # powers of ten come first
            row = scale.row(tick)
            if bottom <= tick <= top and not {row - 1, row, row + 1} & set(scale.labels):
                scale.labels[row] = _label(tick)
        return scale
    ticks = nice_ticks(high, wanted=4)
    per_tick = max(2, round((rows - 1) / (len(ticks) - 1)))
    rows = per_tick * (len(ticks) - 1) + 1
    labels = {per_tick * index: _label(tick) for index, tick in enumerate(ticks)}
    return _Scale(0.0, ticks[-1], is_log=False, rows=rows, labels=labels)


def _label(value: float) -> str:
    return f"{value:,.0f}" if value < 1e6 else f"{value:.0e}".replace("e+0", "e").replace("e+", "e")


def _column(at_s: float, end_s: float, columns: int) -> int:
    return max(0, min(columns - 1, int(at_s / end_s * columns)))


def _curve(chart: Chart, scale: _Scale, columns: int, *, ascii_only: bool) -> list[list[str]]:
    """Characters by row, from the bottom, and column."""
    grid = [[" "] * columns for _ in range(scale.rows)]
    seen: list[list[int]] = [[] for _ in range(columns)]
    ends: list[int | None] = [None] * columns
    points = sorted(chart.points, key=lambda point: point[0])
    for at, (at_s, value) in enumerate(points):
        until_s = points[at + 1][0] if at + 1 < len(points) else chart.end_s
        first, last = _column(at_s, chart.end_s, columns), _column(until_s, chart.end_s, columns)
        row = None if value is None else scale.row(value)
        for column in range(first, last + 1):
            if row is not None and (column < last or until_s >= chart.end_s or first == last):
                seen[column].append(row)
            if column < last or until_s >= chart.end_s:
                ends[column] = row
    before: int | None = None
    for column in range(columns):
        _draw_column(grid, column, before, seen[column], ends[column], ascii_only=ascii_only)
        before = ends[column]
    return grid


def _draw_column(
    grid: list[list[str]], column: int, before: int | None, seen: Sequence[int], after: int | None, *, ascii_only: bool
) -> None:
    rows = [row for row in (before, *seen, after) if row is not None]
    if not seen and after is None:
        return
    low, high = min(rows), max(rows)
    for row in range(low, high + 1):
        arms = (before == row, after == row, row < high, row > low)  # to the left, right, up and down
        if low == high:
            arms = (True, True, False, False)
        grid[row][column] = (_ASCII_ARMS if ascii_only else _ARMS)[arms]


_ARMS = {
    (True, True, False, False): "─",
    (True, False, True, False): "┘",
    (True, False, False, True): "┐",
    (False, True, True, False): "└",
    (False, True, False, True): "┌",
    (True, True, True, False): "┴",
    (True, True, False, True): "┬",
    (True, False, True, True): "┤",
    (False, True, True, True): "├",
    (True, True, True, True): "┼",
    (False, False, True, True): "│",
    (False, False, True, False): "╵",
    (False, False, False, True): "╷",
}
_ASCII_ARMS = {arms: "-" if line == "─" else "|" if line in "│╵╷" else "+" for arms, line in _ARMS.items()}


def _painted(row: Sequence[str], dotted: set[int], dots: str) -> list[Piece]:
    cells = [
        (dots, Style.DIM) if character == " " and column in dotted else (character, Style.CYAN)
        for column, character in enumerate(row)
    ]
    return _joined(cells)


def _signs(chart: Chart, columns: int) -> list[Sign | None]:
    """By column: of two in one, the one that comes first."""
    signs: list[Sign | None] = [None] * columns
    for mark in reversed(chart.marks):
        first = _column(mark.at_s, chart.end_s, columns)
        last = first if mark.until_s is None else _column(mark.until_s, chart.end_s, columns)
        signs[first : last + 1] = [mark.sign] * (last + 1 - first)
    return signs


def _joined(cells: Sequence[Piece]) -> list[Piece]:
    """Neighbours of one style as one piece, without the empty end."""
    pieces: list[Piece] = []
    for character, style in cells:
        if pieces and (pieces[-1][1] == style or character == " "):
            pieces[-1] = (pieces[-1][0] + character, pieces[-1][1])
        else:
            pieces.append((character, style))
    if pieces:
        pieces[-1] = (pieces[-1][0].rstrip(), pieces[-1][1])
    return pieces


def _time_axis(end_s: float, gutter: int, columns: int, *, ascii_only: bool) -> list[str]:
    corner, line, tick = ("+", "-", "+") if ascii_only else ("└", "─", "┴")
    axis, labels = [line] * columns, [" "] * (columns + gutter)
    free_from = 0
    for at_s in time_ticks(end_s, wanted=max(2, columns // 9)):
        column = _column(at_s, end_s, columns)
        text = "0" if at_s == 0 else time_words(at_s)
        begin = min(gutter + column - len(text) // 2, gutter + columns - len(text))
        if begin >= free_from:
            axis[column] = tick if column else line
            labels[begin : begin + len(text)] = text
            free_from = begin + len(text) + 2
    return [" " * (gutter - 1) + corner + "".join(axis), "".join(labels).rstrip()]


def _character(sign: Sign, *, ascii_only: bool) -> str:
    return sign.ascii if ascii_only else sign.unicode


def _legend(entries: Iterable[tuple[Piece, str]], width: int) -> list[list[Piece]]:
    """Of what is drawn, and of nothing else."""
    lines: list[list[Piece]] = [[]]
    used = 0
    for sign, words in entries:
        length = len(words) + 2
        if used and used + 3 + length > width:
            lines.append([])
            used = 0
        lines[-1] += [("   " if used else "", Style.PLAIN), sign, (f" {words}", Style.DIM)]
        used += (3 if used else 0) + length
    return [line for line in lines if line]
