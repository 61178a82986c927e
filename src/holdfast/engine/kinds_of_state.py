"""Which classes keep a state of their own that a training may depend on, told without running any of their code."""

import itertools
import random
import sys
from types import GeneratorType
from typing import Any

import numpy as np

from holdfast.engine.own_code import is_own_class

__all__ = ["BUILTIN_ITERATORS", "bases_of", "global_generators", "is_one_of", "kind_of_class", "type_text"]

_bases = type.__dict__["__mro__"].__get__

BUILTIN_ITERATORS: tuple[type, ...] = (
    type(iter([])),
    type(iter(())),
    type(iter(range(0))),
    type(iter("")),
    enumerate,
    itertools.count,
)


def bases_of(cls: type) -> tuple[type, ...]:
    """The class and its bases; whatever its metaclass does."""
    bases: tuple[type, ...] = _bases(cls)
    return bases


def is_one_of(cls: type, classes: tuple[type, ...]) -> bool:
    """By identity: a metaclass may have a say in what is equal."""
    return any(cls is one for one in classes)


def kind_of_class(cls: type) -> str | None:
    """As in `Bystander.kind`, "module" for a torch module, "loader itself" for what makes loaders' iterators; None for
    what is of no interest."""
    if is_one_of(cls, BUILTIN_ITERATORS) or cls is GeneratorType:
        return "iterator"
    names = set()
    for base in bases_of(cls):
        if base is random.SystemRandom:  # has no state
            return None
        if is_one_of(base, (np.random.Generator, np.random.RandomState, random.Random)):
            return "generator"
        where = base.__dict__.get("__module__", "")
        if isinstance(where, str):
            names.add((where, base.__name__))
            if where.partition(".")[0] == "holdfast":
                return None
    if ("torch._C", "Generator") in names or ("torch", "Generator") in names:
        return "generator"
    if ("torch.utils.data.dataloader", "_BaseDataLoaderIter") in names:
        return "loader"
    if ("torch.optim.optimizer", "Optimizer") in names:
        return "optimizer"
    if ("torch.nn.modules.module", "Module") in names:
        return "module"
    if all(_has(cls, name) for name in ("state_dict", "load_state_dict")):
        return "stateful"
    if ("torch.utils.data.dataloader", "DataLoader") in names:
        return "loader itself"
    return "iterator" if _has(cls, "__next__") and is_own_class(cls) else None


def type_text(cls: type) -> str:
    """With its module, as people write it: without the parts that are private."""
    where = type.__getattribute__(cls, "__module__")
    parts = [part for part in str(where).split(".") if part == "__main__" or not (part[0] == "_" or part == "mtrand")]
    return ".".join([*parts, cls.__qualname__])


def global_generators() -> list[tuple[str, Any]]:
    """Those that are saved with every state, unless random=False is given."""
    found: list[tuple[str, Any]] = [("random", random._inst), ("numpy.random", np.random.mtrand._rand)]
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "default_generator"):
        found.append(("torch", torch.default_generator))
        cuda = getattr(torch, "cuda", None)
        found += [("torch.cuda", one) for one in getattr(cuda, "default_generators", ())]
    return found


def _has(cls: type, name: str) -> bool:
    return any(name in base.__dict__ for base in bases_of(cls))
