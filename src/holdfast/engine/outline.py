"""The outline of a saved tree: its arrays and plain values, each with its path, without building anything."""

import json
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.core.errors import FormatError
from holdfast.core.limits import MAX_DEPTH
from holdfast.format.frameworks import Frameworks
from holdfast.format.generators import GENERATOR_KINDS
from holdfast.format.nodes import Node
from holdfast.format.plain import decode_plain
from holdfast.format.select import MAPPING_KINDS, entries, inner

__all__ = ["Entry", "outline", "path_steps", "value_text"]

_TEXT_CHARS = 60
_NAMED_PARTS = (*MAPPING_KINDS, "dataclass", "namedtuple")
_PARTS = ("leaf", "items", "pairs", "fields", "of", "data")
_FRAMEWORKS = Frameworks("numpy")


class Entry(NamedTuple):
    """An array or a plain value."""

    path: str
    kind: str
    """A kind of the format, such as `tensor` or `path`; `value` for what JSON itself can say."""
    leaf: int | None
    """Which leaf holds its bytes; None for what stands in the tree itself."""
    node: Node


def outline(tree: Node, root: str = "") -> Iterator[Entry]:
    """Every array and plain value. A sequence of plain values only is one entry, and so is an empty container."""
    return _walk(tree, root, 0)


def path_steps(path: str) -> list[str]:
    """The steps of a path: dots in keys count as steps too, as the names of a state_dict are meant."""
    steps: list[str] = []
    current, index = "", 0
    while index < len(path):
        if path[index] not in ".[":
            current += path[index]
            index += 1
            continue
        steps += [current] if current else []
        current, end = "", index + 1
        if path[index] == "[":
            end = _bracket_end(path, index)
            steps.append(path[index:end])
        index = end
    return [*steps, current] if current else steps


def value_text(node: Node) -> str:
    """A plain value in a few words, for people."""
    try:
        text = repr(decode_plain(node, _FRAMEWORKS))
    except (FormatError, ValueError, TypeError, LookupError, ArithmeticError):
        text = _describe(node)
    return text if len(text) <= _TEXT_CHARS else text[: _TEXT_CHARS - 1] + "…"


def _walk(node: Node, path: str, depth: int) -> Iterator[Entry]:
    if depth > MAX_DEPTH + 1:
        raise FormatError(f"{path[:80]}…: the tree is nested deeper than {MAX_DEPTH}")
    node = inner(node)
    kind = _kind(node)
    if kind == "jax_key":
        node = node.get("data")
    if isinstance(node, dict) and type(node.get("leaf")) is int:
        yield Entry(path, kind, node["leaf"], node)
        return
    parts = list(entries(node, path))
    if not parts or (kind not in _NAMED_PARTS and all(_is_plain(part) for _, part in parts)):
        yield Entry(path, kind, None, node)
        return
    for part_path, part in parts:
        yield from _walk(part, part_path, depth + 1)


def _is_plain(node: Node) -> bool:
    if isinstance(node, dict):
        return inner(node) is node and not any(name in node for name in _PARTS)
    return not isinstance(node, list)


def _kind(node: Node) -> str:
    if isinstance(node, list):
        return "list"
    return str(node.get("kind")) if isinstance(node, dict) else "value"


def _describe(node: Node) -> str:
    kind = _kind(node)
    parts = node if isinstance(node, list) else node.get("of") if isinstance(node, dict) else None
    if isinstance(parts, list):
        some = ", ".join(value_text(part) for part in parts[:5])
        return f"{kind} of {len(parts)}: {some}{', …' if len(parts) > 5 else ''}" if parts else f"empty {kind}"
    if not isinstance(node, dict):
        return repr(node)
    if kind in GENERATOR_KINDS:
        return f"state of a {kind}"
    if kind in _NAMED_PARTS:
        return f"empty {kind}"
    if kind == "enum":
        return f"{str(node.get('type')).rpartition('.')[2]}.{node.get('member')}"
    if isinstance(node.get("base64"), str):
        return f"{kind} of {len(node['base64']) * 3 // 4} bytes"
    rest = {name: value for name, value in node.items() if name != "kind"}
    return f"{kind} {json.dumps(rest, ensure_ascii=False, default=str)}" if rest else kind


def _bracket_end(path: str, start: int) -> int:
    """Where the bracket that opens at `start` ends; quotes inside may hold brackets of their own."""
    depth, quoted, index = 0, False, start
    while index < len(path):
        character = path[index]
        if quoted and character == "\\":
            index += 1
        elif character == '"':
            quoted = not quoted
        elif not quoted and character in "[]":
            depth += 1 if character == "[" else -1
            if depth == 0:
                return index + 1
        index += 1
    return len(path)
