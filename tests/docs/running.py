"""Runs the examples of a page, as a reader would: in order, in one namespace and in one directory."""

import builtins
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import holdfast
from tests.docs.pages import Block, blocks, page_name

__all__ = ["Session", "pattern", "run_page", "words_of"]

_DEADLINE_S = 120
_ID = re.compile(r"\d{9,}-e\d{3,}-\d{8}T\d{6}Z-a\d{4,}(-\d+)?")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?( ?UTC|Z)?")
_AGE = re.compile(r"just now|\d+ (s|min|h|d)( ago)?\b")
_HOST = re.compile(r"\bon [^\s,]+")
_MADE_BY = re.compile(r"(made by ).*")
_NUMBER = re.compile(r"-?\d[\d,.]*(e[+-]?\d+)?[kMGT%]?")
_UNIT = re.compile(r"# (B|KiB|MiB|GiB)\b")


class Session(NamedTuple):
    """A command of a console block, what is shown below it, and what it printed now."""

    where: str
    shown: list[str]
    printed: list[str]
    line: int
    """The page's line of the command."""


def run_page(path: Path) -> Iterator[Session]:
    """Run the page's examples in the current directory; AssertionError where one does not do what the page says."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    message = ""
    for block in blocks(path):
        if "file" in block.options:
            _write_file(block)
        elif block.language == "python":
            message = _run_python(path, block, namespace)
        elif "message" in block.options:
            assert " ".join(block.text.split()) == " ".join(message.split())
        elif block.language == "console" and "run" in block.options:
            yield from _run_console(path, block)


def words_of(command: str) -> list[str]:
    """The words of a command line, without its prompt and its comment."""
    return shlex.split(command.removeprefix("$ "), comments=True)


def pattern(lines: list[str]) -> list[str]:
    """What stays the same from run to run: words and order, not numbers, ages, ids, times, hosts, widths."""
    found = []
    for line in lines:
        line = _AGE.sub("AGE", _TIME.sub("TIME", _ID.sub("ID", line)))
        line = _HOST.sub("on HOST", _MADE_BY.sub(r"\1…", line))
        line = _UNIT.sub("# unit", _NUMBER.sub("#", line))
        found.append(" ".join(re.sub(r"[─━═-]{2,}", "—", line).split()))
    return [line for line in found if line]


def _write_file(block: Block) -> None:
    name = block.options["file"]
    # Directories that are linked there, such as the examples, are the project's.
    assert name == Path(name).name, f"{name}: a page writes into its own directory"
    Path(name).write_text(block.text)


def _run_python(path: Path, block: Block, namespace: dict[str, object]) -> str:
    """Run the block; the message of the exception that it is meant to raise, or nothing."""
    # Empty lines in front, so that a traceback shows the line of the page.
    code = compile("\n" * (block.line - 1) + block.text, str(path), "exec")
    expected = block.options.get("raises")
    if expected is None:
        exec(code, namespace)
        return ""
    kind = getattr(holdfast, expected, None) or getattr(builtins, expected)
    with pytest.raises(kind) as caught:
        exec(code, namespace)
    assert caught.type is kind
    return f"{expected}: {caught.value}"


def _run_console(path: Path, block: Block) -> Iterator[Session]:
    sessions: list[tuple[int, str, list[str]]] = []
    for number, line in enumerate(block.text.splitlines(), block.line):
        if line.startswith("$ "):
            sessions.append((number, line, []))
        else:
            sessions[-1][2].append(line)
    # Given explicitly: readline, which pytest imports, puts a COLUMNS into what children inherit that nobody set.
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    for number, command, shown in sessions:
        words = words_of(command)
        program = {"holdfast": [sys.executable, "-m", "holdfast"], "python": [sys.executable]}[words[0]]
        done = subprocess.run(
            [*program, *words[1:]], capture_output=True, text=True, timeout=_DEADLINE_S, check=False, env=environment
        )
        where = f"{page_name(path)}:{number}: {command}"
        assert done.returncode == int(block.options.get("exit", 0)), f"{where}\n{done.stdout}{done.stderr}"
        yield Session(where, shown, (done.stdout + done.stderr).splitlines(), number)
