"""A saved tree as an indented list: alike parts once, large parts closed, each with what it weighs."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from holdfast.cli.words import count, size

__all__ = ["Branch", "Item", "grow", "tree_lines"]

_LINES_WANTED = 45
_MAX_DEPTH = 30


class Item(NamedTuple):
    """Something at the end of a path."""

    steps: tuple[str, ...]
    text: str
    """What it is: `float32[64, 128]`, or a plain value."""
    size_bytes: int
    is_array: bool


class Branch:
    """A part of the tree: its own text, if it is the end of a path, and its parts."""

    def __init__(self) -> None:
        self.parts: dict[str, Branch] = {}
        self.text = ""
        self.is_array = False
        self.size_bytes = 0
        self.arrays = 0
        self.values = 0
        self._signature: tuple[object, ...] | None = None

    @property
    def signature(self) -> tuple[object, ...]:
        """Equal for parts of equal structure: the same names, shapes and dtypes; plain values do not count."""
        if self._signature is None:
            inner = tuple((name, part.signature) for name, part in self.parts.items())
            self._signature = (self.text if self.is_array else "", inner)
        return self._signature


def grow(items: Iterable[Item]) -> Branch:
    """The tree of these items."""
    root = Branch()
    for item in items:
        branch = root
        for step in (None, *item.steps):
            branch = branch if step is None else branch.parts.setdefault(step, Branch())
            branch.size_bytes += item.size_bytes
            branch.arrays += item.is_array
            branch.values += not item.is_array
        branch.text, branch.is_array = item.text, item.is_array
    return root


def tree_lines(root: Branch, *, depth: int | None = None) -> list[tuple[str, str]]:
    """(what, weight) for each line. Without a depth, as deep as fits on a screen."""
    if depth is not None:
        return list(_lines(root, depth, 0))
    lines = list(_lines(root, 1, 0))
    for deeper in range(2, _MAX_DEPTH):
        more = list(_lines(root, deeper, 0))
        if len(more) > _LINES_WANTED or len(more) == len(lines):
            break
        lines = more
    return lines


def _lines(branch: Branch, depth: int, level: int) -> Iterator[tuple[str, str]]:
    for names, part in _alike(branch):
        label = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}  ({len(names)} alike)"
        indent = "  " * level
        if not part.parts:
            text = part.text if len(names) == 1 or part.is_array else "values"
            yield f"{indent}{label}  {text}", size(part.size_bytes * len(names)) if part.is_array else ""
            continue
        closed = depth <= 1
        yield f"{indent}{label}{_contents(part, len(names)) if closed else ''}", size(part.size_bytes * len(names))
        if not closed:
            yield from _lines(part, depth - 1, level + 1)


def _alike(branch: Branch) -> Iterator[tuple[list[str], Branch]]:
    """Neighbours with numbers for names and equal structure come as one."""
    group: list[str] = []
    first: Branch | None = None
    for name, part in branch.parts.items():
        numbered = name.strip("[]").isdecimal()
        if first is not None and numbered and part.signature == first.signature and part.arrays:
            group.append(name)
            continue
        if first is not None:
            yield group, first
        group, first = [name], part
        if not numbered:
            yield group, part
            first = None
    if first is not None:
        yield group, first


def _contents(part: Branch, times: int) -> str:
    words = [count(part.arrays * times, "array")] if part.arrays else []
    words += [count(part.values * times, "value")] if part.values else []
    return f"  … {', '.join(words)}"
