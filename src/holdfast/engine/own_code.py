"""Which code is the program's own, and not of a library: by the file that it is in."""

import functools
import os
import site
import sys
import sysconfig
from types import FunctionType, ModuleType

__all__ = ["is_own_class", "is_own_file", "own_modules", "used_packages"]

_HOLDFAST = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_TYPED = ("<stdin>", "<string>")


@functools.lru_cache(maxsize=4096)
def is_own_file(path: str) -> bool:
    """Whether a file is the user's; code that was typed in (`python -c`) is, too."""
    if path.startswith("<"):
        return path in _TYPED or path.startswith("<ipython")
    whole = os.path.realpath(path)
    return not any(whole.startswith(place) for place in _library_places())


def own_modules() -> list[tuple[str, ModuleType]]:
    """The modules of the program: its main one first."""
    found: dict[int, tuple[str, ModuleType]] = {}
    for name, module in sorted(sys.modules.items(), key=lambda item: item[0] != "__main__"):
        # multiprocessing has a second name for the main one.
        if type(module) is not ModuleType or id(module) in found:
            continue
        file = module.__dict__.get("__file__")
        if name == "__main__" or (isinstance(file, str) and is_own_file(file)):
            found[id(module)] = (name, module)
    return list(found.values())


def used_packages() -> set[str]:
    """The packages whose modules, classes or functions the program's modules have a name for."""
    found = set()
    for _, module in own_modules():
        for value in list(module.__dict__.values()):
            if type(value) is ModuleType:
                found.add(value.__name__.partition(".")[0])
            elif type(value) in (type, FunctionType):
                found.add(str(value.__module__).partition(".")[0])
    return found


def is_own_class(cls: type) -> bool:
    """Whether a class was defined in one of them."""
    name = type.__getattribute__(cls, "__module__")
    if name == "__main__":
        return True
    module = sys.modules.get(name) if isinstance(name, str) else None
    file = getattr(module, "__file__", None) if type(module) is ModuleType else None
    return isinstance(file, str) and is_own_file(file)


@functools.lru_cache(maxsize=1)
def _library_places() -> tuple[str, ...]:
    places = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    places += [
        *getattr(site, "getsitepackages", list)(),
        site.getusersitepackages(),
        _HOLDFAST,
    ]
    return tuple(f"{os.path.realpath(place)}{os.sep}" for place in places if place)
