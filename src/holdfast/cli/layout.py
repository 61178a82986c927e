"""Titles, facts and tables with a reason to each row, within the width of a terminal."""

import re
from collections.abc import Sequence
from textwrap import wrap

from holdfast.cli.output import Output
from holdfast.cli.table import Cell, Column, Style, paint, render
from holdfast.core.errors import printable

__all__ = ["lines_beside", "print_fact", "print_reasons", "print_title"]

_LABEL_WIDTH = 15
_TEXT_WIDTH = 110  # longer lines of prose are hard to read
_LEAST_TEXT_WIDTH = 30
_NARROW = 60  # texts are not put beside their label any more
_TIED = "\N{NO-BREAK SPACE}"
_COMMAND = re.compile(r"`[^`]*`")
_TIED_COMMAND = "\0"  # in no text that was made printable
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|µs|ms|s|min|h|d|[KMGT]iB)(?!\w))")


def lines_beside(text: str, indent: int, out: Output) -> list[str]:
    """Lines of the text, `indent` characters from the edge of a terminal; a pipe gets one.

    Paths are not broken, nor are commands in backquotes: they are to be copied.
    """
    text = printable(text)
    if out.width is None:
        return [text]
    room = max(out.width - indent, _LEAST_TEXT_WIDTH)
    tied = _COMMAND.sub(lambda found: found[0].replace(" ", _TIED_COMMAND), text)
    lines = wrap(tied, room, break_long_words=False, break_on_hyphens=False) or [""]
    return [line.replace(_TIED_COMMAND, " ") for line in lines]


def print_title(title: str, out: Output) -> None:
    """Above what follows, after an empty line."""
    out.line()
    out.line(title, Style.BOLD)


def print_fact(label: str, text: str, out: Output, style: str = Style.PLAIN, *, about: str = "") -> None:
    """A label and a text beside it, on as many lines as that takes."""
    narrow = out.width is not None and out.width < _NARROW
    head = f"  {label}: " if narrow else f"  {label:<{_LABEL_WIDTH}}"
    if narrow:
        first, *more = _wrapped(head.lstrip() + text, (out.width or 0) - 4) or [""]
        out.pieces((head, Style.DIM), (first[len(head) - 2 :], style))
        for line in more:
            out.line(f"    {line}", style)
        return
    width = min(out.width or _TEXT_WIDTH, _TEXT_WIDTH) - len(head)
    if about:
        text = f"{text:<8} {about}" if len(text) + len(about) < width else text
    lines = _wrapped(text, width) or [""]
    out.pieces((head, Style.DIM), (lines[0], style))
    for line in lines[1:]:
        out.pieces((" " * len(head), Style.PLAIN), (line, style))


def print_reasons(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]], texts: Sequence[str], out: Output
) -> None:
    """A table with a text to each row that is not cut: beside it where there is room, else below."""
    plain = render(columns, rows, width=out.width, colour=False).lines
    painted = render(columns, rows, width=out.width, colour=out.colour).lines
    widest = max(map(len, plain))
    room = min(_TEXT_WIDTH, (out.width or _TEXT_WIDTH + widest) - widest - 2)
    head = paint("why", Style.DIM, colour=out.colour) if room >= _LEAST_TEXT_WIDTH else ""
    print((painted[0] + " " * (widest - len(plain[0]) + 2) + head).rstrip())
    for bare, line, text in zip(plain[1:], painted[1:], texts, strict=True):
        if room >= _LEAST_TEXT_WIDTH:
            beside = _wrapped(printable(text), room) or [""]
            print((line + " " * (widest - len(bare) + 2) + beside[0]).rstrip())
            below = [" " * (widest + 2) + more for more in beside[1:]]
        else:
            print(line)
            below = ["    " + more for more in _wrapped(printable(text), (out.width or _TEXT_WIDTH) - 4)]
        for more in below:
            out.line(more)


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of the text; a figure and its unit are not torn apart."""
    lines = wrap(_BEFORE_UNIT.sub(_TIED, text), width)
    return [line.replace(_TIED, " ") for line in lines]
