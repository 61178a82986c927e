"""A saved tree as an indented list: alike parts once, large parts closed, each with what it weighs.

What fits a screen is opened: first the program's own containers, which people know by name, then what objects say of
themselves in a `state_dict`; the private fields of those are one line.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from holdfast.cli.words import count, size

__all__ = ["Branch", "Item", "Steps", "grow", "tree_lines"]

_LINES_WANTED = 40
_PARTS_OPENED = 20
"""A part that would take more lines than this stays closed, unless a depth is given."""
_PRIVATE = "private fields"


Steps = tuple[str, ...]


class Item(NamedTuple):
    """Something at the end of a path."""

    steps: Steps
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
        self.is_object = False
        """Whether this is the `state_dict` of an object."""
        self.stays_closed = False
        self._signature: tuple[object, ...] | None = None

    def add(self, other: "Branch") -> None:
        """Count the other's contents as its own."""
        self.size_bytes += other.size_bytes
        self.arrays += other.arrays
        self.values += other.values

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


def grow(items: Iterable[Item], objects: Collection[Steps] = ()) -> Branch:
    """The tree of these items. `objects` are the places where an object's `state_dict` begins."""
    root = Branch()
    for item in items:
        branch = root
        for step in (None, *item.steps):
            branch = branch if step is None else branch.parts.setdefault(step, Branch())
            branch.size_bytes += item.size_bytes
            branch.arrays += item.is_array
            branch.values += not item.is_array
        branch.text, branch.is_array = item.text, item.is_array
    for steps in objects:
        found: Branch | None = root
        for step in steps:
            found = found.parts.get(step) if found is not None else None
        if found is not None:
            found.is_object = True
    return root


def tree_lines(root: Branch, *, depth: int | None = None) -> list[tuple[str, str]]:
    """(what, weight) for each line; without a depth, opened as far as fits on a screen."""
    if depth is None:
        _fold_private(root)
    opened = _to_depth(root, depth) if depth is not None else _to_screen(root)
    return list(_lines(root, opened, 0))


def _to_depth(root: Branch, depth: int) -> set[int]:
    opened, level = {id(root)}, [root]
    for _ in range(depth - 1):
        level = [row.part for branch in level for row in _rows(branch)]
        opened.update(id(branch) for branch in level)
    return opened


def _to_screen(root: Branch) -> set[int]:
    """Level by level, what still fits: the program's own containers first, then objects."""
    opened, lines = {id(root)}, len(_rows(root))
    for of_objects in (False, True):
        level = [root]
        while level:
            below = []
            for branch in level:
                parts = [part for part in _openable(branch) if of_objects or not part.is_object]
                # Below the top, neighbours are opened together or not at all: half of them open would look like a rule.
                for group in [[part] for part in parts] if branch is root else [parts]:
                    more = sum(len(_rows(part)) for part in group if id(part) not in opened)
                    if lines + more <= _LINES_WANTED:
                        opened.update(map(id, group))
                        lines += more
                below += [part for part in parts if id(part) in opened]
            level = below
    return opened


def _openable(branch: Branch) -> list[Branch]:
    parts = [row.part for row in _rows(branch) if row.part.parts and not row.part.stays_closed]
    return [part for part in parts if len(_rows(part)) <= _PARTS_OPENED]


def _fold_private(root: Branch) -> None:
    """Put the private fields of objects into one part that stays closed. Arrays are never hidden by their names."""
    pending = [(root, False)]  # not recursive: a key with thousands of dots makes a tree as deep
    while pending:
        branch, inside_object = pending.pop()
        inside_object = inside_object or branch.is_object
        pending += [(part, inside_object) for part in branch.parts.values()]
        private = [name for name, part in branch.parts.items() if name.startswith("_") and not part.arrays]
        if inside_object and 1 < len(private) < len(branch.parts):
            folded = Branch()
            folded.stays_closed = True
            folded.parts = {name: branch.parts.pop(name) for name in private}
            for part in folded.parts.values():
                folded.add(part)
            branch.parts[_PRIVATE] = folded


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
