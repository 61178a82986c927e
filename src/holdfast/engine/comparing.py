"""What differs between a part of the checkpoint and the program's value at the same place."""

import collections
import dataclasses
import enum
from typing import Any

import numpy as np

from holdfast.engine.adapters import TargetMemory, find_restorable
from holdfast.format.aliases import spread_axes
from holdfast.format.carriers import Refused, array_kind
from holdfast.format.classes import find_class
from holdfast.format.frameworks import loaded
from holdfast.format.generators import GENERATOR_KINDS, generator_kind
from holdfast.format.memory import ArraySpec
from holdfast.format.nodes import Node, field
from holdfast.format.registry import is_namedtuple_class, type_name
from holdfast.format.select import MAPPING_KINDS
from holdfast.format.stateful import is_stateful

__all__ = ["corresponds", "difference_of", "takes_all", "unlike"]

_ARRAY_KINDS = ("array", "tensor", "jax", "jax_key")


def corresponds(node: Node, like: object) -> bool:
    """Whether the node and the program's value are of the same sort, so that one can be loaded into the other."""
    kind = "list" if isinstance(node, list) else node.get("kind") if isinstance(node, dict) else "plain"
    if kind in _ARRAY_KINDS:
        return array_kind(like) is not None and not (isinstance(like, np.ndarray) and like.dtype == object)
    if kind in MAPPING_KINDS or kind == "state":
        return isinstance(like, dict) or is_stateful(like)
    if kind in GENERATOR_KINDS:
        return generator_kind(like, loaded("torch")) == kind
    if kind == "dataclass":
        return dataclasses.is_dataclass(like) and not is_stateful(like)
    if kind == "namedtuple":
        return is_namedtuple_class(type(like))
    exact = {"list": list, "tuple": tuple, "deque": collections.deque, "set": set, "bytearray": bytearray}.get(
        str(kind)
    )
    if exact is not None:
        return type(like) is exact
    if kind == "object_array":
        return isinstance(like, np.ndarray) and like.dtype == object
    # A plain value takes the place of any other, but not of something that is restored in place.
    return not any(True for _ in find_restorable(like, ""))


def difference_of(node: Node, like: object) -> str:
    """Why a value of the right sort is still not the right one."""
    if not isinstance(node, dict):
        return ""
    kind = node.get("kind")
    if kind in _ARRAY_KINDS:
        return ""  # `unlike` compares them, once their memory is known
    if kind in ("dataclass", "namedtuple", "enum") and _is_user_object(like, str(kind)):
        if find_class(node, like) is not type(like):
            return f"class mismatch: the program has {type_name(type(like))}, the checkpoint {field(node, 'type', str)}"
    elif kind == "deque" and isinstance(like, collections.deque):
        if like.maxlen is not None and len(field(node, "of", list)) > like.maxlen:
            return f"the program's deque holds at most {like.maxlen}, the checkpoint has {len(node['of'])} elements"
    elif kind == "object_array" and isinstance(like, np.ndarray) and like.dtype == object:
        if list(like.shape) != field(node, "shape", list):
            return f"wrong shape: the program has {list(like.shape)}, the checkpoint {node['shape']}"
    elif kind == "numpy_generator" and isinstance(like, np.random.Generator):
        return _other_bits(node, type(like.bit_generator).__name__)
    elif kind == "numpy_random_state" and isinstance(like, np.random.RandomState):
        return _other_bits(node, str(like.get_state(legacy=False)["bit_generator"]))
    return ""


def unlike(spec: ArraySpec, found: TargetMemory | Refused, like: Any) -> str:
    """How the program's array differs from the checkpoint's in shape and dtype."""
    shape = tuple(getattr(like, "shape", ())) if isinstance(found, Refused) else found.carrier.shape
    if shape != spec.shape:
        return f"wrong shape: the program has {list(shape)}, the checkpoint {list(spec.shape)}"
    if isinstance(found, Refused):
        return f"the program has {found.reason}"
    if found.dtype != spec.dtype:
        return f"wrong dtype: the program has {found.dtype}, the checkpoint {spec.dtype}"
    return ""


def takes_all(spec: ArraySpec, carrier: Any) -> bool:
    """Whether each element has memory of its own, or is repeated in the checkpoint just the same."""
    if carrier.flags.forc:
        return True
    repeated = spread_axes(carrier)
    strides = spec.view.strides if spec.view is not None else ()
    return not repeated or (bool(strides) and all(strides[axis] == 0 for axis in repeated))


def _other_bits(node: Node, name: str) -> str:
    saved = field(node, "state", dict).get("bit_generator")
    return "" if saved == name else f"class mismatch: the program's generator is {name}, the checkpoint's {saved}"


def _is_user_object(like: object, kind: str) -> bool:
    if kind == "enum":
        return isinstance(like, enum.Enum)
    return is_namedtuple_class(type(like)) if kind == "namedtuple" else dataclasses.is_dataclass(like)
