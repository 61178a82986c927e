"""A saved tree as an indented list: alike parts once, large parts closed, each with what it weighs."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from holdfast.cli.words import count, size

__all__ = ["Branch", "Item", "grow", "tree_lines"]

_LINES_WANTED = 40
_PARTS_OPENED = 20
"""A part that would take more lines than this stays closed, unless a depth is given."""


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


class _Row(NamedTuple):
    """One line: alike neighbours, of which the first stands for all."""

    label: str
    times: int
    part: Branch


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
    """(what, weight) for each line; without a depth, opened as far as fits on a screen."""
    opened = _to_depth(root, depth) if depth is not None else _to_screen(root)
    return list(_lines(root, opened, 0))


def _to_depth(root: Branch, depth: int) -> set[int]:
    opened, level = {id(root)}, [root]
    for _ in range(depth - 1):
        level = [row.part for branch in level for row in _rows(branch)]
        opened.update(id(branch) for branch in level)
    return opened


def _to_screen(root: Branch) -> set[int]:
    """Level by level, what still fits."""
    opened, level, lines = {id(root)}, [root], len(_rows(root))
    while level:
        below = [row.part for branch in level if id(branch) in opened for row in _rows(branch) if row.part.parts]
        for branch in below:
            more = len(_rows(branch))
            if more <= _PARTS_OPENED and lines + more <= _LINES_WANTED:
                opened.add(id(branch))
                lines += more
        level = below
    return opened


def _lines(branch: Branch, opened: set[int], level: int) -> Iterator[tuple[str, str]]:
    for label, times, part in _rows(branch):
        indent = "  " * level
        weight = size(part.size_bytes * times) if part.size_bytes else ""
        if not part.parts:
            yield f"{indent}{label}  {part.text if times == 1 or part.is_array else 'values'}", weight
        elif id(part) in opened:
            yield f"{indent}{label}", weight
            yield from _lines(part, opened, level + 1)
        else:
            yield f"{indent}{label}  … {_contents(part, times)}", weight


def _rows(branch: Branch) -> list[_Row]:
    rows: list[_Row] = []
    group: list[str] = []
    first: Branch | None = None
    for name, part in branch.parts.items():
        if first is not None and _is_number(name) and part.signature == first.signature and part.arrays:
            group.append(name)
            continue
        if first is not None:
            rows.append(_row(group, first))
        group, first = [name], part
        if not _is_number(name):
            rows.append(_row(group, part))
            first = None
    if first is not None:
        rows.append(_row(group, first))
    return rows


def _row(names: list[str], part: Branch) -> _Row:
    inner = ""
    while len(part.parts) == 1 and not part.text:  # a part with a single part is no level of its own
        ((name, part),) = part.parts.items()
        inner += name if name.startswith("[") else f".{name}"
    times = len(names)
    label = names[0] if times == 1 else f"{names[0]} … {names[-1]}"
    return _Row(label + inner + (f"  ({times} alike)" if times > 1 else ""), times, part)


def _is_number(name: str) -> bool:
    return name.strip("[]").isdecimal()


def _contents(part: Branch, times: int) -> str:
    words = [count(part.arrays * times, "array")] if part.arrays else []
    words += [count(part.values * times, "value")] if part.values else []
    return ", ".join(words)
