"""Looks through a program for objects of certain classes, and for the names by which it calls them.

By the frames of whoever is running, by the variables of the program's modules, and by what is in those; then by the
list of the garbage collector, for what no name leads to. Nothing of the program is called: no property, no `__len__`.
"""

import collections
import gc
import inspect
import sys
from collections.abc import Callable, Iterator
from types import CellType, FrameType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from holdfast.engine.kinds_of_state import BUILTIN_ITERATORS, bases_of, is_one_of
from holdfast.engine.own_code import is_own_class, is_own_file, own_modules, used_packages

__all__ = ["Found", "Place", "attributes_of", "locals_of", "reach", "roots", "search"]

_MOST_LOOKED_AT = 100_000
_MOST_IN_CONTAINER = 1_000
_DEEPEST = 7
_MOST_REFERRERS = 50
_TRANSPARENT = (list, tuple, collections.deque, collections.OrderedDict, CellType, MethodType)
_SILENT = ("numpy", "torch", "holdfast", "_pytest", "pytest")
"""Libraries whose own generators are saved, or mean nothing."""
_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), np.ndarray, np.dtype)
# By identity throughout: a metaclass may have a say in what is equal, and in what has a hash.
_PLAIN_IDS = frozenset(map(id, _PLAIN))
_DEAD_ENDS = frozenset(map(id, (ModuleType, type, FunctionType, FrameType, *_PLAIN)))


_LOADER = ("torch.utils.data.dataloader", "DataLoader")
_DATASET = "….dataset"
"""How a dataset inside of an object of holdfast.data is called: the way there is none of the program's business."""


class Found(NamedTuple):
    """An object of interest."""

    value: Any
    kind: str
    name: str
    where: str
    code: str = ""
    """As `Place.code`."""


class Place(NamedTuple):
    """A value, and how the program calls it."""

    value: Any
    name: str
    where: str
    depth: int
    code: str
    """As the program itself writes it, there: `self.rng`."""


def search(kind_of: Callable[[type], str | None], skipped: set[int]) -> list[Found]:
    """Every object that is of a kind, once, but for those with the given ids. Frames are those of the caller on up."""
    return _Search(kind_of, skipped).run()


def reach(value: object) -> set[int]:
    """The ids of all that the object holds, directly or not."""
    seen = {id(value)}
    waiting = [value]
    while waiting and len(seen) < _MOST_LOOKED_AT:
        for item in gc.get_referents(waiting.pop()):
            if id(item) not in seen and not _is_dead_end(type(item)):
                seen.add(id(item))
                waiting.append(item)
    return seen


def locals_of(frame: FrameType) -> dict[str, Any]:
    """A copy of its variables, which are left as they were: up to Python 3.12, asking for them makes the frame keep
    what it has now, and with that keeps it alive."""
    variables = frame.f_locals
    copy = dict(variables)
    is_copy = type(variables) is dict and bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)
    if is_copy and sys.getrefcount(variables) <= 3:  # the frame's, ours, that of the call: nobody else looks at it
        variables.clear()
    return copy


def roots() -> Iterator[Place]:
    """The variables of the functions that are running, from the caller on up, and those of the program's modules."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] != "holdfast":
            yield from _of_frame(frame)
        frame = frame.f_back
    for name, module in own_modules():
        file = str(module.__dict__.get("__file__", ""))
        prefix = "" if name == "__main__" else f"{name}."
        for variable, value in list(module.__dict__.items()):
            if not variable.startswith("__"):
                yield Place(value, f"{prefix}{variable}", file, 0, f"{prefix}{variable}")


def attributes_of(place: Place) -> Iterator[Place]:
    """Those of an object of one of the program's own classes."""
    if is_own_class(type(place.value)):
        for part, value in _attributes(place.value, type(place.value)):
            yield Place(value, f"{place.name}{part}", place.where, place.depth + 1, f"{place.code}{part}")


