"""The command of the user, and what a recipe makes of it: names of files found in it, options added, restarts."""

import glob
import logging
import os
import re
from collections.abc import Mapping, Sequence

from holdfast.core.errors import UsageError
from holdfast.supervising.apps.recipe import Recipe, Word

__all__ = ["CommandLine"]

_log = logging.getLogger("holdfast")
_BRACES = re.compile(r"\{([a-z][a-z0-9_]*)\}")
_MAX_FILE_BYTES = 256


class CommandLine:
    """One command under one recipe."""

    def __init__(self, command: Sequence[str], recipe: Recipe, *, folder: str, name: str) -> None:
        """UsageError where the recipe does not fit the command."""
        self._command = list(command)
        self._recipe = recipe
        self._folder = folder
        self._behind = _find_behind(self._command, recipe.command.behind, name)
        self._options = self._command[self._behind :]
        for option, why in recipe.command.refuse.items():
            if option in self._options:
                raise UsageError(f"{name}: {option} cannot be used: {why}", hint=f"leave {option} away")
        self._known: dict[str, str] = {}
        before = [word for word in self._command[: self._behind - 1] if not word.startswith("-")]
        if before:
            self._known["program"] = before[-1]
        for word, rule in recipe.words.items():
            value = self._value(rule)
            if value is not None:
                self._known[word] = value

    def fill(self, text: str, more: Mapping[str, str] | None = None) -> str | None:
        """The text with its words filled in; None where one of them is not known."""
        known = {**self._known, **self._of_files(), **(more or {})}
        if any(word not in known for word in _BRACES.findall(text)):
            return None
        return _BRACES.sub(lambda found: known[found[1]], text)

    def fill_all(self, texts: Sequence[str], more: Mapping[str, str] | None = None) -> list[str] | None:
        """The same for all of them, or None."""
        filled = [self.fill(text, more) for text in texts]
        return None if None in filled else [text for text in filled if text is not None]

    def names(self, patterns: Sequence[str]) -> list[str]:
        """Names of files, without those that no word is known for."""
        filled = (self.fill(pattern) for pattern in patterns)
        return [os.path.normpath(name) for name in filled if name is not None]

    def patterns(self, patterns: Sequence[str]) -> list[str]:
        """Patterns of files; what the user has called them is taken literally. UsageError where it leads elsewhere."""
        literal = {word: glob.escape(value) for word, value in self._known.items()}
        found = [os.path.normpath(name) for name in (self.fill(one, literal) for one in patterns) if name is not None]
        for name in found:
            if os.path.isabs(name) or name.startswith(".."):
                raise UsageError(
                    f"{name} is outside of the folder in which the program is started",
                    hint="start it in the folder that its files are in, and give their names without a path",
                )
        return found

    def start(self, more: Mapping[str, str]) -> list[str]:
        """For an attempt from the beginning."""
        return [*self._recipe.start.before, *self._with_options(self._recipe.start.add, more)]

    def restart(self, files: Sequence[str], more: Mapping[str, str]) -> list[str]:
        """For an attempt that goes on from these files."""
        rules = self._recipe.restart
        known = {**more, "newest": files[0]}
        if rules.command:
            # {files} stands for as many words as there are files.
            words = [files if word == "{files}" else [self.fill(word, known) or word] for word in rules.command]
            return [word for group in words for word in group]
        before = rules.before or self._recipe.start.before
        return [*before, *self._with_options(self._recipe.start.add, known, instead=rules.add)]

    def _with_options(
        self, groups: Sequence[Sequence[str]], more: Mapping[str, str], *, instead: Sequence[Sequence[str]] = ()
    ) -> list[str]:
        """The command with those that the user has not given, and with those that count instead of his."""
        options, added = self._options, list[str]()
        for group, is_instead in [*((group, False) for group in groups), *((group, True) for group in instead)]:
            # With a value that names something, as in -var NAME VALUE, both words have to be there to count as given.
            given = group[:-1] if len(group) > 2 else group[:1]
            filled = self.fill_all(group, more)
            if filled is None:
                continue
            if is_instead and len(group) > 1:
                # I12: what he named is where it began, and not where it goes on.
                if _holds(options, given) and not _holds(options, filled):
                    _log.warning("%s counts instead of what the command says", " ".join(filled))
                options = _without(options, given)
            if not _holds(options, given):
                added += filled
        return [*self._command[: self._behind], *options, *added]

    def _value(self, rule: Word) -> str | None:
        value = self._option(rule.option) if rule.option else None
        if value is None and rule.of is not None:
            value = self._known.get(rule.of, "").removesuffix(rule.without) or None
        for default in rule.default:
            value = value if value is not None else self.fill(default)
        if value is not None and rule.suffix and not value.endswith(rule.suffix):
            value += rule.suffix
        return value

    def _option(self, option: str) -> str | None:
        """The last one counts, as with most programs."""
        at = len(self._options) - 1 - self._options[::-1].index(option) if option in self._options else None
        return self._options[at + 1] if at is not None and at + 1 < len(self._options) else None

    def _of_files(self) -> dict[str, str]:
        found = {}
        for word, rule in self._recipe.words.items():
            if rule.file is None:
                continue
            try:
                with open(os.path.join(self._folder, rule.file), encoding="utf-8") as file:
                    found[word] = file.read(_MAX_FILE_BYTES).strip()
            except (OSError, UnicodeDecodeError):
                continue
        return found


def _find_behind(command: Sequence[str], word: str, name: str) -> int:
    """Where the options begin."""
    if not word:
        return 1
    for index, given in enumerate(command):
        if os.path.basename(given).startswith(word):
            return index + 1
    raise UsageError(f"{name}: the command has no {word!r}: {' '.join(command)}", hint=f"for example: gmx {word} …")


def _without(words: Sequence[str], option: Sequence[str]) -> list[str]:
    """The words without that option, wherever it is, and the value behind it."""
    left, at = list[str](), 0
    while at < len(words):
        if list(words[at : at + len(option)]) != list(option):
            left.append(words[at])
            at += 1
            continue
        at += len(option)
        if at < len(words) and not words[at].startswith("-"):
            at += 1
    return left


def _holds(words: Sequence[str], part: Sequence[str]) -> bool:
    return any(list(words[at : at + len(part)]) == list(part) for at in range(len(words)))
