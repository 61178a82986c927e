"""Rebuilding objects of user classes from their fields, without running any of their code but the enum's own lookup."""

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any

from holdfast.format.nodes import Node, field, malformed
from holdfast.format.registry import Record, is_namedtuple_class, known_class, type_name

__all__ = ["find_class", "make_object", "misfit", "named_fields", "read_enum"]


def find_class(node: Node, like: object) -> type | None:
    """The class of the program's object at that place, else the registered one of that name, else None."""
    name = field(node, "type", str)
    cls = type(like)
    if not _is_of_kind(cls, node["kind"]) or not _goes_by(cls, name):
        found = known_class(name)
        return found if found is not None and _is_of_kind(found, node["kind"]) else None
    return cls


def named_fields(node: Node) -> dict[str, Node]:
    """The nodes of the fields of a dataclass or named tuple."""
    return field(node, "fields", dict)


def misfit(cls: type, names: Sequence[str]) -> str:
    """How the fields of the class differ from those names; empty where they are the same."""
    if is_namedtuple_class(cls):
        own: Sequence[str] = cls._fields  # type: ignore[attr-defined]
        same = list(own) == list(names)
    else:
        own = [f.name for f in dataclasses.fields(cls)]
        same = set(own) == set(names)
    return "" if same else f"the class {cls.__qualname__} has the fields {sorted(own)}, the checkpoint {sorted(names)}"


def make_object(node: Node, cls: type | None, names: Sequence[str], values: Sequence[object]) -> Any:
    """A dataclass instance or named tuple with those fields; a Record where the class is not known."""
    if cls is None:
        return Record(node["type"], node["kind"], zip(names, values, strict=True))
    if is_namedtuple_class(cls):
        return tuple.__new__(cls, values)
    made: Any = object.__new__(cls)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)  # frozen ones too
    return made


def read_enum(node: Node, cls: type | None, value: object) -> Any:
    """The member, or a Record where the class is not known; LookupError where the class has no such member."""
    name = node.get("member")
    if name is not None and not isinstance(name, str):
        raise malformed(node, "member to be text")
    if cls is None or not issubclass(cls, enum.Enum):
        return Record(node["type"], "enum", [("member", name), *([("value", value)] if "value" in node else [])])
    if name is not None and name in cls.__members__:
        return cls.__members__[name]
    try:
        return cls(value)  # a combination of flags has no member of its own
    except ValueError:
        raise LookupError(f"the enum {cls.__qualname__} has no member {name!r}") from None


def _is_of_kind(cls: type, kind: str) -> bool:
    if kind == "enum":
        return issubclass(cls, enum.Enum)
    return is_namedtuple_class(cls) if kind == "namedtuple" else dataclasses.is_dataclass(cls)


def _goes_by(cls: type, name: str) -> bool:
    # The module may differ: a script is `__main__` when it runs and `train` when it is imported.
    return type_name(cls) == name or name.endswith(f".{cls.__qualname__}")
