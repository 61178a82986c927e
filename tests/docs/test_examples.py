"""Every example of the documents runs: Python blocks, and commands whose block says `run`.

The blocks of a page run in order, in one namespace and one empty directory, as a reader would type them. A block that
is meant to fail says so, `python raises=StateError`, and a block `text message` after it is what the error says. Of
other console blocks the `holdfast` commands must at least be such that the command line accepts them.
"""

import random
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


@pytest.fixture
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a page's examples run. They may change the process's random state, which is put back."""
    monkeypatch.delenv("HOLDFAST_BACKGROUND", raising=False)  # as readers have it
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    of_python, of_numpy = random.getstate(), np.random.get_state()
    yield tmp_path
    random.setstate(of_python)
    np.random.set_state(of_numpy)


@pytest.mark.parametrize("path", _RUNNABLE, ids=page_name)
def test_examples_of_the_page_run_as_shown(path: Path, empty_directory: Path) -> None:
    for session in run_page(path):
        # A page need not show what a command prints; what it shows must be true.
        if any(session.shown):
            assert pattern(session.shown) == pattern(session.printed), session.where


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
