"""Tables for terminals and pipes: aligned, within the width, coloured only where a person looks at them.

Light on purpose: `holdfast ls` shows one and must start at once.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple, TextIO

from holdfast.core.errors import printable

__all__ = ["Cell", "Column", "Style", "fit", "paint", "render", "terminal_width", "use_colour"]

_GAP = "  "
_ELLIPSIS = "…"
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


def render(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]], *, width: int | None, colour: bool
) -> list[str]:
    """The lines of the table. Columns in which every cell is empty are left out; `width` None sets no limit."""
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    shown = [index for index in range(len(columns)) if any(row[index].text for row in cells)]
    texts = {index: [printable(row[index].text) for row in cells] for index in shown}
    widths = {index: max(map(_width, [columns[index].title, *texts[index]])) for index in shown}
    if width is not None:
        _fit_columns(columns, widths, width)
    lines = [
        _line([(Cell(columns[i].title, Style.DIM), columns[i].title, columns[i], w) for i, w in widths.items()], colour)
    ]
    for number, row in enumerate(cells):
        lines.append(_line([(row[i], texts[i][number], columns[i], w) for i, w in widths.items()], colour))
    return lines


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


def _fit_columns(columns: Sequence[Column], widths: dict[int, int], width: int) -> None:
    least = {
        index: min(w, max(8, _width(columns[index].title))) if columns[index].shrink else w
        for index, w in widths.items()
    }
    while sum(least.values()) + len(_GAP) * (len(least) - 1) > width:
        droppable = [index for index in least if columns[index].drop > 0]
        if not droppable:
            break
        worst = max(droppable, key=lambda index: (columns[index].drop, index))
        del least[worst], widths[worst]
    room = width - sum(least.values()) - len(_GAP) * (len(least) - 1)
    for index in [index for index in widths if columns[index].shrink]:
        wanted = min(widths[index], least[index] + max(room, 0))
        room -= wanted - least[index]
        widths[index] = wanted


def _line(parts: Sequence[tuple[Cell, str, Column, int]], colour: bool) -> str:  # noqa: FBT001  private, always by place
    pieces = []
    for cell, text, column, width in parts:
        shown = fit(text, width)
        padding = " " * (width - _width(shown))
        painted = paint(shown, cell.style, colour=colour)
        pieces.append(padding + painted if column.right else painted + padding)
    return _GAP.join(pieces).rstrip()


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)
