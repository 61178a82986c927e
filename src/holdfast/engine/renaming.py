"""Moving parts of a checkpoint's tree to the places where the program has them now."""

from collections.abc import Mapping
from typing import Any

from holdfast.core.errors import UsageError
from holdfast.format.frameworks import Frameworks
from holdfast.format.keys import mapping_entries
from holdfast.format.nodes import Node
from holdfast.format.paths import is_inside, join, remainder
from holdfast.format.plain import PLAIN_ENCODERS, encode_plain
from holdfast.format.select import MAPPING_KINDS, inner
from holdfast.format.stateful import is_stateful

__all__ = ["rename_tree"]

_SPELLING = Frameworks("numpy")


def rename_tree(tree: Node, state: Mapping[str, object], rename: Mapping[str, str]) -> tuple[Node, list[str]]:
    """The tree with every `old.path` moved to its `new.path`, and what went wrong: unused entries, places taken twice.

    The program's state says where a path is one key with dots and where it is several steps.
    """
    if not isinstance(rename, Mapping) or not all(type(path) is str for pair in rename.items() for path in pair):
        raise UsageError(f"rename is {rename!r}, expected a mapping", hint="rename={'old.path': 'new.path'}")
    mover = _Mover(state, rename)
    tree = mover.take(tree, "")
    problems = [f"rename {old!r}: the checkpoint has no such path" for old in rename if old not in mover.used]
    for path, node in mover.moved:
        problem = mover.put(tree, path, node)
        problems.extend([problem] if problem else [])
    return tree, problems


class _Mover:
    def __init__(self, state: Mapping[str, object], rename: Mapping[str, str]) -> None:
        self.used: set[str] = set()
        self.moved: list[tuple[str, Node]] = []
        self._state = state
        # The longest first: the more exact entry wins.
        self._rename = dict(sorted(rename.items(), key=lambda item: -len(item[0])))
        self._known: dict[str, tuple[Mapping[Any, Any], dict[str, Any]]] = {}

    def take(self, node: Node, path: str) -> Node:
        """A copy of the mappings on the way, without what is to be moved."""
        if isinstance(node, dict) and node.get("kind") == "state":
            return node | {"state": self.take(node.get("state"), path)}
        if not isinstance(node, dict) or node.get("kind") not in MAPPING_KINDS:
            return node
        kept = []
        for key, item in mapping_entries(node, _SPELLING):
            child = join(path, key)
            old = next((old for old in self._rename if is_inside(child, old)), None)
            if old is not None:
                self.used.add(old)
                if any(other != child and is_inside(other, child) for other in self._rename):
                    self.take(item, child)  # a more exact entry lies deeper: its parts move one by one
                else:
                    self.moved.append((self._rename[old] + child[len(old) :], item))
            elif any(is_inside(old, child) for old in self._rename):
                rest = self.take(item, child)
                # What was emptied by the move is gone, not an empty dictionary that the program lacks.
                if _items(inner(rest)) or not _items(inner(item)):
                    kept.append((key, rest))
            else:
                kept.append((key, item))
        return _with_entries(node, kept, path)

    def put(self, tree: Node, wanted: str, moved: Node) -> str:
        """Insert at the wanted path; says what is in the way, if anything."""
        node, path, like = inner(tree), "", self._state
        while True:
            known, places = self._look(like, path)
            step = next((cut for cut in _prefixes(wanted) if cut in places), None)
            key = places[step] if step is not None else remainder(wanted, path)
            if not isinstance(node, dict) or node.get("kind") not in MAPPING_KINDS:
                return f"rename to {wanted!r}: the checkpoint has no dictionary at {path!r} to put it into"
            if step is None or step == wanted:
                return _insert(node, key, moved, wanted)
            below = next((item for other, item in _items(node) if other == key), None)
            if below is None:
                below = {"kind": "dict", "items": {}}
                _insert(node, key, below, step)
            node, path, like = inner(below), step, known[key]

    def _look(self, like: Any, path: str) -> tuple[Mapping[Any, Any], dict[str, Any]]:
        if path not in self._known:
            value = like.state_dict() if is_stateful(like) else like
            known = value if isinstance(value, Mapping) else {}
            self._known[path] = known, {join(path, key): key for key in known}
        return self._known[path]


def _prefixes(path: str) -> list[str]:
    """The path and everything that it is inside of, longest first: an exact flat key wins over a step."""
    cuts = [index for index, mark in enumerate(path) if mark in ".[" and index]
    return [path, *(path[:cut] for cut in reversed(cuts))]


def _items(node: Node) -> list[tuple[Any, Node]]:
    is_mapping = isinstance(node, dict) and node.get("kind") in MAPPING_KINDS
    return list(mapping_entries(node, _SPELLING)) if is_mapping else []


def _with_entries(node: dict[str, Any], kept: list[tuple[Any, Node]], path: str) -> dict[str, Any]:
    if "items" in node:
        return node | {"items": dict(kept)}
    places = {join(path, key): item for key, item in kept}
    spelled = [(join(path, key), pair) for (key, _), pair in zip(_items(node), node["pairs"], strict=True)]
    return node | {"pairs": [[pair[0], places[place]] for place, pair in spelled if place in places]}


def _insert(node: dict[str, Any], key: Any, item: Node, wanted: str) -> str:
    if type(key) not in PLAIN_ENCODERS:
        return f"rename to {wanted!r}: keys of type {type(key).__name__} cannot be renamed to"
    if any(other == key for other, _ in _items(node)):
        return f"rename to {wanted!r}: the checkpoint has something there already"
    if "items" in node and type(key) is str:
        node["items"][key] = item
        return ""
    if "items" in node:
        node["pairs"] = [[name, value] for name, value in node.pop("items").items()]
    node["pairs"].append([encode_plain(key), item])
    return ""
