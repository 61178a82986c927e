"""Names that stood for something of the state when it was registered, and stand for another thing of its kind now.

`w = w - rate * slope` leaves the array that was registered as it is: every checkpoint has the first one. Nothing of the
program is called, and nothing is held: objects are known by their ids, as long as the state has them.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from holdfast.engine.evidence import Bystander
from holdfast.engine.kinds_of_state import bases_of, is_one_of, type_text
from holdfast.engine.program_search import Place, attributes_of, roots
from holdfast.format.paths import join

__all__ = ["Rebinding"]

_CONTAINERS = (dict, list)
_MOST_IN_CONTAINER = 1_000
_DEEPEST = 2


class _Known(NamedTuple):
    path: str
    """In the state."""
    id: int
    """Of the object that is there."""


class Rebinding:
    """Of one state: which names the program has for what is in it."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], _Known] = {}

    def remember(self, state: Mapping[str, object]) -> None:
        """Those of the callers, of the program's modules and objects, as they are now."""
        objects = _objects(state)
        paths = {id(value): path for path, value in objects.items()}
        for place, owner in _places(set(paths)):
            if id(place.value) in paths:
                self._known.setdefault((place.name, owner), _Known(paths[id(place.value)], id(place.value)))

    def look(self, state: Mapping[str, object]) -> tuple[Bystander, ...]:
        """Those that stand for something else now, while what they stood for is still what is saved."""
        objects = _objects(state)
        saved = {id(value) for value in objects.values()}
        now: dict[tuple[str, int], list[Place]] = {}
        for place, owner in _places(saved):
            if (place.name, owner) in self._known:
                now.setdefault((place.name, owner), []).append(place)
        found = []
        for key, places in now.items():
            known = self._known[key]
            registered = objects.get(known.path)
            if id(registered) != known.id:
                continue  # another object is saved now
            if all(id(place.value) not in saved and _kind(place.value) == _kind(registered) for place in places):
                place = places[0]
                found.append(
                    Bystander(
                        "rebound",
                        type_text(type(place.value)),
                        place.name,
                        place.where,
                        shown=known.path,
                        code=place.code,
                    )
                )
        return tuple(found)


def _objects(state: Mapping[str, object]) -> dict[str, object]:
    """What is in the state, by its path: what can be changed in place, or stood for by another of its kind."""
    found: dict[str, object] = {}
    for name, value in state.items():
        if _kind(value) is not None:
            found[join("", name)] = value
        if type(value) is dict and len(value) <= _MOST_IN_CONTAINER:
            inside = {join(join("", name), key): item for key, item in list(value.items()) if type(key) is str}
            found.update((path, item) for path, item in inside.items() if _kind(item) is not None)
    return found


def _kind(value: Any) -> tuple[str, int] | None:
    """Arrays of as many dimensions are of one kind: one that grows is replaced by one of another shape."""
    cls = type(value)
    if is_one_of(cls, _CONTAINERS):
        return cls.__name__, 0
    if cls is np.ndarray:
        return "array", value.ndim
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor is not None and is_one_of(tensor, bases_of(cls)):
        return "array", int(tensor.dim(value))
    return None


def _places(saved: set[int]) -> Iterator[tuple[Place, int]]:
    """With the id of the object of which it is an attribute: those of another one are other names."""
    for place in roots():
        yield from _with_parts(place, 0, saved, depth=0)


def _with_parts(place: Place, owner: int, saved: set[int], *, depth: int) -> Iterator[tuple[Place, int]]:
    yield place, owner
    value = place.value
    if type(value) is dict:
        # The dict that was given as the state is none that is saved itself: its entries are names like others.
        if id(value) not in saved and len(value) <= _MOST_IN_CONTAINER:
            for key, item in list(value.items()):
                if type(key) is str:
                    part = f"[{key!r}]"
                    yield Place(item, f"{place.name}{part}", place.where, depth + 1, f"{place.code}{part}"), owner
    elif depth < _DEEPEST:
        for attribute in attributes_of(place):
            yield from _with_parts(attribute, id(value), saved, depth=depth + 1)
