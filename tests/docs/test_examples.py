"""Every example of the documents runs: Python blocks, and commands whose block says `run`.

The blocks of a page run in order, in one namespace and one empty directory, as a reader would type them. A block that
is meant to fail says so, `python raises=StateError`, and a block `text message` after it is what the error says. One
with a name, `python file=train.py`, is written to that file, and a command of the page has to run it. Of other console
blocks the `holdfast` commands must at least be such that the command line accepts them.
"""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from holdfast.cli.dispatch import COMMANDS, module_of
from holdfast.cli.parser import make_parser
from tests.docs.pages import PAGES, ROOT, blocks, page_name
from tests.docs.running import pattern, run_page, words_of

_RUNNABLE = [path for path in PAGES if any(b.language == "python" or "run" in b.options for b in blocks(path))]
_COMMANDS = [
    pytest.param(command, id=f"{page_name(path)}:{line}")
    for path in PAGES
    for block in blocks(path)
    if block.language == "console"
    for line, command in enumerate(block.text.splitlines(), block.line)
    if command.startswith("$ holdfast")
]


_ALONE = "HOLDFAST_TESTS_ALONE"
_DEADLINE_S = 120
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a page's examples run. They may change random state, environment and handlers, which are put back."""
    monkeypatch.delenv("HOLDFAST_BACKGROUND", raising=False)  # as readers have it
    monkeypatch.setattr("holdfast.agent.background._PATIENCE_S", 60.0)  # a busy machine is none that hangs
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    of_python, of_numpy, environ = random.getstate(), np.random.get_state(), dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    yield tmp_path
    for number, handler in handlers.items():
        signal.signal(number, handler)
    os.environ.clear()
    os.environ.update(environ)
    random.setstate(of_python)
    np.random.set_state(of_numpy)


def run_alone(test: str) -> None:
    """In a process of its own: what other tests have left in this one would hear the signals of the page, too."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", test],
        cwd=ROOT,
        env={**environ, _ALONE: "1"},
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.parametrize("path", _RUNNABLE, ids=page_name)
def test_examples_of_the_page_run_as_shown(path: Path, empty_directory: Path, request: pytest.FixtureRequest) -> None:
    if "os.kill(os.getpid()" in path.read_text() and not os.environ.get(_ALONE):
        run_alone(request.node.nodeid)
        return
    for session in run_page(path):
        # A page need not show what a command prints; what it shows must be true.
        if any(session.shown):
            assert pattern(session.shown) == pattern(session.printed), session.where


def test_a_block_with_a_file_name_is_written_to_that_file_and_not_run(empty_directory: Path) -> None:
    page = empty_directory / "page.md"
    page.write_text("```python file=train.py\nraise SystemExit('run')\n```\n")

    assert list(run_page(page)) == []

    assert (empty_directory / "train.py").read_text() == "raise SystemExit('run')\n"


def test_a_block_cannot_be_written_outside_of_the_directory_of_the_page(empty_directory: Path) -> None:
    page = empty_directory / "page.md"
    page.write_text("```python file=examples/demo.py\npass\n```\n")

    with pytest.raises(AssertionError, match="its own directory"):
        list(run_page(page))


@pytest.mark.parametrize("path", _RUNNABLE, ids=page_name)
def test_every_file_that_the_page_shows_is_run_by_a_command(path: Path) -> None:
    not_run: dict[str, int] = {}
    replaced = []
    for block in blocks(path):
        name = block.options.get("file")
        if name is not None:
            replaced += [not_run[name]] if name in not_run else []
            not_run[name] = block.line
        elif block.language == "console" and "run" in block.options:
            words = {word for line in block.text.splitlines() if line.startswith("$ ") for word in words_of(line)}
            not_run = {name: line for name, line in not_run.items() if name not in words}

    assert [*replaced, *not_run.values()] == [], "blocks that nothing runs, by their line"


@pytest.mark.parametrize("command", _COMMANDS)
def test_commands_of_the_documents_are_accepted(command: str) -> None:
    words = words_of(command)[1:]

    if words[0] in ("--version", "--help"):
        return
    assert words[0] in COMMANDS
    module = import_module(module_of(words[0]))
    parser = make_parser(words[0], summary=module.SUMMARY, examples=module.EXAMPLES)
    module.add_arguments(parser)
    parser.parse_args(words[1:])  # UsageError where it makes no sense
