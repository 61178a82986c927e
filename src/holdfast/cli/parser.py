"""The parser of one command's arguments, and the arguments that many commands share."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from holdfast.cli.table import terminal_width
from holdfast.core.errors import UsageError

__all__ = ["add_best", "add_choice", "add_run", "add_yes", "make_parser", "whole"]

_HELP_WIDTH = 120
_MAX_DIGITS = 18  # as of a step


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Knows its width: argparse would import shutil to find it out, even where no help is shown."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(terminal_width(sys.stdout) or _HELP_WIDTH, _HELP_WIDTH))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Examples stay as they are; what is prose is filled to the width."""
        if text.startswith("examples:"):
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


class _Parser(argparse.ArgumentParser):
    """Raises like every other bad input, instead of leaving the program."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        self._given = list(args or ())
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        close = self._close_to_unknown()
        meant = f"did you mean {' or '.join(close)}? " if close else ""
        raise UsageError(f"{self.prog}: {message}", hint=f"{meant}`{self.prog} --help` shows how it is used")

    def _close_to_unknown(self) -> list[str]:
        """The options that may be meant by the first one that is not known: those that begin like it, or the nearest.

        Looked for whatever the message is: of `export RUN --too X` argparse says that --to is missing.
        """
        from difflib import get_close_matches

        known = {option.lstrip("-"): option for option in self._option_string_actions if option.startswith("--")}
        given = [text.partition("=")[0] for text in self._given if text.startswith("-")]
        unknown = next((text.lstrip("-") for text in given if text not in self._option_string_actions), "")
        if not unknown or unknown.isdecimal():
            return []
        names = [name for name in known if name.startswith(unknown)]
        if not names and len(unknown) > 1:
            names = get_close_matches(unknown, known, n=1)
        return [known[name] for name in names]


def make_parser(command: str, *, summary: str, examples: Sequence[str]) -> argparse.ArgumentParser:
    """A parser with the summary, the examples and `--json`."""
    parser = _Parser(
        prog=f"holdfast {command}",
        description=summary,
        epilog="examples:\n" + "\n".join(f"  {example}" for example in examples),
        formatter_class=_Formatter,
        allow_abbrev=False,  # scripts that abbreviate would break when an option is added
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of text")
    return parser


def add_run(parser: argparse.ArgumentParser) -> None:
    """RUN."""
    parser.add_argument("run", metavar="RUN", help="the run's directory")


def add_choice(parser: argparse.ArgumentParser, *, optional: bool = False, several: bool = False) -> None:
    """WHICH, with the metric for `best`. Where it is optional and not given, it is None."""
    about = "step, `latest`, `healthy`, `best`, id or its beginning" + (" (default: latest)" if optional else "")
    parser.add_argument("which", metavar="WHICH", nargs="+" if several else "?" if optional else None, help=about)
    add_best(parser)


def add_best(parser: argparse.ArgumentParser, *, for_what: str = "`best`") -> None:
    """--by and --mode. `cli.runs.best_of` reads them."""
    parser.add_argument("--by", metavar="METRIC", help=f"the metric for {for_what}")
    parser.add_argument("--mode", choices=("min", "max"), help="whether small or large is best (default: min)")


def add_yes(parser: argparse.ArgumentParser) -> None:
    """--yes."""
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask; needed where nobody can be asked")


def whole(least: int) -> Callable[[str], int]:
    """The type of an option: a whole number of at least that much."""

    def parse(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or len(text) > _MAX_DIGITS or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return parse
