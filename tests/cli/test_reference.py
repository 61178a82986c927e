"""docs/reference/cli.md says what the command line has: every command, option and exit status."""

import re
from argparse import ArgumentParser
from importlib import import_module
from pathlib import Path

import pytest

from holdfast.cli.commands.submit import SCHEDULERS, parser_of
from holdfast.cli.dispatch import COMMANDS, module_of
from holdfast.cli.exit_codes import EXIT_CODES

_PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")


def _section(command: str) -> str:
    return _PAGE.partition(f"\n### {command}\n")[2].partition("\n## ")[0].partition("\n### ")[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_reference_names_every_option_and_no_other(command):
    parser = ArgumentParser(add_help=False)
    import_module(module_of(command)).add_arguments(parser)
    options = {text for action in parser._actions for text in action.option_strings if text.startswith("--")}

    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", _section(command)))

    assert options - {"--newest"} <= named
    assert named - {"--json"} <= options


@pytest.mark.parametrize("scheduler", ["slurm"])
def test_the_reference_names_every_option_of_a_scheduler(scheduler):
    parser = parser_of(scheduler, import_module(SCHEDULERS[scheduler]))
    options = {text for action in parser._actions for text in action.option_strings if text.startswith("--")}

    described = set(re.findall(r"^\| `(--[a-z-]+)", _section(f"submit {scheduler}"), re.MULTILINE))

    assert described == options - {"--json", "--help"}


def test_the_contents_of_the_reference_name_every_command_below_its_part():
    contents, _, page = _PAGE.partition("\n## For all commands\n")
    listed = {
        part: re.findall(r"\[`([a-z ]+)`\]", commands)
        for part, commands in re.findall(r"^- \[(\w+)\]\(#\w+\): (.+)$", contents, re.MULTILINE)
    }

    parts = [(part.partition("\n")[0], re.findall(r"^### (.+)$", part, re.MULTILINE)) for part in page.split("\n## ")]

    assert listed == {part: commands for part, commands in parts if commands}


def test_the_reference_has_the_table_of_exit_codes():
    rows = dict(re.findall(r"^\| (\d+) \| (.+) \|$", _PAGE, re.MULTILINE))

    assert rows == {str(code): meaning for code, meaning in EXIT_CODES.items()}
