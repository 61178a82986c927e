"""Whether the state of an object is in the state that is saved, in whatever form the program put it there.

By identity: it was registered, or is in a container that was. By value: all that it says of itself is found in the
saved state, where that is a plain container, or what an object that holds it says of itself: a trainer's state_dict
with the optimizer's in it. Equal values elsewhere do not count: two generators may well begin with the same seed.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.engine.program_search import reach
from holdfast.engine.traces import leaf_texts
from holdfast.format.encode import encode_state
from holdfast.format.paths import is_inside, join, join_index
from holdfast.format.stateful import is_stateful

__all__ = ["Coverage", "Registered", "texts_of"]

_TELLING_CHARS = 14
"""Of a plain value: shorter ones are equal by accident."""


class Registered(NamedTuple):
    """The state of one Checkpointer: its objects, and all leaves as they are now."""

    state: Mapping[str, object]
    leaves: Mapping[str, str]


class Coverage:
    """What is in the saved states at this moment."""

    def __init__(self, registered: list[Registered]) -> None:
        self.ids: set[int] = set()
        """Of all objects that are in it themselves."""
        self._owners: dict[str, Any] = {}
        self._reach: dict[int, set[int]] = {}
        self._leaves: dict[str, str] = {}
        self._paths: dict[str, list[str]] = {}
        made: list[object] = []
        for number, (state, leaves) in enumerate(registered):
            root = f"#{number}"
            for name, value in state.items():
                try:
                    self._walk(value, join(root, name), made)
                except Exception:  # noqa: BLE001, S112  # any class may raise anything; the program hears of it
                    continue
            for path, text in leaves.items():
                place = f"{root}{path}" if path.startswith("[") else f"{root}.{path}"
                self._leaves[place] = text
                self._paths.setdefault(text, []).append(place)

    def has_object(self, value: object, texts: Mapping[str, str]) -> bool:
        """`texts`: what it says of itself, by paths that begin with the object."""
        return self._has_at_one_place(value, texts) or self._is_made_of_registered(value, texts)

    def has_values(self, value: object, texts: Mapping[str, str]) -> bool:
        """The same for something that is kept in parts, in no form that we know: whether the telling ones are there."""
        telling = [text for text in texts.values() if _is_telling(text)]
        return bool(telling) and all(
            any(self._may_hold(place, value) for place in self._paths.get(text, ())) for text in telling
        )

    def _has_at_one_place(self, value: object, texts: Mapping[str, str]) -> bool:
        suffix = max(texts, key=len, default="")
        if not suffix and not _is_telling(texts.get("", "")):
            return False
        places = [place for place in self._paths.get(texts[suffix], ()) if place.endswith(suffix)]
        roots = [place[: len(place) - len(suffix)] for place in places]
        return any(
            all(self._leaves.get(root + path) == text for path, text in texts.items()) and self._may_hold(root, value)
            for root in roots
        )

    def _is_made_of_registered(self, value: object, texts: Mapping[str, str]) -> bool:
        """A wrapper: it holds a registered object, and has no arrays but that one's."""
        arrays = [text for text in texts.values() if text.startswith("b3:")]
        if not arrays or not all(text in self._paths for text in arrays):
            return False
        return not self._reach_of(value).isdisjoint(id(owner) for owner in self._owners.values())

    def _may_hold(self, place: str, value: object) -> bool:
        owners = [owner for path, owner in self._owners.items() if is_inside(place, path)]
        return not owners or any(id(value) in self._reach_of(owner) for owner in owners)

    def _reach_of(self, value: object) -> set[int]:
        if id(value) not in self._reach:
            self._reach[id(value)] = reach(value)
        return self._reach[id(value)]

    def _walk(self, value: Any, path: str, made: list[object]) -> None:
        """As it is encoded. `made` keeps what was made for the occasion: an id is one object's as long as it lives."""
        if id(value) in self.ids:
            return
        self.ids.add(id(value))
        if is_stateful(value):
            self._owners[path] = value
            made.append(value.state_dict())
            self._walk(made[-1], path, made)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                self._walk(item, join(path, key), made)
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                self._walk(item, join_index(path, index), made)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            for field in dataclasses.fields(value):
                self._walk(getattr(value, field.name, None), join(path, field.name), made)


def texts_of(value: object) -> dict[str, str]:
    """The leaves of one object, by paths that begin at it; StateError where it cannot be represented."""
    return {path.removeprefix("x"): text for path, text in leaf_texts(encode_state({"x": value})).items()}


def _is_telling(text: str) -> bool:
    return text.startswith("b3:") or len(text) >= _TELLING_CHARS