class _Search:
    def __init__(self, kind_of: Callable[[type], str | None], skipped: set[int]) -> None:
        self._kind_of = kind_of
        self._kinds: dict[int, str | None] = {}
        self._seen = set(skipped)
        self._found: list[Found] = []
        self._waiting: collections.deque[Place] = collections.deque()

    def run(self) -> list[Found]:
        for place in roots():
            self._add(place)
        while self._waiting and len(self._seen) < _MOST_LOOKED_AT:
            self._descend(self._waiting.popleft())
        self._waiting.clear()
        self._add_nameless()
        return self._found

    def _kind(self, cls: type) -> str | None:
        # By id: a class may say of itself that it equals another, or is not hashable.
        if id(cls) not in self._kinds:
            self._kinds[id(cls)] = self._kind_of(cls)
        return self._kinds[id(cls)]

    def _add(self, place: Place) -> None:
        value = place.value
        cls = type(value)
        if id(value) in self._seen or id(cls) in _PLAIN_IDS:
            return
        self._seen.add(id(value))
        kind = self._kind(cls)
        if kind is not None and not (cls is GeneratorType and not _is_suspended(value)):
            self._found.append(Found(value, kind, place.name, place.where, place.code))
        # What an iterator of a loader holds is its own affair.
        if kind not in ("generator", "loader") and place.depth < _DEEPEST and not _is_tensor(cls):
            self._waiting.append(place)

    def _descend(self, place: Place) -> None:
        # What a function or a generator has is written without it.
        before = "" if is_one_of(type(place.value), (FunctionType, GeneratorType)) else place.code
        for part, value in self._parts(place.value):
            code = f"{before}{part}" if before else part.lstrip(".")
            self._add(Place(value, f"{place.name}{part}", place.where, place.depth + 1, code))

    def _parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        cls = type(value)
        if is_one_of(cls, (list, tuple, collections.deque)):
            if 0 < len(value) <= _MOST_IN_CONTAINER:
                yield from ((f"[{index}]", item) for index, item in enumerate(value))
        elif is_one_of(cls, (dict, collections.OrderedDict, collections.defaultdict)):
            if 0 < len(value) <= _MOST_IN_CONTAINER:
                for key, item in list(value.items()):
                    yield (f"[{key!r}]" if type(key) in (str, int) else "[…]"), item
        elif cls is GeneratorType:
            frame = value.gi_frame
            if frame is not None and is_own_file(value.gi_code.co_filename):
                yield from ((f".{name}", item) for name, item in locals_of(frame).items())
        elif cls is FunctionType:
            if is_own_file(value.__code__.co_filename):
                for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
                    yield from ((f".{name}", item) for item in gc.get_referents(cell))
        elif cls is MethodType:
            yield "", value.__self__
        elif is_one_of(type, bases_of(cls)):
            if is_own_class(value):
                yield from ((f".{name}", item) for name, item in list(value.__dict__.items()) if name[:2] != "__")
        elif is_one_of(cls, BUILTIN_ITERATORS) or cls is CellType:
            yield from (("", item) for item in gc.get_referents(value))
        elif _is_holdfast(cls):
            yield from ((_DATASET, dataset) for dataset in _datasets(value, cls))
        elif not is_one_of(ModuleType, bases_of(cls)):
            yield from _attributes(value, cls)

    def _add_nameless(self) -> None:
        """What the collector knows of besides. Of the iterators only suspended functions of the program, and loaders:
        of other ones every library has many."""
        nameless: list[Found] = []
        kinds = self._kinds
        for value in gc.get_objects():
            cls = type(value)
            kind = kinds[id(cls)] if id(cls) in kinds else self._kind(cls)
            if kind is None or id(value) in self._seen:
                continue
            if cls is GeneratorType:
                if _is_suspended(value) and is_own_file(value.gi_code.co_filename):
                    self._seen.add(id(value))
                    code = value.gi_code
                    self._found.append(Found(value, kind, f"{code.co_name}()", code.co_filename))
            elif kind != "iterator":
                nameless.append(Found(value, kind, "", ""))
        packages = used_packages()
        for found in nameless[:_MOST_REFERRERS]:
            named = _name_by_referrers(found, nameless, packages)
            # A loader is named later; of the rest, what nobody has a name for is a library's own.
            if named is not None and (named.name or named.kind in ("loader", "optimizer")):
                self._seen.add(id(found.value))
                self._found.append(named)


