"""Reading the fields of a node that came out of a file and may hold anything."""

import binascii
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.core.errors import FormatError, printable

__all__ = ["Node", "base64_field", "base64_text", "field", "flag", "int_list", "malformed", "optional_field"]

Node = Any
"""What JSON can hold: None, bool, int, float, str, list, dict."""

_T = TypeVar("_T")


def malformed(node: Node, expected: str) -> FormatError:
    """The error for a node that is not what the format says."""
    kind = node.get("kind") if isinstance(node, dict) else type(node).__name__
    return FormatError(f"a node of kind {printable(kind)[:40]!r} is malformed: expected {expected}")


def field(node: Node, name: str, kind: type[_T]) -> _T:
    """The field, which must be there and of exactly that type (True is no int)."""
    value = node.get(name)
    if type(value) is not kind:
        raise malformed(node, f"{name} to be {kind.__name__}, found {type(value).__name__}")
    return value


def optional_field(node: Node, name: str, kind: type[_T], default: _T) -> _T:
    """The field, or the default where it is not there."""
    return field(node, name, kind) if name in node else default


def flag(node: Node, name: str) -> bool:
    """Whether the node has the flag set."""
    return optional_field(node, name, bool, default=False)


def int_list(node: Node, name: str, limit: int, accept: Callable[[int], bool] = lambda _: True) -> list[int]:
    """A list of at most `limit` ints, each of which is accepted."""
    values = field(node, name, list)
    if len(values) > limit or not all(type(value) is int and accept(value) for value in values):
        raise malformed(node, f"{name} to be at most {limit} suitable whole numbers")
    return values


def base64_text(data: bytes | bytearray | memoryview) -> str:
    """The bytes as they stand in JSON."""
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def base64_field(node: Node, name: str = "base64") -> bytes:
    """The bytes of a base64 field."""
    try:
        return binascii.a2b_base64(field(node, name, str), strict_mode=True)
    except ValueError as error:
        raise malformed(node, f"{name} to be base64") from error
