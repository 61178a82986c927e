"""Options of sbatch: read from a command line or from `#SBATCH`, and written so that Slurm reads the same. Pure."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.errors import UsageError

__all__ = ["Notice", "Option", "directive", "last_value", "limit_s", "read_options", "notice_of"]

# Of the short ones, those that matter to what is written or checked here.
_LONG = {
    "-a": "--array",
    "-c": "--cpus-per-task",
    "-D": "--chdir",
    "-e": "--error",
    "-J": "--job-name",
    "-n": "--ntasks",
    "-o": "--output",
    "-t": "--time",
}
_PLAIN = re.compile(r"[A-Za-z0-9@%+=:,./_\-\[\]]+\Z")
_CLOCK = re.compile(r"(?:(\d{1,9})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?\Z")
_NOTICE = re.compile(r"(?:([RB]+):)?([A-Za-z0-9+]+)(?:@(\d{1,5}))?\Z")
_DEFAULT_NOTICE_S = 60
_UNLIMITED = ("UNLIMITED", "INFINITE", "0")


class Option(NamedTuple):
    """One option with its words, as they were given."""

    name: str
    """The long one, where a short one is known here."""
    value: str | None
    words: tuple[str, ...]


class Notice(NamedTuple):
    """What `--signal` asks for."""

    signal: str
    """Without SIG: `USR1`, or a number."""
    before_s: int
    to_shell_only: bool


def read_options(words: Sequence[str]) -> list[Option]:
    """The options; a word that begins with no dash is the value of the one before. UsageError where there is none."""
    found: list[Option] = []
    for word in words:
        if word.startswith("-") and len(word) > 1:
            found.append(_option(word))
        elif found and len(found[-1].words) == 1 and found[-1].value is None:
            found[-1] = found[-1]._replace(value=word, words=(*found[-1].words, word))
        else:
            raise UsageError(
                f"{word} is no option of sbatch, nor the value of one",
                hint="what to run goes behind --: holdfast submit slurm --time=4:00:00 -- python train.py",
            )
    return found


def last_value(options: Sequence[Option], name: str) -> str | None:
    """The value that counts: that of the last one; None where it is not given."""
    return next((option.value for option in reversed(options) if option.name == name), None)


def directive(words: Sequence[str]) -> str:
    """A line of a batch script that gives sbatch exactly these words."""
    return " ".join(["#SBATCH", *(_quoted(word) for word in words)])


def limit_s(text: str | None) -> float | None:
    """A time limit in seconds, as sbatch reads it: `90`, `90:00`, `1:30:00`, `1-12:00`; None where it is none."""
    if text is None:
        return None
    if text.upper() in _UNLIMITED:
        return math.inf
    match = _CLOCK.match(text)
    if match is None:
        return None
    days, first, second, third = (None if field is None else int(field) for field in match.groups())
    if days is not None:
        return ((days * 24 + (first or 0)) * 60 + (second or 0)) * 60 + (third or 0)
    if third is not None:
        return ((first or 0) * 60 + (second or 0)) * 60 + third
    return (first or 0) * 60 + (second or 0)


def notice_of(text: str | None) -> Notice | None:
    """What `--signal=[B:]SIGNAL[@SECONDS]` says; None where that is nothing."""
    match = _NOTICE.match(text or "")
    if match is None:
        return None
    before_s = int(match[3]) if match[3] else _DEFAULT_NOTICE_S
    return Notice(match[2].upper().removeprefix("SIG"), before_s, "B" in (match[1] or ""))


def _option(word: str) -> Option:
    if word.startswith("--"):
        name, has_value, value = word.partition("=")
        return Option(name, value if has_value else None, (word,))
    name, value = word[:2], word[2:].removeprefix("=")
    return Option(_LONG.get(name, name), value or None, (word,))


def _quoted(word: str) -> str:
    if not word.isprintable():
        raise UsageError(f"{word!r}: a control character in an option of sbatch", hint="it cannot be in a batch script")
    if _PLAIN.match(word):
        return word
    # Slurm takes a backslash for an escape within any quotes: what shells call quoted would lose it.
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'
