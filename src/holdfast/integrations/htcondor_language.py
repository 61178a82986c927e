"""The language of HTCondor's submit descriptions: words of a command written in it, and lines of it read."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from holdfast.core.errors import UsageError

__all__ = ["Statement", "check_value", "quote_arguments", "quote_environment", "read_statements", "split_list"]

_NEEDS_QUOTES = re.compile(r"[\s']|\A\Z")
_ASSIGNMENT = re.compile(r"\s*((?:\+|my\.)?[a-z_][a-z0-9_.]*)\s*=(.*)\Z", re.IGNORECASE | re.DOTALL)
_BLOCK = re.compile(r"\s*[a-z_][a-z0-9_.]*\s*@=\s*(\w+)\s*\Z", re.IGNORECASE)
_WORD = re.compile(r"\s*([a-z]+)\b", re.IGNORECASE)


def quote_arguments(words: Sequence[str]) -> str:
    """The value of `arguments` by which the program gets exactly these words."""
    return _in_double_quotes(" ".join(_quoted(word) for word in words))


def quote_environment(variables: Mapping[str, str]) -> str:
    """The value of `environment` by which the program gets exactly these variables."""
    return _in_double_quotes(" ".join(_quoted(f"{name}={value}") for name, value in variables.items()))


def check_value(text: str, what: str) -> None:
    """UsageError where the text would not stay on its line."""
    if any(c in text for c in "\n\r\0") or text.endswith("\\"):
        raise UsageError(
            f"{what}: {text!r} does not fit on a line of a submit description", hint="put it into a script"
        )


class Statement(NamedTuple):
    """Some lines of a description that belong together."""

    first: int
    last: int
    """Its lines, counted from 0, both included."""
    name: str
    """Of the command, in lower case; `queue`, `if` …; empty for a comment and what is not understood."""
    value: str
    depth: int = 0
    """How many `if` it is in."""


def read_statements(lines: Sequence[str]) -> Iterator[Statement]:
    """What the lines say; HTCondor joins lines that end with a backslash, and reads what is behind @= to its end."""
    depth, number = 0, 0
    while number < len(lines):
        first, text = number, lines[number]
        block = _BLOCK.match(text)
        if block is not None:
            while number + 1 < len(lines) and lines[number].strip() != f"@{block[1]}":
                number += 1
            yield Statement(first, number, "", "", depth)
        elif text.lstrip().startswith("#"):
            yield Statement(first, number, "", "", depth)
        else:
            while text.endswith("\\") and number + 1 < len(lines):
                number += 1
                text = text[:-1] + lines[number]
            assignment, word = _ASSIGNMENT.match(text), _WORD.match(text)
            if assignment is not None:
                yield Statement(first, number, assignment[1].lower(), assignment[2].strip(), depth)
            else:
                name = word[1].lower() if word is not None else ""
                depth += {"if": 1, "endif": -1}.get(name, 0)
                yield Statement(first, number, name, "", depth)
        number += 1


def split_list(value: str) -> list[str]:
    """The files that a value names."""
    return [name for name in (part.strip() for part in value.strip().strip('"').split(",")) if name]


def _quoted(word: str) -> str:
    if any(c in word for c in "\n\r\0"):
        raise UsageError(
            f"{word!r} has more than one line, which a submit description cannot express",
            hint="put the command into a script",
        )
    if "$$" in word or "$(DOLLAR)" in word.upper():
        raise UsageError(
            f"{word}: HTCondor would read that as a name of its own, and knows no way to say that it is none",
            hint="put the command into a script",
        )
    # Else what a shell calls a variable would be one of HTCondor's.
    plain = word.replace("$", "$(DOLLAR)")
    return "'" + plain.replace("'", "''") + "'" if _NEEDS_QUOTES.search(word) else plain


def _in_double_quotes(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'
