"""Finding parts of a tree by their paths, without building it."""

import difflib
from collections.abc import Iterator

from holdfast.core.errors import NoCheckpointError
from holdfast.format.frameworks import Frameworks
from holdfast.format.keys import mapping_entries
from holdfast.format.nodes import Node
from holdfast.format.paths import is_inside, join, join_index, remainder

__all__ = ["MAPPING_KINDS", "array_paths", "entries", "inner", "select"]

MAPPING_KINDS = ("dict", "ordered_dict", "default_dict", "counter")
_ARRAY_KINDS = ("array", "tensor", "jax", "jax_key", "object_array")
_MAX_SEARCHED = 100_000
# Only for spelling keys: needs neither torch nor JAX.
_SPELLING = Frameworks("numpy")


def inner(node: Node) -> Node:
    """What a node of kind `state` holds; any other node itself."""
    while isinstance(node, dict) and node.get("kind") == "state":
        node = node.get("state")
    return node


def entries(node: Node, path: str) -> Iterator[tuple[str, Node]]:
    """The paths and nodes of the parts of a container, of nothing for anything else."""
    node = inner(node)
    if isinstance(node, list):
        yield from ((join_index(path, index), item) for index, item in enumerate(node))
    elif isinstance(node, dict):
        kind = node.get("kind")
        if kind in MAPPING_KINDS:
            yield from ((join(path, key), item) for key, item in mapping_entries(node, _SPELLING))
        elif kind in ("dataclass", "namedtuple") and isinstance(node.get("fields"), dict):
            yield from ((join(path, name), item) for name, item in node["fields"].items())
        elif kind in ("tuple", "deque", "object_array") and isinstance(node.get("of"), list):
            yield from ((join_index(path, index), item) for index, item in enumerate(node["of"]))


def array_paths(node: Node, path: str) -> Iterator[str]:
    """Where the tree holds arrays, and objects that keep their own state."""
    if isinstance(node, dict) and (node.get("kind") in _ARRAY_KINDS or node.get("kind") == "state"):
        found = [place for child, item in entries(node, path) for place in array_paths(item, child)]
        yield from found or [path]
        return
    for child, item in entries(node, path):
        yield from array_paths(item, child)


def select(node: Node, wanted: str) -> tuple[Node, str]:
    """The part at the path. A prefix of keys with dots in them gives the dictionary of what follows it."""
    path = ""
    while path != wanted:
        below = list(entries(node, path))
        step = next(((child, item) for child, item in below if is_inside(wanted, child)), None)
        if step is None:
            flat = {remainder(child, wanted): item for child, item in below if is_inside(child, wanted)}
            if not flat:
                raise _not_there(node, path, wanted)
            return {"kind": "dict", "items": flat}, wanted
        path, node = step
    return node, path


def _not_there(node: Node, path: str, wanted: str) -> NoCheckpointError:
    names: list[str] = []
    _collect(node, path, names)
    near = difflib.get_close_matches(wanted, names[:_MAX_SEARCHED], n=5, cutoff=0.5) or names[:5]
    where = f" in {path}" if path else ""
    return NoCheckpointError(f"the checkpoint has no {wanted!r}{where}", hint=f"it has {', '.join(near) or 'nothing'}")


def _collect(node: Node, path: str, names: list[str]) -> None:
    for child, item in entries(node, path):
        if len(names) < _MAX_SEARCHED:
            names.append(child)
            _collect(item, child, names)
