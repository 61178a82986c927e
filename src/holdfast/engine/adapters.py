"""The program's own objects as places to load into: which can be, their memory, and replacing their contents."""

import collections
import dataclasses
import enum
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from holdfast.core.errors import StateError, UsageError
from holdfast.format.arrays import Carrier
from holdfast.format.carriers import Refused, array_kind, inspect_array
from holdfast.format.dtypes import DtypeName
from holdfast.format.encode import encode_state
from holdfast.format.frameworks import loaded
from holdfast.format.generators import generator_kind
from holdfast.format.paths import join, join_index
from holdfast.format.stateful import is_stateful

__all__ = [
    "TargetMemory",
    "check_restorable",
    "copies_into_own",
    "find_restorable",
    "is_mutable",
    "is_optimizer",
    "is_unshaped",
    "loads_in_place",
    "replace_contents",
    "target_memory",
]

_CONTAINERS = (list, tuple, collections.deque)
_MUTABLE = frozenset(
    (
        list,
        set,
        bytearray,
        collections.deque,
        dict,
        collections.OrderedDict,
        collections.defaultdict,
        collections.Counter,
    )
)
_STATE_METHODS = frozenset(
    ("state_dict", "load_state_dict", "get_extra_state", "set_extra_state", "_save_to_state_dict")
)
_STATE_HOOKS = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
_WRAP = 'put it into a dict, which is filled in place: {"config": {"lr": lr}}'
_FOR_OBJECTS = "give it state_dict and load_state_dict, or put what changes in it into the state instead"
_FOR_LOADERS = (
    "data = holdfast.data.resumable(loader, seed=7), put that into the state instead, and take the batches from it: "
    "see docs/how-to/data-order.md"
)


class TargetMemory(msgspec.Struct, frozen=True):
    """The memory of an array that the program holds."""

    dtype: DtypeName
    carrier: Carrier
    address: int
    """Of the carrier's first element."""
    publish: Callable[[], object] | None
    """Brings the contents of a buffer to where the array really is (an accelerator); None where it is there already."""


def check_restorable(state: Mapping[str, object]) -> None:
    """UsageError where something at the top of the state could be saved but never be restored in place."""
    for name, value in state.items():
        if not isinstance(name, str) or not name:
            raise UsageError(f"the state has the name {name!r}, expected text", hint='use names: {"model": model}')
        reason = _why_not(value)
        if reason:
            raise UsageError(f"{name}: {reason}, so it could not be restored in place", hint=_hint_for(value))


def target_memory(value: Any) -> TargetMemory | Refused:
    """Where to put the bytes of an array that the program holds."""
    kind = str(array_kind(value))
    is_tensor = kind == "tensor"
    if is_tensor and not (value.is_cpu or value.is_meta):
        return _through_buffer(value)
    found = inspect_array(value, kind)
    if isinstance(found, Refused):
        return found
    if is_tensor and not found.in_place:  # conjugated or negated whenever it is read
        return _through_buffer(value)
    return TargetMemory(found.dtype, found.carrier, found.address, publish=None)


def is_unshaped(value: object) -> bool:
    """Whether it is a parameter of a lazy torch module that has no shape yet."""
    cls: Any = type(value)
    return _is_lazy(cls)


def is_optimizer(value: object) -> bool:
    """Whether it is one of torch's, whose state has a slot for each parameter once that was updated."""
    torch = loaded("torch")
    return torch is not None and isinstance(value, torch.optim.Optimizer)


def copies_into_own(owner: object) -> bool:
    """Whether load_state_dict is torch's own, which does no harm where it is handed the object's own memory."""
    torch = loaded("torch")
    if torch is None or "load_state_dict" in getattr(owner, "__dict__", ()):
        return False
    bases = (torch.nn.Module, torch.optim.Optimizer)
    return any(isinstance(owner, base) and type(owner).load_state_dict is base.load_state_dict for base in bases)


def is_mutable(value: object) -> bool:
    """Whether the contents of the container can be replaced while it stays the same object."""
    if type(value) in _MUTABLE:
        return True
    if isinstance(value, np.ndarray):
        return value.dtype == object and value.flags.writeable
    return _is_mutable_dataclass(value)


