"""What has a state of its own in the program, and is not in the state that is saved: generators, optimizers, loaders.

Looking through the program takes a fraction of a second; in between, only those that are known are looked at again.
They are held weakly where they can be; where not (numpy's generators), they are let go as soon as nobody else holds
them.
"""

import itertools
import operator
import random
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from holdfast.engine.coverage_of_state import Coverage, Registered, texts_of
from holdfast.engine.evidence import Bystander
from holdfast.engine.kinds_of_state import BUILTIN_ITERATORS, global_generators, is_one_of, kind_of_class, type_text
from holdfast.engine.program_search import Found, locals_of, search
from holdfast.engine.traces import short_digest
from holdfast.format.generators import encode_generator, generator_kind

__all__ = ["Bystanders", "Registered"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_SHOWN_PARTS = 3
_SHOWN_CHARS = 30
_EMPTY = ('={"kind":"dict","items":{}', '={"kind":"ordered_dict","items":{}')
# The reference of the object's keeper, and that of the call.
_OURS_ONLY = 2


class _Known:
    """One of them; it may be gone."""

    def __init__(self, value: Any, bystander: Bystander) -> None:
        self.bystander = bystander
        self._weak: weakref.ref[Any] | None = None
        self._held: Any = None
        try:
            self._weak = weakref.ref(value)
        except TypeError:
            self._held = value

    def now(self) -> Bystander | None:
        """As it is now; None where it is gone."""
        if self._weak is None and sys.getrefcount(self._held) <= _OURS_ONLY:
            self._held = None
        value = self._held if self._weak is None else self._weak()
        if value is None:
            return None
        digest, shown = _describe(value, self.bystander.kind)
        return msgspec.structs.replace(self.bystander, digest=digest, shown=shown)


class Bystanders:
    """Looks for them, and at them."""

    def __init__(self) -> None:
        self._known: list[_Known] = []

    def look(self, registered: list[Registered], *, afresh: bool, with_random: bool) -> tuple[Bystander, ...]:
        """All that is there now. `afresh` looks through the whole program; `with_random` says that the global
        generators are saved."""
        found = [(known, known.now()) for known in self._known]
        # Where one is gone, another may have taken its place: with every epoch a loader has a new iterator.
        if afresh or any(bystander is None for _, bystander in found):
            self._known = _look_through(registered, with_random=with_random)
            found = [(known, known.now()) for known in self._known]
        self._known = [known for known, bystander in found if bystander is not None]
        return tuple(bystander for _, bystander in found if bystander is not None)


def _look_through(registered: list[Registered], *, with_random: bool) -> list[_Known]:
    coverage = Coverage(registered)
    general = global_generators()
    found = search(kind_of_class, {id(generator) for _, generator in general})
    children = {id(child) for one in found if one.kind == "module" for child in _submodules(one.value)}
    loaders = _loader_names(found)
    known = [] if with_random else [_known(Found(value, "generator", name, "")) for name, value in general]
    for one in found:
        if id(one.value) in coverage.ids or id(one.value) in children or _is_covered(one, coverage):
            continue
        if one.kind == "loader itself":
            continue
        if one.kind == "loader":
            if _is_holdfast_loader(one.value):
                continue
            one = one._replace(**loaders.get(id(_own_sampler(one.value)), {"name": one.name}))
        known.append(_known(one))
    return known


def _known(found: Found) -> _Known:
    kind = "stateful" if found.kind == "module" else found.kind
    return _Known(found.value, Bystander(kind, type_text(type(found.value)), found.name, found.where, code=found.code))


def _is_covered(found: Found, coverage: Coverage) -> bool:
    """Whether its state is in the saved one, or whether it has none."""
    value = found.value
    if found.kind == "generator":
        return any(coverage.has_values(value, texts) for texts in _generator_texts(value))
    if found.kind in ("optimizer", "module", "stateful"):
        texts = _quiet(lambda: texts_of(value))
        if texts is None:
            return False
        return all(text.startswith(_EMPTY) for text in texts.values()) or coverage.has_object(value, texts)
    return False


def _generator_texts(value: Any) -> list[dict[str, str]]:
    """Its state in the forms in which programs keep it."""
    forms: list[Callable[[], Any]] = []
    if isinstance(value, np.random.Generator):
        forms = [lambda: value.bit_generator.state]
    elif isinstance(value, np.random.RandomState):
        forms = [lambda: value.get_state(legacy=False), lambda: value.get_state()]
    elif isinstance(value, random.Random):
        forms = [value.getstate, lambda: value.getstate()[1], lambda: list(value.getstate()[1])]
    else:
        forms = [value.get_state, lambda: value.get_state().tolist()]
    found = [_quiet(lambda form=form: texts_of(form())) for form in forms]  # type: ignore[misc]
    return [texts for texts in found if texts]


def _describe(value: Any, kind: str) -> tuple[str, str]:
    """The digest of its state, and the state itself where it is short; nothing where it does not say."""
    described = _quiet(lambda: _DESCRIBERS[kind](value))
    return described or ("", "")


def _describe_generator(value: Any) -> tuple[str, str]:
    known = generator_kind(value, sys.modules.get("torch"))
    if known is not None:
        return short_digest(msgspec.json.encode(encode_generator(value, known))), ""
    if isinstance(value, np.random.Generator):
        state: object = value.bit_generator.state
    else:
        state = value.getstate() if isinstance(value, random.Random) else value.get_state()
    return short_digest(repr(state).encode()), ""


def _describe_object(value: Any) -> tuple[str, str]:
    texts = texts_of(value)
    short = [
        f"{path.lstrip('.')}={text[1:]}"
        for path, text in texts.items()
        if path and text.startswith("=") and len(text) < _SHOWN_CHARS and text[1:2] not in "{["
    ]
    return short_digest(msgspec.json.encode(sorted(texts.items()))), ", ".join(short[:_SHOWN_PARTS])


def _describe_loader(value: Any) -> tuple[str, str]:
    count = int(value._num_yielded)
    return short_digest(str(count).encode()), f"{count} batch{'' if count == 1 else 'es'} handed out"


def _describe_iterator(value: Any) -> tuple[str, str]:
    cls = type(value)
    if cls is enumerate:
        position: Mapping[str, Any] = {"position": value.__reduce__()[1][1]}
    elif cls is itertools.count:
        position = {"next": repr(value)}
    elif is_one_of(cls, BUILTIN_ITERATORS):
        position = {"left": operator.length_hint(value)}
    elif hasattr(value, "gi_frame"):
        position = {} if value.gi_frame is None else {"line": value.gi_frame.f_lineno} | locals_of(value.gi_frame)
    else:
        position = object.__getattribute__(value, "__dict__")
    plain = {name: item for name, item in position.items() if is_one_of(type(item), _PLAIN)}
    shown = [f"{name}={item!r}" for name, item in plain.items() if name != "line" and len(repr(item)) < _SHOWN_CHARS]
    return short_digest(repr(sorted(plain.items())).encode()), ", ".join(shown[:_SHOWN_PARTS])


_DESCRIBERS: dict[str, Callable[[Any], tuple[str, str]]] = {
    "generator": _describe_generator,
    "optimizer": _describe_object,
    "stateful": _describe_object,
    "loader": _describe_loader,
    "iterator": _describe_iterator,
}


def _submodules(module: Any) -> list[Any]:
    """All but itself."""
    return _quiet(lambda: list(module.modules())[1:]) or []


def _loader_names(found: list[Found]) -> dict[int, dict[str, str]]:
    """How the program calls the loaders: by their samplers, which are all that their iterators know of them."""
    return {
        id(_own_sampler(one.value)): {"name": one.name, "where": one.where, "code": one.code}
        for one in found
        if one.kind == "loader itself"
    }


def _own_sampler(value: Any) -> Any:
    return _quiet(lambda: value._index_sampler)


def _is_holdfast_loader(iterator: Any) -> bool:
    """Of a source whose position is saved."""
    dataset = _quiet(lambda: iterator._dataset)
    return type(dataset).__module__.partition(".")[0] == "holdfast"


def _quiet(work: Callable[[], Any]) -> Any:
    """What the program's own classes raise here is none of its business."""
    try:
        return work()
    except Exception:  # noqa: BLE001  # any class may raise anything
        return None
