"""Keys of dictionaries and elements of sets: hashable values without arrays."""

from collections.abc import Collection, Iterable
from typing import Any

from holdfast.core.errors import UnsupportedError
from holdfast.core.limits import MAX_DEPTH
from holdfast.format.classes import find_class, make_object, misfit, named_fields, read_enum
from holdfast.format.foreign import FOREIGN_DECODERS
from holdfast.format.frameworks import Frameworks
from holdfast.format.nodes import Node, base64_field, field, malformed
from holdfast.format.plain import decode_plain
from holdfast.format.registry import type_name

__all__ = ["decode_key", "mapping_entries"]


def decode_key(node: Node, frameworks: Frameworks, models: Iterable[object] = (), depth: int = 0) -> Any:
    """The value of a key's node. `models` are the keys that the program has at that place: their classes are used."""
    if type(node) is not dict:
        return decode_plain(node, frameworks)
    if depth > MAX_DEPTH:
        raise malformed(node, f"at most {MAX_DEPTH} levels")
    kind = node.get("kind")
    if kind in ("tuple", "frozenset"):
        parts = (decode_key(part, frameworks, models, depth + 1) for part in field(node, "of", list))
        return tuple(parts) if kind == "tuple" else frozenset(parts)
    if kind == "bytes":
        return base64_field(node)
    if kind == "enum":
        try:
            return read_enum(node, _class_of(node, models), decode_plain(node.get("value"), frameworks))
        except LookupError as error:
            raise UnsupportedError(str(error), hint="give the class that member back") from None
    if kind == "namedtuple":
        fields = named_fields(node)
        cls = _class_of(node, models)
        values = [decode_key(part, frameworks, models, depth + 1) for part in fields.values()]
        return make_object(node, None if cls is None or misfit(cls, list(fields)) else cls, list(fields), values)
    if kind in FOREIGN_DECODERS:
        return FOREIGN_DECODERS[kind](node, frameworks)
    return decode_plain(node, frameworks)


def mapping_entries(node: Node, frameworks: Frameworks, models: Iterable[object] = ()) -> Collection[tuple[Any, Node]]:
    """The keys, decoded, and the nodes of the values."""
    if "items" in node:
        return field(node, "items", dict).items()
    entries = []
    for pair in field(node, "pairs", list):
        if type(pair) is not list or len(pair) != 2:
            raise malformed(node, "pairs to be lists of a key and a value")
        entries.append((decode_key(pair[0], frameworks, models), pair[1]))
    return entries


def _class_of(node: Node, models: Iterable[object]) -> type | None:
    name = field(node, "type", str)
    return find_class(node, next((model for model in models if type_name(type(model)) == name), None))
