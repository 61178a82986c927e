"""What of a state cannot be saved, where it is, and why: one error tells all of it."""

from holdfast.core.errors import StateError
from holdfast.core.limits import MAX_DEPTH, MAX_TREE_NODES
from holdfast.format.registry import type_name

__all__ = ["Refusals", "contains_itself", "describe", "too_much"]

_MAX_LISTED = 20
_WHAT_TO_DO = (
    "give the object state_dict and load_state_dict, turn it into plain values, leave it out, "
    "or pass pickle=True when saving and when restoring"
)


class Refusals:
    """Gathers what was refused while the tree is built."""

    def __init__(self) -> None:
        self._listed: list[str] = []
        self._count = 0

    def add(self, path: str, what: str, hint: str = "") -> None:
        """The value there is left out."""
        self._count += 1
        if len(self._listed) < _MAX_LISTED:
            advice = f" ({hint})" if hint else ""
            self._listed.append(f"{path}: {what}{advice}")

    def check(self) -> None:
        """StateError for all that was refused."""
        if self._listed:
            more = self._count - len(self._listed)
            listed = self._listed + ([f"… and {more} more"] if more else [])
            lines = "\n".join(f"  {line}" for line in listed)
            raise StateError(f"the state cannot be saved:\n{lines}", hint=_WHAT_TO_DO)


def contains_itself(value: object, path: str, outer: str) -> StateError:
    """Of a value that is met again inside itself; `outer` is where it was met first."""
    return StateError(
        f"{path}: {type(value).__name__} that contains itself, at {outer or 'the top'}",
        hint="break the cycle, or give the object state_dict and load_state_dict",
    )


def too_much(path: str, depth: int) -> StateError:
    """Of a state that is nested too deep, or has too many values."""
    if depth > MAX_DEPTH:
        return StateError(f"{path[:200]}…: nested deeper than {MAX_DEPTH} levels", hint="flatten the state")
    return StateError(f"the state has more than {MAX_TREE_NODES} values", hint="keep large data in arrays")


def describe(value: object) -> str:
    """What the value is, for a person."""
    cls = type(value)
    name = cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    return f"the class {type_name(value)}" if isinstance(value, type) else name
