"""Modules, functions and files that the documents name exist; layers, events and variables are as in the code."""

import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, blocks, page_name

_CODE = re.compile(r"`([^`\n]+)`")
_DOTTED = re.compile(r"(?:core|format|policy|storage|tiers|engine|agent|cli|checkpointer|testing)(?:\.[A-Za-z_]\w*)+\Z")
_FILE = re.compile(r"(?:src|tests|docs|examples|benchmarks)/[\w./*-]+\Z")
_FILE_NAME = re.compile(r"\.(?:jsonl?|md|py)\Z")


def _exists(dotted: str) -> bool:
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(["holdfast", *parts[:cut]]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            found = getattr(found, name, None)
        return found is not None
    return False


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_code_that_the_page_names_exists(path: Path) -> None:
    named = {text for text in _CODE.findall(path.read_text()) if _DOTTED.match(text) and not _FILE_NAME.search(text)}

    missing = sorted(name for name in named if not _exists(name))

    assert missing == []


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_files_that_the_page_names_exist(path: Path) -> None:
    named = {text for text in _CODE.findall(path.read_text()) if _FILE.match(text)}

    missing = sorted(name for name in named if not (ROOT / name).exists())

    assert missing == []


def test_every_event_of_the_journal_is_described() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    page = (ROOT / "docs/reference/log-and-journal.md").read_text()

    events = set(re.findall(r"\.record\(\s*\"(\w+)\"", sources))

    assert len(events) > 8
    assert sorted(event for event in events if f"| `{event}` |" not in page) == []


def test_every_environment_variable_is_described() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    page = (ROOT / "docs/reference/environment.md").read_text()

    variables = set(re.findall(r"environ(?:\.get\(|\[)\"(\w+)\"", sources))
    variables |= set(re.findall(r"\"(HOLDFAST_\w+)\"", sources))

    assert variables
    assert sorted(name for name in variables if f"`{name}`" not in page) == []


def test_the_layers_of_the_design_are_those_of_the_linter() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    held = next(contract["layers"] for contract in contracts if contract["type"] == "layers")

    drawn = next(
        b.text for b in blocks(ROOT / "docs/explanation/design.md") if held[-1] in b.text and held[0] in b.text
    )

    assert [re.split(r"\s{2,}", line)[0] for line in drawn.splitlines()] == held
