"""User classes by name: which ones may be rebuilt from data, and what stands in for those that are not known.

A name found in the data is only ever looked up here, never imported (I10).
"""

import dataclasses
import enum
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

from holdfast.core.calls import public_call
from holdfast.core.errors import UsageError

__all__ = ["Record", "is_namedtuple_class", "known_class", "register", "type_name"]

_Class = TypeVar("_Class", bound=type)

_by_name: dict[str, type] = {}
_names: dict[type, str] = {}


class Record(dict[str, Any]):
    """The fields of an object whose class is not at hand. `type_name` says what it was; saving it keeps that."""

    type_name: str
    kind: str

    def __init__(self, type_name: str, kind: str, fields: Iterable[tuple[str, Any]] = ()) -> None:
        super().__init__(fields)
        self.type_name = type_name
        self.kind = kind

    def __eq__(self, other: object) -> bool:
        same_type = isinstance(other, Record) and (other.type_name, other.kind) == (self.type_name, self.kind)
        return same_type and super().__eq__(other)

    # A member of an unknown enum may be a dictionary key. The fields may change, the type does not.
    def __hash__(self) -> int:  # type: ignore[override]  # dict is unhashable, this one is not
        return hash((self.type_name, self.kind))

    def __repr__(self) -> str:
        return f"Record({self.type_name}, {super().__repr__()})"


@overload
def register(cls: _Class, *, name: str | None = None) -> _Class: ...
@overload
def register(cls: None = None, *, name: str | None = None) -> Callable[[_Class], _Class]: ...
@public_call("holdfast.register")
def register(cls: _Class | None = None, *, name: str | None = None) -> _Class | Callable[[_Class], _Class]:
    """Let a dataclass, named tuple or enum be rebuilt wherever a checkpoint holds one. Also a decorator.

    Give a `name` of your own to be free to move or rename the class later.
    """
    if cls is None:
        return lambda decorated: _register(decorated, name)
    return _register(cls, name)


def type_name(cls: type) -> str:
    """The name that a class goes by in checkpoints."""
    return _names.get(cls) or f"{cls.__module__}.{cls.__qualname__}"


def known_class(name: str) -> type | None:
    """The class that was registered by that name."""
    return _by_name.get(name)


def is_namedtuple_class(cls: type) -> bool:
    """Whether the class was made by `namedtuple` or `NamedTuple`."""
    return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


def _register(cls: _Class, name: str | None) -> _Class:
    if not isinstance(cls, type) or not (
        dataclasses.is_dataclass(cls) or issubclass(cls, enum.Enum) or is_namedtuple_class(cls)
    ):
        raise UsageError(
            f"{cls!r} cannot be registered: it is no dataclass, named tuple or enum",
            hint="give the class the methods state_dict and load_state_dict instead",
        )
    chosen = f"{cls.__module__}.{cls.__qualname__}" if name is None else name
    other = _by_name.get(chosen)
    # The same class defined again (a notebook cell run twice) replaces the older one.
    if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
        raise UsageError(f"the name {chosen!r} is taken by {other!r}", hint="choose another name=")
    _by_name[chosen] = cls
    _names[cls] = chosen
    return cls
