"""Every example of the documents runs: Python blocks, and commands whose block says `run`.

The blocks of a page run in order, in one namespace and one empty directory, as a reader would type them. A block that
is meant to fail says so, `python raises=StateError`, and a block `text message` after it is what the error says. Of
other console blocks the `holdfast` commands must at least be such that the command line accepts them.
"""

import builtins
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import holdfast
from holdfast.cli import main as cli
from holdfast.cli.parser import make_parser
from tests.docs.pages import PAGES, ROOT, Block, blocks, page_name

_DEADLINE_S = 120
_ID = re.compile(r"\d{9,}-e\d{3,}-\d{8}T\d{6}Z-a\d{4,}(-\d+)?")
_AGE = re.compile(r"just now|\d+ (s|min|h|d) ago")
_HOST = re.compile(r"(pid \d+ on) [^\s,]+")
_MADE_BY = re.compile(r"(made by ).*")
_NUMBER = re.compile(r"-?\d[\d,.]*(e[+-]?\d+)?[kMGT%]?")
_UNIT = re.compile(r"# (B|KiB|MiB|GiB|ns|us|µs|ms|s|min|h|d)\b")

_RUNNABLE = [path for path in PAGES if any(b.language == "python" or "run" in b.options for b in blocks(path))]
_COMMANDS = [
    pytest.param(path, line, command, id=f"{page_name(path)}:{line}")
    for path in PAGES
    for block in blocks(path)
    if block.language == "console"
    for line, command in enumerate(block.text.splitlines(), block.line)
    if command.startswith("$ holdfast")
]


@pytest.fixture
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a page's examples run. They may change the process's random state, which is put back."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    of_python, of_numpy = random.getstate(), np.random.get_state()
    yield tmp_path
    random.setstate(of_python)
    np.random.set_state(of_numpy)


@pytest.mark.parametrize("path", _RUNNABLE, ids=page_name)
def test_examples_of_the_page_run_as_shown(path: Path, empty_directory: Path) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    message = ""

    for block in blocks(path):
        if block.language == "python":
            message = _run_python(path, block, namespace)
        elif "message" in block.options:
            assert " ".join(block.text.split()) == " ".join(message.split())
        elif block.language == "console" and "run" in block.options:
            _run_console(path, block)


@pytest.mark.parametrize(("path", "line", "command"), _COMMANDS)
def test_commands_of_the_documents_are_accepted(path: Path, line: int, command: str) -> None:
    words = _words(command)[1:]

    if words[0] in ("--version", "--help"):
        return
    assert words[0] in cli.COMMANDS
    name = cli._MODULES.get(words[0], words[0])
    module = import_module(f"holdfast.cli.commands.{name}")
    parser = make_parser(words[0], summary=module.SUMMARY, examples=module.EXAMPLES)
    module.add_arguments(parser)
    parser.parse_args(words[1:])  # UsageError where it makes no sense


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
    return f"{kind.__name__}: {caught.value}"


def _run_console(path: Path, block: Block) -> None:
    """Run the commands; what is shown below a command, if anything, is what it prints, numbers and spaces aside."""
    shown: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            shown.append((line, []))
        else:
            shown[-1][1].append(line)
    for command, output in shown:
        words = _words(command)
        program = {"holdfast": [sys.executable, "-m", "holdfast"], "python": [sys.executable]}.get(words[0], words[:1])
        done = subprocess.run([*program, *words[1:]], capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
        where = f"{page_name(path)}:{block.line}: {command}"
        assert done.returncode == int(block.options.get("exit", 0)), f"{where}\n{done.stdout}{done.stderr}"
        if any(output):
            assert _pattern(output) == _pattern((done.stdout + done.stderr).splitlines()), where


def _words(command: str) -> list[str]:
    """The words of a command line, without its comment."""
    return shlex.split(command.removeprefix("$ "), comments=True)


def _pattern(lines: list[str]) -> list[str]:
    """What stays the same from run to run: words and order, not numbers, ages, ids, hosts, widths."""
    found = []
    for line in lines:
        line = _MADE_BY.sub(r"\1…", _HOST.sub(r"\1 HOST", _AGE.sub("# ago", _ID.sub("ID", line))))
        line = _UNIT.sub("# unit", _NUMBER.sub("#", line))
        line = re.sub(r"[─━═-]{2,}", "—", line)
        found.append(" ".join(line.split()))
    return [line for line in found if line]
