"""Values without parts that belong to numpy and torch: scalars, dtypes, devices, sizes."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from holdfast.core.errors import UnsupportedError
from holdfast.core.limits import MAX_TREE_NODES
from holdfast.format.dtypes import DtypeName, dtype_name, freeze_dtype, numpy_dtype
from holdfast.format.frameworks import Frameworks
from holdfast.format.nodes import Node, base64_field, base64_text, field, int_list, malformed
from holdfast.format.registry import Record

__all__ = ["FOREIGN_DECODERS", "encode_dtype", "encode_scalar", "torch_encoders"]

_TORCH_NAME = re.compile(r"[a-z][a-z0-9_]{1,30}\Z", re.ASCII)
_DEVICE = re.compile(r"[a-z]{2,20}(?::\d{1,4})?\Z", re.ASCII)
# Types whose arrays are refused, but which can be named: of objects, and strings of no length.
_NAME_ONLY = {dtype.str: dtype for dtype in map(np.dtype, ("O", "<U0", ">U0", "S0", "V0"))}


def encode_scalar(value: "np.generic") -> Node | None:
    """The node of a numpy scalar; None for one that holds objects."""
    name = _any_name(value.dtype)
    if name is None or name == "|O":
        return None
    data = value.tobytes()[: value.dtype.itemsize]  # numpy gives an empty string four bytes that are not its own
    return {"kind": "numpy_scalar", "dtype": name, "base64": base64_text(data)}


def encode_dtype(value: "np.dtype[Any]") -> Node | None:
    """The node of a numpy dtype; None for one that has no name of ours."""
    name = _any_name(value)
    return None if name is None else {"kind": "numpy_dtype", "dtype": name}


def torch_encoders(torch: Any) -> dict[type, Callable[[Any], Node]]:
    """By type, for the torch that the program imported."""
    return {
        torch.dtype: lambda value: {"kind": "torch_dtype", "name": str(value).removeprefix("torch.")},
        torch.device: lambda value: {"kind": "torch_device", "name": str(value)},
        torch.Size: lambda value: {"kind": "torch_size", "of": list(value)},
    }


def _any_name(dtype: "np.dtype[Any]") -> DtypeName | None:
    if dtype.str in _NAME_ONLY and dtype == _NAME_ONLY[dtype.str]:
        return dtype.str
    return dtype_name(dtype)


def _decode_dtype(node: Node, _: Frameworks) -> "np.dtype[Any]":
    name = node.get("dtype")
    if isinstance(name, str) and name in _NAME_ONLY:
        return _NAME_ONLY[name]
    return numpy_dtype(freeze_dtype(name))


def _decode_scalar(node: Node, frameworks: Frameworks) -> Any:
    dtype = _decode_dtype(node, frameworks)
    data = base64_field(node)
    if len(data) != dtype.itemsize or dtype.hasobject:
        raise malformed(node, f"{dtype.itemsize} bytes, found {len(data)}")
    if not data:
        return dtype.type()
    # A copy, so that a structured scalar owns memory that can be written.
    return np.frombuffer(data, dtype).copy()[0]


def _decode_torch_dtype(node: Node, frameworks: Frameworks) -> Any:
    name = field(node, "name", str)
    if not _TORCH_NAME.match(name):
        raise malformed(node, "the name of a torch dtype")
    if frameworks.torch is None:
        return Record("torch.dtype", "torch_dtype", [("name", name)])
    found = getattr(frameworks.torch, name, None)
    if not isinstance(found, frameworks.torch.dtype):
        raise UnsupportedError(f"the installed torch has no dtype {name}", hint="load with a newer torch")
    return found


def _decode_device(node: Node, frameworks: Frameworks) -> Any:
    name = field(node, "name", str)
    if not _DEVICE.match(name):
        raise malformed(node, "the name of a device")
    if frameworks.torch is None:
        return Record("torch.device", "torch_device", [("name", name)])
    try:
        return frameworks.torch.device(name)
    except RuntimeError as error:
        raise UnsupportedError(f"the installed torch has no device {name}", hint="load as numpy arrays") from error


def _decode_size(node: Node, frameworks: Frameworks) -> tuple[int, ...]:
    lengths = int_list(node, "of", MAX_TREE_NODES, lambda length: -(1 << 63) <= length < 1 << 63)
    return tuple(lengths) if frameworks.torch is None else frameworks.torch.Size(lengths)


FOREIGN_DECODERS: dict[str, Callable[[Node, Frameworks], Any]] = {
    "numpy_dtype": _decode_dtype,
    "numpy_scalar": _decode_scalar,
    "torch_dtype": _decode_torch_dtype,
    "torch_device": _decode_device,
    "torch_size": _decode_size,
}
