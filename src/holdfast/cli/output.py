"""Where a command's answer goes: text for people, one JSON document for programs, remarks to the side."""

import sys
from collections.abc import Sequence

from holdfast.cli.table import Cell, Column, paint, render, terminal_width, use_colour
from holdfast.core.errors import UsageError, printable

__all__ = ["Output"]


class Output:
    """The standard output of one command."""

    def __init__(self, *, json: bool) -> None:
        self.json = json
        self.colour = not json and use_colour(sys.stdout)
        self.width = terminal_width(sys.stdout)

    def document(self, document: object) -> None:
        """The answer for programs."""
        from holdfast.cli.words import json_text

        print(json_text(document))

    def line(self, text: str = "", style: str = "") -> None:
        """One line; control characters in it are shown, not obeyed."""
        print(paint(printable(text), style, colour=self.colour))

    def pieces(self, *pieces: tuple[str, str]) -> None:
        """One line of differently painted pieces."""
        print("".join(paint(printable(text), style, colour=self.colour) for text, style in pieces))

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]]) -> list[str]:
        """A table, within the terminal's width; the columns for which there was no room."""
        rendered = render(columns, rows, width=self.width, colour=self.colour)
        print("\n".join(rendered.lines))
        return rendered.left_out

    def remark(self, text: str) -> None:
        """A line to the side, which is no part of the answer."""
        print(printable(text), file=sys.stderr)

    def confirm(self, question: str, *, yes: bool) -> bool:
        """Whether to go on. Asks a person; without one, `--yes` must have said so."""
        if yes:
            return True
        if self.json or not sys.stdin.isatty() or not sys.stderr.isatty():
            raise UsageError("nobody can be asked for confirmation here", hint="add --yes to go on")
        print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")
