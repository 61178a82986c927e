"""How places in a state are written: `optimizer.state[3].exp_avg`."""

import enum
import json
import re

from holdfast.core.errors import printable
from holdfast.format.registry import Record

__all__ = ["RANDOM_ROOT", "is_inside", "join", "join_index", "remainder"]

RANDOM_ROOT = "<random>"
"""Where the random state's paths begin; a state's own name could only be the same on purpose, and is then refused."""

# Brackets and quotes would look like another step of the path, control characters would spoil a terminal.
_STEP = r"[^.\[\]\"'\x00-\x1f\x7f-\x9f\ud800-\udfff]+"
_PLAIN = re.compile(rf"(?!__metadata__\Z){_STEP}(?:\.{_STEP})*")


def join(path: str, key: object) -> str:
    """The path of the entry with that key."""
    if type(key) is str:
        # Most keys are identifiers, and seeing that is cheaper.
        if not (key.isidentifier() and key != "__metadata__") and not _PLAIN.fullmatch(key):
            return f"{path}[{json.dumps(key)}]"
        return f"{path}.{key}" if path else key
    if type(key) is int:
        # Python refuses to write very long numbers in decimal.
        return f"{path}[{key}]" if key.bit_length() < 256 else f"{path}[{key:#x}]"
    if isinstance(key, enum.Enum):
        return f"{path}[{type(key).__name__}.{key.name}]"
    return f"{path}[{_spell(key)}]"


def join_index(path: str, index: int) -> str:
    """The path of the entry at that position."""
    return f"{path}[{index}]"


def is_inside(path: str, outer: str) -> bool:
    """Whether the path is `outer` or a place in it, by whole steps: `a.bc` is not inside `a.b`."""
    return path.startswith(outer) and (len(path) == len(outer) or not outer or path[len(outer)] in ".[")


def remainder(path: str, outer: str) -> str:
    """What follows `outer` in a path that is inside it, without the separating dot."""
    return path[len(outer) :].removeprefix(".")


def _spell(key: object) -> str:
    if isinstance(key, Record) and key.kind == "enum":  # as the member itself is spelled
        return f"{key.type_name.rsplit('.', 1)[-1]}.{key.get('member')}"
    try:
        return printable(repr(key))
    except ValueError:  # a very long number inside
        return type(key).__name__
