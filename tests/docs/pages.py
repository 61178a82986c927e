"""The project's pages, taken apart: their fenced blocks, their headings, their links."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["PAGES", "ROOT", "Block", "anchors", "blocks", "links", "page_name"]

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

_FENCE = re.compile(r"(?P<indent> *)```(?P<info>[^`]*)\Z")
_LINK = re.compile(r"(?<!!)\[[^\]\n]+\]\(([^)\s]+)\)|!\[[^\]\n]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"#{1,6}\s+(.*?)\s*#*\Z")
_CODE_SPAN = re.compile(r"`[^`\n]*`")


class Block(NamedTuple):
    """A fenced block: what it is, and where its text begins."""

    language: str
    options: dict[str, str]
    """The words after the language: `raises=StateError`, `run`."""
    line: int
    text: str


def page_name(path: Path) -> str:
    """The page as messages and test ids call it."""
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    opened: Block | None = None
    indent = ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        fence = _FENCE.match(line)
        if opened is None and fence is not None:
            words = fence["info"].split() or [""]
            options = dict(word.partition("=")[::2] for word in words[1:])
            opened, indent = Block(words[0], options, number + 1, ""), fence["indent"]
        elif opened is not None and line.strip() == "```":
            yield opened
            opened = None
        elif opened is not None:
            opened = opened._replace(text=opened.text + line.removeprefix(indent) + "\n")
    assert opened is None, f"{page_name(path)}:{opened.line}: the block is not closed"


def links(path: Path) -> Iterator[tuple[int, str]]:
    """The line and the target of every link and image outside of code."""
    for number, line in _prose(path):
        for match in _LINK.finditer(_CODE_SPAN.sub(_blank, line)):
            yield number, match[1] or match[2]


def anchors(path: Path) -> set[str]:
    """What a link to this page may name after `#`, as GitHub makes it of the headings."""
    found = set()
    for _, line in _prose(path):
        heading = _HEADING.match(line)
        if heading is not None:
            kept = re.sub(r"[^\w\- ]", "", heading[1].replace("`", "").lower())
            found.add(kept.replace(" ", "-"))
    return found


def _blank(code: re.Match[str]) -> str:
    # A link's text may be code, `[`name`](page)`; what looks like a link inside of code is none.
    return "x" * len(code[0])


def _prose(path: Path) -> Iterator[tuple[int, str]]:
    inside = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if _FENCE.match(line) or line.strip() == "```":
            inside = not inside
        elif not inside:
            yield number, line