def replace_contents(value: Any, made: Any) -> Any:
    """The program's container with the contents of the new one; the new one itself where it is of another kind."""
    if type(made) is not type(value) and not (isinstance(made, dict) and isinstance(value, dict)):
        return made
    if isinstance(value, dict):
        value.clear()
        for key, item in made.items():
            value[key] = item
        if type(value) is collections.OrderedDict:
            vars(value).update(vars(made) if type(made) is collections.OrderedDict else {})
    elif isinstance(value, list | bytearray):
        value[:] = made
    elif isinstance(value, set):
        value.clear()
        value.update(made)
    elif isinstance(value, collections.deque):
        value.clear()
        value.extend(made)
    elif isinstance(value, np.ndarray):
        value[...] = made
    else:
        for field in dataclasses.fields(value):
            object.__setattr__(value, field.name, getattr(made, field.name))
    return value


def find_restorable(value: Any, path: str, seen: frozenset[int] = frozenset()) -> Iterator[tuple[str, str]]:
    """(path, what it is) of all that is compared in the program's value: arrays, generators, objects with state."""
    if id(value) in seen:
        return
    seen = seen | {id(value)}
    kind = array_kind(value)
    if kind is not None and not (kind == "array" and value.dtype == object):
        yield path, kind if is_unshaped(value) else f"{value.dtype} {list(value.shape)}"
    elif generator_kind(value, loaded("torch")) is not None:
        yield path, "a random generator"
    elif is_stateful(value):
        yield from list(find_restorable(value.state_dict(), path, seen)) or [(path, type(value).__name__)]
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from find_restorable(item, join(path, key), seen)
    elif isinstance(value, _CONTAINERS):
        for index, item in enumerate(value):
            yield from find_restorable(item, join_index(path, index), seen)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from find_restorable(getattr(value, field.name, None), join(path, field.name), seen)


def loads_in_place(module: Any, saved_metadata: object, current: object) -> bool:
    """Whether filling the tensors of a torch module's state_dict is all that its load_state_dict would do."""
    torch = loaded("torch")
    if torch is None or not isinstance(module, torch.nn.Module):
        return False
    # Versions say how older checkpoints are converted; the same version converts nothing.
    if saved_metadata is None or getattr(current, "_metadata", None) != saved_metadata:
        return False
    parts = list(module.modules())
    classes = set(map(type, parts))
    return all(_is_stock(cls, torch.nn.Module) for cls in classes) and not any(map(_has_own_ways, parts))


@functools.lru_cache(maxsize=256)
def _is_lazy(cls: type) -> bool:
    torch = loaded("torch")
    return torch is not None and issubclass(cls, torch.nn.parameter.UninitializedTensorMixin)


def _is_stock(cls: Any, base: Any) -> bool:
    if any(getattr(cls, name) is not getattr(base, name) for name in _STATE_METHODS):
        return False
    # torch's own layers convert old versions there, and do nothing else.
    loader = cls._load_from_state_dict
    return loader is base._load_from_state_dict or loader.__module__.startswith("torch.nn.modules.")


def _has_own_ways(module: Any) -> bool:
    """Whether this one module, unlike others of its class, has hooks or methods put in place of its class's."""
    return not _STATE_METHODS.isdisjoint(vars(module)) or any(getattr(module, name, None) for name in _STATE_HOOKS)


def _through_buffer(tensor: Any) -> TargetMemory | Refused:
    host = loaded("torch").empty(tensor.shape, dtype=tensor.dtype)
    found = inspect_array(host, "tensor")
    if isinstance(found, Refused):
        return found
    publish = functools.partial(tensor.detach().copy_, host)
    return TargetMemory(found.dtype, found.carrier, found.address, publish)


def _is_mutable_dataclass(value: object) -> bool:
    if not dataclasses.is_dataclass(value) or isinstance(value, type | enum.Enum):
        return False
    return not value.__dataclass_params__.frozen  # type: ignore[attr-defined]


def _why_not(value: object) -> str:
    if is_stateful(value) or is_mutable(value) or generator_kind(value, loaded("torch")) is not None:
        return ""
    kind = array_kind(value)
    if kind == "jax":
        return "a JAX array cannot be changed"
    if kind == "array" and isinstance(value, np.ndarray) and not value.flags.writeable:
        return "the array is read-only"
    if kind is not None:
        return ""
    if _is_loader(value):
        return f"a torch {type(value).__name__} does not say where it is"
    return f"{type(value).__name__} cannot be changed in place"


def _hint_for(value: object) -> str:
    if _is_loader(value):
        return _FOR_LOADERS
    try:
        encode_state({"value": value})
    except StateError:
        return _FOR_OBJECTS
    return _WRAP


def _is_loader(value: object) -> bool:
    """Whether it is a data loader, an iterator of one, a sampler or a dataset of torch's, or made from one."""
    return any(base.__module__.startswith("torch.utils.data.") for base in type(value).__mro__)
