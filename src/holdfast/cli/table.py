"""Tables for terminals and pipes: aligned, within the width, coloured only where a person looks at them.

Light on purpose: `holdfast ls` shows one and must start at once.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple, TextIO

from holdfast.core.errors import printable

__all__ = ["Cell", "Column", "Rendered", "Style", "fit", "paint", "render", "terminal_width", "use_colour"]

_GAP = "  "
_ELLIPSIS = "…"
_LEAST_WIDTH = 8
_DEFAULT_WIDTH = 100  # of a pipe: nobody wraps there, but a note of 4,000 characters is too much


class Style:
    """The few styles there are, as terminals know them."""

    PLAIN = ""
    BOLD = "1"
    DIM = "2"
    RED = "31"
    GREEN = "32"
    YELLOW = "33"
    CYAN = "36"


class Column(NamedTuple):
    """A column: its title, and what happens to it where the table is too wide."""

    title: str
    right: bool = False
    drop: int = 0
    """The columns with the highest number are left out first; those with 0 never."""
    shrink: bool = False
    """Its texts are cut to the width that the others leave."""


class Cell(NamedTuple):
    """A text and how to paint it."""

    text: str
    style: str = Style.PLAIN


class Rendered(NamedTuple):
    """A table as text."""

    lines: list[str]
    left_out: list[str]
    """The titles of the columns for which there was no room."""


def render(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]], *, width: int | None, colour: bool
) -> Rendered:
    """The lines of the table. Columns in which every cell is empty do not count; `width` None sets no limit."""
    wanted = _widths(columns, rows)
    widths = dict(wanted)
    if width is not None:
        _fit_columns(columns, widths, width)
    shown: list[list[str]] = []
    for index, width_here in widths.items():
        cells = [Cell(columns[index].title, Style.DIM), *(_cell(row[index]) for row in rows)]
        shown.append([_padded(cell, width_here, right=columns[index].right, colour=colour) for cell in cells])
    lines = [_GAP.join(parts).rstrip() for parts in zip(*shown, strict=True)]
    return Rendered(lines, [columns[index].title for index in wanted if index not in widths])


def paint(text: str, style: str, *, colour: bool) -> str:
    """The text in that style, if colours are wanted."""
    return f"\x1b[{style}m{text}\x1b[0m" if colour and style and text else text


def fit(text: str, width: int) -> str:
    """The text, cut to the width with an ellipsis."""
    if _width(text) <= width:
        return text
    kept = ""
    for character in text:
        if _width(kept + character) > width - 1:
            break
        kept += character
    return kept.rstrip() + _ELLIPSIS if width > 0 else ""


def use_colour(stream: TextIO) -> bool:
    """Whether somebody looks at the stream who wants colours (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_width(stream: TextIO) -> int | None:
    """How wide a line may be; None for a pipe or a file, where a cut text would be a loss."""
    if os.environ.get("COLUMNS", "").isdecimal():
        return max(40, int(os.environ["COLUMNS"]))
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return None
    return max(40, columns or _DEFAULT_WIDTH)


def _cell(cell: Cell | str) -> Cell:
    return cell if isinstance(cell, Cell) else Cell(cell)


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]]) -> dict[int, int]:
    """How wide each column wants to be, of those that are not empty."""
    widths = {}
    for index, column in enumerate(columns):
        widest = max((_width(_safe(_cell(row[index]).text)) for row in rows), default=0)
        if widest:
            widths[index] = max(widest, _width(column.title))
    return widths


def _fit_columns(columns: Sequence[Column], widths: dict[int, int], limit: int) -> None:
    def least(index: int) -> int:
        return (
            min(widths[index], max(_LEAST_WIDTH, _width(columns[index].title)))
            if columns[index].shrink
            else widths[index]
        )

    def room() -> int:
        return limit - sum(map(least, widths)) - len(_GAP) * (len(widths) - 1)

    while room() < 0:
        droppable = [index for index in widths if columns[index].drop > 0]
        if not droppable:
            break
        del widths[max(droppable, key=lambda index: (columns[index].drop, index))]
    for index in [index for index in widths if columns[index].shrink]:
        widths[index] = min(widths[index], least(index) + max(0, room()))


def _padded(cell: Cell, width: int, *, right: bool, colour: bool) -> str:
    text = _safe(cell.text)
    if not text.isascii() or len(text) > width:
        text = fit(text, width)
    padding = " " * (width - _width(text))
    painted = paint(text, cell.style, colour=colour)
    return padding + painted if right else painted + padding


def _safe(text: str) -> str:
    return text if text.isprintable() else printable(text)


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)
