"""The program's arrays, of whichever library, as carriers: numpy arrays of plain dtypes that view the same memory."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from holdfast.format.arrays import Carrier, address_of
from holdfast.format.dtypes import DtypeName, carrier_dtype, dtype_name, storage_dtype, torch_dtype_name
from holdfast.format.frameworks import loaded

__all__ = [
    "NativeArray",
    "Refused",
    "ToHost",
    "array_kind",
    "inspect_array",
    "note_order",
    "tensor_carrier",
]

ToHost = Callable[[Any], Any]


class NativeArray(msgspec.Struct, frozen=True):
    """An array of the program."""

    dtype: DtypeName
    carrier: Carrier
    address: int
    """Of the carrier's first element."""
    flags: dict[str, Any]
    """What the node says besides."""
    in_place: bool
    """Whether the carrier is the program's own memory, so that writing to it changes the array."""


class Refused(NamedTuple):
    """Why a value cannot be represented, and what to do instead."""

    reason: str
    hint: str = ""


# What nearly all arrays are instances of; those of torch are added when the first tensor is met.
_KINDS: dict[type, str] = {np.ndarray: "array"}


def array_kind(value: object) -> str | None:
    """Whether the value is an array at all: `array`, `tensor`, `jax` or None."""
    known = _KINDS.get(type(value))
    if known is not None:
        return known
    if isinstance(value, np.ndarray):
        return "array"
    torch = loaded("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        _KINDS.update({torch.Tensor: "tensor", torch.nn.Parameter: "tensor"})
        return "tensor"
    jax = loaded("jax")
    return "jax" if jax is not None and isinstance(value, jax.Array) else None


def inspect_array(value: Any, kind: str, to_host: ToHost | None = None) -> NativeArray | Refused:
    """The array's dtype and carrier. Object arrays are not for this function.

    `to_host` brings a tensor of an accelerator into memory of the host; by default it is copied there and then.
    """
    if kind == "tensor":
        return _inspect_torch(value, loaded("torch"), to_host or _copy_to_host)
    if kind == "array":
        return _inspect_numpy(value)
    return _inspect_jax(value, loaded("jax"))


def _copy_to_host(tensor: Any) -> Any:
    return tensor.cpu().resolve_conj().resolve_neg()


def memory_order(carrier: Carrier) -> list[int] | None:
    """The axes from the slowest to the fastest, where the memory is dense but not in C order; else None."""
    if carrier.ndim < 2 or carrier.flags.c_contiguous or not carrier.size:
        return None
    axes = sorted(range(carrier.ndim), key=lambda axis: -carrier.strides[axis])
    return axes if carrier.transpose(axes).flags.c_contiguous else None


def note_order(node: dict[str, Any], array: NativeArray) -> None:
    """Say in the node in which order the memory is, where that is not C order."""
    if not array.carrier.flags.c_contiguous and (order := memory_order(array.carrier)) is not None:
        node["order"] = order


@lru_cache(maxsize=4096)
def _numpy_types(dtype: "np.dtype[Any]") -> "tuple[DtypeName, np.dtype[Any]] | None":
    name = dtype_name(dtype)
    return None if name is None else (name, carrier_dtype(name))


def _inspect_numpy(value: "np.ndarray[Any, Any]") -> NativeArray | Refused:
    cls = type(value)
    if cls is not np.ndarray:
        if cls is not np.memmap:
            return Refused(f"the array subclass {cls.__name__}", "save value.view(numpy.ndarray) or its parts")
        value = value.view(np.ndarray)
    types = _numpy_types(value.dtype)
    if types is None:
        return Refused(
            f"an array of dtype {value.dtype}",
            "use a dtype of fixed size without Python objects, nested at most 8 deep",
        )
    return NativeArray(types[0], value.view(types[1]), address_of(value), {}, in_place=True)


def _inspect_torch(value: Any, torch: Any, to_host: ToHost) -> NativeArray | Refused:
    flags: dict[str, Any] = {}
    if type(value) is not torch.Tensor:
        if type(value) is not torch.nn.Parameter:
            what = f"the tensor subclass {type(value).__name__}"
            return Refused(what, "save a plain tensor (value.to_local(), value.data)")
        flags["parameter"] = True
    types = _torch_types(value.dtype, torch)
    needs_grad = value.requires_grad
    if needs_grad:
        flags["grad"] = True
    if types is not None and value.is_cpu:
        try:
            plain = value.detach() if needs_grad else value
            return NativeArray(types.name, _view_host(plain, types), plain.data_ptr(), flags, in_place=True)
        except (RuntimeError, TypeError):  # torch refuses to view what is not plain memory; of that there is little
            pass
    if value.layout is not torch.strided or value.is_nested:
        return Refused(f"a {value.layout} tensor", "save its indices and values, or value.to_dense()")
    if value.is_quantized or value.is_meta:
        what = "quantised tensor" if value.is_quantized else "tensor without memory (device meta)"
        return Refused(f"a {what}", "save value.int_repr() with its scales, or a real tensor")
    if types is None:
        return Refused(f"a tensor of dtype {value.dtype}", "save it as uint8 (value.view(torch.uint8))")
    try:
        plain = value.detach() if needs_grad else value
        host = (_copy_to_host if plain.is_cpu else to_host)(plain)  # conjugated or negated whenever it is read, too
        carrier = _view_host(host, types)
    except (RuntimeError, TypeError) as error:  # inside torch.func transforms, or a backend without host copies
        return Refused(f"a tensor whose memory cannot be reached ({error})", "save a plain tensor")
    return NativeArray(types.name, carrier, host.data_ptr(), flags, in_place=False)


def tensor_carrier(tensor: Any) -> Carrier:
    """The carrier of a tensor that was inspected before, and found to be in the host's memory."""
    types = _torch_types(tensor.dtype, loaded("torch"))
    assert types is not None, tensor.dtype
    return _view_host(tensor.detach() if tensor.requires_grad else tensor, types)


def _view_host(host: Any, types: "_TorchTypes") -> Carrier:
    carrier: Carrier = host.numpy().view(types.carrier) if types.whole is None else host.view(types.whole).numpy()
    return carrier


class _TorchTypes(NamedTuple):
    name: DtypeName
    carrier: "np.dtype[Any]"
    whole: Any
    """The whole numbers that torch views the memory as, where numpy does not have the type (bfloat16 and the like)."""


@lru_cache(maxsize=256)
def _torch_types(dtype: Any, torch: Any) -> _TorchTypes | None:
    name = torch_dtype_name(dtype)
    if name is None:
        return None
    carrier = carrier_dtype(name)
    numpy_has_it = storage_dtype(name).name == name
    whole = None if numpy_has_it else {1: torch.uint8, 2: torch.int16, 4: torch.int32}[carrier.itemsize]
    return _TorchTypes(name, carrier, whole)


def _inspect_jax(value: Any, jax: Any) -> NativeArray | Refused:
    if isinstance(value, jax.core.Tracer):
        return Refused("an array that is being traced", "save outside of jit and grad")
    if not value.is_fully_addressable:
        return Refused("an array that is spread over several processes", "gather it first")
    if value.is_deleted():
        return Refused("an array whose buffer was donated or deleted", "save the array that replaced it")
    host = np.asarray(value)
    types = _numpy_types(host.dtype)
    if types is None:
        return Refused(f"an array of dtype {host.dtype}", "use a dtype of fixed size")
    return NativeArray(types[0], host.view(types[1]), address_of(host), {}, in_place=False)
