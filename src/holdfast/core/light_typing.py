"""What of `typing` the modules need that `holdfast ls` loads: to import `typing` itself would take 3 ms.


Type checkers see the real thing. At run time a protocol is an ordinary class, a type variable its name, and a named
tuple what `collections` makes of its fields.
"""

import sys

# As in holdfast/__init__.py: type checkers know this name.
TYPE_CHECKING = False

# From 3.14 on a class body no longer says what its annotations are.
if TYPE_CHECKING or sys.version_info >= (3, 14):
    from typing import Any, NamedTuple, Protocol, TextIO, TypeVar
else:
    from collections import namedtuple

    class _NamedTupleMaker(type):
        def __new__(cls, name, bases, body):
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = body.pop("__annotations__")
            defaults = [body.pop(field) for field in fields if field in body]
            made = namedtuple(name, fields, defaults=defaults, module=body.pop("__module__"))
            made.__annotations__ = fields
            for attribute, value in body.items():
                setattr(made, attribute, value)
            return made

    class NamedTuple(metaclass=_NamedTupleMaker):
        """A class that derives from it is a named tuple of the fields that it annotates."""

    class Protocol:
        """Says what a caller may expect; nothing is checked at run time."""

    Any = TextIO = object
    TypeVar = str

__all__ = ["Any", "NamedTuple", "Protocol", "TextIO", "TypeVar"]
