"""Tables for terminals and pipes: aligned, within the width, coloured only where a person looks at them.

Light on purpose: `holdfast ls` shows one and must start at once.
"""

import os
from collections.abc import Sequence

from holdfast.core.errors import printable
from holdfast.core.light_typing import NamedTuple, TextIO

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
    """A column: its title, how its texts are shown, and what happens to it where the table is too wide."""

    title: str
    right: bool = False
    drop: int = 0
    """The columns with the highest number are left out first; those with 0 never."""
    shrink: bool = False
    """Its texts are cut to the width that the others leave."""
    least: int = _LEAST_WIDTH
    """But not below this, as long as there is a column to leave out."""
    keep_end: bool = False
    """Where they are cut, at their beginning: paths differ in their ends."""
    style: str = Style.PLAIN
    """How to paint a text that comes without a style of its own."""


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
    cells = list(zip([Cell(column.title, Style.DIM) for column in columns], *rows, strict=True))
    texts = [_safe_texts(column) for column in cells]
    wanted = {index: _widest(column) for index, column in enumerate(texts) if any(column[1:])}
    widths = dict(wanted)
    if width is not None:
        _fit_columns(columns, widths, width)
    shown: list[list[str]] = []
    for index, width_here in widths.items():
        column = columns[index]
        aligned = _aligned(texts[index], width_here, right=column.right, keep_end=column.keep_end)
        if colour:
            styles = [cell.style if isinstance(cell, Cell) else column.style for cell in cells[index]]
            aligned = [_paint_aligned(text, style) for text, style in zip(aligned, styles, strict=True)]
        shown.append(aligned)
    lines = [_GAP.join(parts).rstrip() for parts in zip(*shown, strict=True)]
    return Rendered(lines, [columns[index].title for index in wanted if index not in widths])


def paint(text: str, style: str, *, colour: bool) -> str:
    """The text in that style, if colours are wanted."""
    return f"\x1b[{style}m{text}\x1b[0m" if colour and style and text else text


def fit(text: str, width: int, *, keep_end: bool = False) -> str:
    """The text, cut to the width with an ellipsis."""
    if _width(text) <= width:
        return text
    if keep_end:
        return fit(text[::-1], width)[::-1]
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


def _safe_texts(cells: Sequence[Cell | str]) -> list[str]:
    """The texts of a column, its title first, with what a terminal would obey made visible."""
    texts = [cell.text if isinstance(cell, Cell) else cell for cell in cells]
    return texts if "".join(texts).isprintable() else [printable(text) for text in texts]


def _fit_columns(columns: Sequence[Column], widths: dict[int, int], limit: int) -> None:
    least_widths = {index: columns[index].least for index in widths}

    def least(index: int) -> int:
        smallest = least_widths.get(index, _LEAST_WIDTH)
        return (
            min(widths[index], max(smallest, _width(columns[index].title))) if columns[index].shrink else widths[index]
        )

    def room() -> int:
        return limit - sum(map(least, widths)) - len(_GAP) * (len(widths) - 1)

    while room() < 0:
        droppable = [index for index in widths if columns[index].drop > 0]
        if not droppable:
            least_widths.clear()
            break
        del widths[max(droppable, key=lambda index: (columns[index].drop, index))]
    spare = max(0, room())
    for index in [index for index in widths if columns[index].shrink]:
        wanted, smallest = widths[index], least(index)
        widths[index] = min(wanted, smallest + spare)
        spare -= widths[index] - smallest


def _aligned(texts: list[str], width: int, *, right: bool, keep_end: bool) -> list[str]:
    """The texts of a column, all of them cut or filled to the width."""
    pad = str.rjust if right else str.ljust
    if "".join(texts).isascii() and _widest(texts) <= width:
        return [pad(text, width) for text in texts]
    fitting = [fit(text, width, keep_end=keep_end) for text in texts]
    # Python counts characters; on a screen some take two places, some none.
    return [pad(text, width + len(text) - _width(text)) for text in fitting]


def _paint_aligned(text: str, style: str) -> str:
    """Painted, but not where it was filled: a style may show on a space."""
    bare = text.strip(" ")
    return text.replace(bare, paint(bare, style, colour=True), 1)


def _widest(texts: Sequence[str]) -> int:
    return max(map(len if "".join(texts).isascii() else _width, texts))


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)
