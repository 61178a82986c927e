"""A recipe: what holdfast has to know of a program that cannot be changed, as a TOML file says it, checked."""

import re
import signal
import tomllib
from collections.abc import Iterator
from pathlib import PurePosixPath

import msgspec

from holdfast.core.errors import UsageError
from holdfast.policy.durations import seconds_of
from holdfast.storage.translate import Boundary

__all__ = ["Ask", "CheckpointRules", "EndRules", "ProgressRules", "Recipe", "Word", "parse_recipe", "read_recipe"]

Duration = str | int | float
_MAX_BYTES = 1 << 20
_WHERE = re.compile(r" - at `\$\.?([^`]*)`")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}\Z")
_BRACES = re.compile(r"\{(\w+)\}")


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One table of the file."""


class Word(_Table, frozen=True):
    """A word for the braces of the recipe, from the command of the user: {state} may be what `-cpo` names."""

    option: str | None = None
    default: tuple[str, ...] = ()
    """The first whose own words are all known."""
    suffix: str = ""
    """Added where it is missing."""
    of: str | None = None
    """Another word, shortened."""
    without: str = ""
    file: str | None = None
    """What a small file says that the program writes."""


class CommandRules(_Table, frozen=True):
    behind: str = ""
    """Options are looked for, and added, behind this word of the command."""
    refuse: dict[str, str] = {}
    """Options with which it cannot work, and why."""


class CheckpointRules(_Table, frozen=True):
    files: tuple[str, ...]
    """Patterns of the files that a restart needs, in the order in which they are copied. Each must match one."""
    newest: bool = False
    """Of all that match, only the one that was written last."""
    previous: tuple[str, ...] = ()
    """What the program itself keeps of the one before, in the order of `files`."""
    also: tuple[str, ...] = ()
    """Copied with them where they exist, and brought back with them."""
    growing: tuple[str, ...] = ()
    """Those of `also` that the program only appends to: they may grow while they are copied."""
    also_max_bytes: int = 2_000_000_000
    atomic: bool = False
    """The program renames complete files into place; else one is whole when it has not changed for `settled`."""
    settled: Duration = "2 s"
    pause: Duration = 0
    """At least that long between two copies."""
    check: tuple[str, ...] = ()
    """A command that ends with status 0 where {file} is whole."""
    step_in_name: str = ""
    step_command: tuple[str, ...] = ()
    """Prints what `step_output` finds the step in: that of {file}."""
    step_output: str = ""
    keep: int = 2

    @property
    def settled_s(self) -> float:
        return 0.0 if self.atomic else seconds_of(self.settled, "checkpoint.settled")

    @property
    def pause_s(self) -> float:
        return seconds_of(self.pause, "checkpoint.pause")


class Ask(_Table, frozen=True):
    """How to ask the program for something: by one of these."""

    signal: str = ""
    touch: str = ""
    commands: tuple[tuple[str, ...], ...] = ()
    every: Duration = 0
    deadline: Duration = "60 s"

    @property
    def every_s(self) -> float:
        return seconds_of(self.every, "ask.every")

    @property
    def deadline_s(self) -> float:
        return seconds_of(self.deadline, "deadline")


class StartRules(_Table, frozen=True):
    before: tuple[str, ...] = ()
    """In front of the user's command."""
    add: tuple[tuple[str, ...], ...] = ()
    """Each an option and its value, added where all its words are known; in [start], if the user has not given it."""
    command: tuple[str, ...] = ()
    """Instead of the user's command."""


class ProgressRules(_Table, frozen=True):
    file: str = ""
    anew: bool = False
    """The program begins the file anew with each start, and does not append to it."""
    step: str = ""
    """Its last match in the file is how far the program is."""
    checkpoint: str = ""
    """Its last match is the step of the newest checkpoint; without it, `step` is."""
    total: int | str = ""
    """How many steps make it done, or a pattern for it."""


class EndRules(_Table, frozen=True):
    statuses: tuple[int, ...] = (0,)
    """That an orderly end has."""
    done: str = ""
    """Found in what this attempt wrote to progress.file: it is done."""
    again: str = ""
    """Found there: it is not, but has ended in order, whatever its status."""


class Recipe(_Table, frozen=True):
    """All of it. Without a [restart] that changes the command, the program has to find its files by itself."""

    checkpoint: CheckpointRules
    needs: tuple[str, ...] = ()
    """Programs that must be there."""
    command: CommandRules = CommandRules()
    words: dict[str, Word] = {}
    start: StartRules = StartRules()
    restart: StartRules = StartRules()
    ask: Ask | None = None
    stop: Ask | None = None
    progress: ProgressRules = ProgressRules()
    end: EndRules = EndRules()


def read_recipe(path: str) -> Recipe:
    """The recipe of a file; UsageError says what in it makes no sense."""
    with Boundary("reading", path), open(path, "rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise UsageError(f"{path}: more than {_MAX_BYTES} bytes, which is no recipe")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not a text in UTF-8", hint="a recipe is a TOML file") from error
    return parse_recipe(text, path)


