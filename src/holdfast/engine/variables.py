"""Plain variables of a program that are not in its state: arrays and numbers by their names, for a proof.

A momentum, a running mean, a counter: nothing about them says that they have a state that matters. Where one exists
right after a restore, and is not what it was without the interruption, it is a likely cause.
"""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from holdfast.engine.coverage_of_state import Registered, texts_of
from holdfast.engine.evidence import Bystander
from holdfast.engine.kinds_of_state import is_one_of, type_text
from holdfast.engine.program_search import Place, attributes_of, roots
from holdfast.engine.traces import short_digest
from holdfast.format.carriers import array_kind

__all__ = ["look_at_variables"]

_MOST = 300
# Data sets do not change; a digest of all of them after each step would take its time.
_MOST_BYTES = 1 << 20
_NUMBERS = (bool, int, float, complex, str)
_CONTAINERS = (list, dict, tuple)
_MOST_IN_CONTAINER = 50
_SHOWN_CHARS = 30


def look_at_variables(registered: list[Registered]) -> list[Bystander]:
    """Those of the functions that are running, of the program's modules, and the attributes of its own objects."""
    saved = {id(value) for one in registered for value in _inside(one.state, 0)}
    arrays = {text for one in registered for text in one.leaves.values() if text.startswith("b3:")}
    found: dict[str, Bystander] = {}
    for place in _places():
        value = place.value
        if id(value) in saved or place.name in found or not _is_plain(value, 0):
            continue
        try:
            texts = texts_of(value)
        except Exception:  # noqa: BLE001, S112  # any object may raise anything; it is no plain variable then
            continue
        # A view of what is saved, or a copy that the program has just put there.
        if texts and all(text in arrays for text in texts.values()):
            continue
        digest = short_digest(repr(sorted(texts.items())).encode())
        shown = repr(value) if is_one_of(type(value), _NUMBERS) else ""
        found[place.name] = Bystander(
            "variable",
            type_text(type(value)),
            place.name,
            place.where,
            digest,
            shown if len(shown) <= _SHOWN_CHARS else "",
            place.code,
        )
        if len(found) >= _MOST:
            break
    return list(found.values())


def _places() -> Iterator[Place]:
    for place in roots():
        yield place
        if not is_one_of(type(place.value), (*_NUMBERS, *_CONTAINERS)) and array_kind_of(place.value) is None:
            yield from attributes_of(place)


def array_kind_of(value: object) -> str | None:
    """Of numpy and torch only, by their classes: nothing of the program's own is asked."""
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)
    if type(value) is np.ndarray or (tensor is not None and type(value) is tensor):
        return array_kind(value)
    return None


def _is_plain(value: Any, depth: int) -> bool:
    if value is None or is_one_of(type(value), _NUMBERS):
        return True
    if array_kind_of(value) is not None:
        return int(value.nbytes) <= _MOST_BYTES
    if not is_one_of(type(value), _CONTAINERS) or depth > 1 or len(value) > _MOST_IN_CONTAINER:
        return False
    items = value.values() if type(value) is dict else value
    return all(_is_plain(item, depth + 1) for item in items)


def _inside(value: object, depth: int) -> Iterator[object]:
    """What is saved itself. Numbers are not: equal ones are one object."""
    if is_one_of(type(value), _NUMBERS) or value is None:
        return
    yield value
    if depth < 4 and is_one_of(type(value), _CONTAINERS):
        for item in value.values() if isinstance(value, dict) else value:  # type: ignore[attr-defined]
            yield from _inside(item, depth + 1)