def _of_frame(frame: FrameType) -> Iterator[Place]:
    code = frame.f_code
    is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
    prefix = f"{code.co_name}." if is_function else ""
    if not is_function and frame.f_locals is frame.f_globals and not is_own_file(code.co_filename):
        return  # a library that is being imported, or the one that started the program
    first = code.co_varnames[0] if is_function and code.co_argcount else ""
    for variable, value in locals_of(frame).items():
        if variable.startswith("__"):
            continue
        name = f"{prefix}{variable}"
        if variable == first and variable in ("self", "cls"):
            name = type(value).__name__ if variable == "self" else getattr(value, "__name__", "cls")
        yield Place(value, name, code.co_filename, 0, variable)


def _name_by_referrers(found: Found, ours: list[Found], packages: set[str]) -> Found | None:
    """None where a library holds it that the program does not use itself."""
    known = found
    for referrer in gc.get_referrers(found.value):
        cls = type(referrer)
        if referrer is found or referrer is ours or cls is FrameType or is_one_of(cls, _TRANSPARENT):
            continue
        library = str(type.__getattribute__(cls, "__module__")).partition(".")[0]
        attributes = _attributes(referrer, cls)
        name, where = cls.__name__, ""
        if cls is dict:
            module = _module_of(referrer)
            if module is None:
                continue
            library = module.__name__.partition(".")[0]
            attributes = ((f".{key}", item) for key, item in referrer.items())
            name, where = module.__name__, str(module.__dict__.get("__file__", ""))
        if library in sys.stdlib_module_names or library in _SILENT or library not in {*packages, "__main__"}:
            return None
        part = next((part for part, item in attributes if item is found.value), None)
        if part is not None and not known.name:
            known = found._replace(name=f"{name}{part}", where=where)
    return known


def _attributes(value: Any, cls: type) -> Iterator[tuple[str, Any]]:
    """What is in the object itself: no property is asked."""
    try:
        variables = object.__getattribute__(value, "__dict__")
    except AttributeError:
        variables = None
    if type(variables) is dict:
        yield from ((f".{name}", item) for name, item in list(variables.items()))
    for base in bases_of(cls):
        for name, member in base.__dict__.items():
            if type(member).__name__ == "member_descriptor" and name not in ("__dict__", "__weakref__"):
                try:
                    yield f".{name}", member.__get__(value, cls)
                except AttributeError:
                    continue


def _datasets(value: Any, cls: type) -> list[Any]:
    """The program's own ones, inside of what holdfast.data has made of them; nothing of what is its own."""
    found: list[Any] = []
    seen = {id(value)}
    waiting = [(value, cls)]
    while waiting:
        for part, item in _attributes(*waiting.pop()):
            inside = type(item)
            if id(item) in seen or id(inside) in _PLAIN_IDS:
                continue
            seen.add(id(item))
            if _is_data(inside) or _is_loader(inside):
                waiting.append((item, inside))
            elif part == ".dataset":
                found.append(item)
    return found if _is_data(cls) else []


def _is_suspended(value: Any) -> bool:
    return value.gi_frame is not None and not value.gi_running


def _is_dead_end(cls: type) -> bool:
    return not _DEAD_ENDS.isdisjoint(map(id, bases_of(cls))) or _is_tensor(cls)


def _is_tensor(cls: type) -> bool:
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)
    return tensor is not None and any(base is tensor for base in bases_of(cls))


def _is_holdfast(cls: type) -> bool:
    return _module_name(cls).partition(".")[0] == "holdfast"


def _is_data(cls: type) -> bool:
    return _module_name(cls).startswith("holdfast.data.")


def _is_loader(cls: type) -> bool:
    return any((_module_name(base), base.__name__) == _LOADER for base in bases_of(cls))


def _module_name(cls: type) -> str:
    return str(type.__getattribute__(cls, "__module__"))


def _module_of(variables: dict[Any, Any]) -> ModuleType | None:
    name = variables.get("__name__")
    module = sys.modules.get(name) if type(name) is str else None
    return module if type(module) is ModuleType and module.__dict__ is variables else None