def parse_recipe(text: str, where: str) -> Recipe:
    """The recipe of a text; `where` is for messages."""
    try:
        recipe = msgspec.convert(tomllib.loads(text), Recipe)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where}: not TOML: {error}", hint="texts stand in quotes, patterns best in '…'") from error
    except RecursionError as error:
        raise UsageError(f"{where}: nested too deeply") from error
    except msgspec.ValidationError as error:
        found = _WHERE.search(str(error))
        place = f" in {found[1]}" if found and found[1] else ""
        raise UsageError(
            f"{where}{place}: {_WHERE.sub('', str(error))}",
            hint="docs/reference/app-recipes.md lists what may be there",
        ) from error
    for problem in _problems(recipe):
        raise UsageError(f"{where}: {problem}", hint="docs/reference/app-recipes.md lists what may be there")
    return recipe


def _problems(recipe: Recipe) -> Iterator[str]:
    rules, progress, end = recipe.checkpoint, recipe.progress, recipe.end
    if not rules.files:
        yield "checkpoint.files names no file"
    for name in [*rules.files, *rules.previous, *rules.also, *rules.growing, *filter(None, [progress.file])]:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not name:
            yield f"{name!r} is not a name inside of the program's folder"
    if rules.previous and len(rules.previous) != len(rules.files):
        yield f"checkpoint.previous has {len(rules.previous)} names, checkpoint.files {len(rules.files)}"
    if rules.keep < 1:
        yield f"checkpoint.keep is {rules.keep}, expected 1 or more"
    if rules.check and not any("{file}" in word for word in rules.check):
        yield "checkpoint.check does not say {file}"
    if bool(rules.step_command) != bool(rules.step_output):
        yield "checkpoint.step_command and checkpoint.step_output go together"
    for name in recipe.words:
        if not _NAME.match(name):
            yield f"words.{name}: expected small letters, digits and _"
    total = progress.total if isinstance(progress.total, str) else ""
    patterns = {
        "checkpoint.step_in_name": (rules.step_in_name, 1),
        "checkpoint.step_output": (rules.step_output, 1),
        "progress.step": (progress.step, 1),
        "progress.checkpoint": (progress.checkpoint, 1),
        "progress.total": (total, 1),
        "end.done": (end.done, 0),
        "end.again": (end.again, 0),
    }
    for name, (pattern, groups) in patterns.items():
        yield from _pattern_problems(name, pattern, groups)
        if pattern and not name.startswith("checkpoint.") and not progress.file:
            yield f"{name} is given without progress.file"
    for name, ask in (("ask", recipe.ask), ("stop", recipe.stop)):
        if ask is not None:
            yield from _ask_problems(name, ask)
    yield from _word_problems(recipe)
    _ = rules.settled_s, rules.pause_s  # UsageError where they are no durations


def _word_problems(recipe: Recipe) -> Iterator[str]:
    """Words that nobody ever knows: an option with one would never be added, and the program start from scratch."""
    rules, start, restart = recipe.checkpoint, recipe.start, recipe.restart
    commands = [word for ask in (recipe.ask, recipe.stop) if ask is not None for line in ask.commands for word in line]
    places = {
        "checkpoint.files": (rules.files, ()),
        "checkpoint.previous": (rules.previous, ()),
        "checkpoint.also": (rules.also, ()),
        "checkpoint.growing": (rules.growing, ()),
        "checkpoint.check": (rules.check, ("file",)),
        "checkpoint.step_command": (rules.step_command, ("file",)),
        "start.add": ([word for group in start.add for word in group], ("hours_left",)),
        "restart.add": ([word for group in restart.add for word in group], ("newest", "hours_left")),
        "restart.command": (restart.command, ("newest", "files", "hours_left")),
        "ask.commands and stop.commands": (commands, ("pid", "hours_left")),
        "progress.file": ((recipe.progress.file,), ()),
        "words": ([text for word in recipe.words.values() for text in word.default], ()),
    }
    for place, (texts, more) in places.items():
        known = [*more, "program", *recipe.words]
        for word in (found for text in texts for found in _BRACES.findall(text) if found not in known):
            expected = ", ".join(f"{{{name}}}" for name in known)
            yield f"{place}: {{{word}}} stands for nothing; known there: {expected}"
    added = [*(word for group in restart.add for word in group), *restart.command]
    if not rules.newest and any("{newest}" in word for word in added) and any("*" in name for name in rules.files):
        yield "{newest} would be the first file by name: checkpoint.newest = true makes it the one written last"


def _pattern_problems(name: str, pattern: str, groups: int) -> Iterator[str]:
    try:
        found = re.compile(pattern).groups if pattern else groups
    except re.error as error:
        yield f"{name} is not a pattern: {error}"
    else:
        if groups and found != groups:
            yield f"{name} has {found} groups in parentheses, expected one, around the number"


def _ask_problems(name: str, ask: Ask) -> Iterator[str]:
    given = [what for what in ("signal", "touch", "commands") if getattr(ask, what)]
    if len(given) != 1:
        yield f"{name}: expected one of signal, touch and commands, found {', '.join(given) or 'none'}"
    if ask.signal and ask.signal not in signal.Signals.__members__:
        yield f"{name}.signal is {ask.signal!r}, expected a name such as SIGUSR1"
    if ask.touch and (PurePosixPath(ask.touch).is_absolute() or ".." in PurePosixPath(ask.touch).parts):
        yield f"{name}.touch: {ask.touch!r} is not a name inside of the program's folder"
    if not all(ask.commands):
        yield f"{name}.commands has an empty command"
    _ = ask.every_s, ask.deadline_s
