"""Names of element types: one spelling for numpy, torch and JAX, and what a safetensors file calls them."""

import math
import re
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from holdfast.core.errors import FormatError, UnsupportedError, printable
from holdfast.core.limits import MAX_NDIM

__all__ = [
    "DtypeName",
    "carrier_dtype",
    "dtype_name",
    "freeze_dtype",
    "is_known_dtype",
    "itemsize",
    "numpy_dtype",
    "safetensors_type",
    "storage_dtype",
    "torch_dtype",
    "torch_dtype_name",
]

DtypeName = str | Sequence[Any]
"""A name such as `float32`, a numpy string such as `<U12`, or a list that describes a structured or sub-array dtype."""


class _Kind(NamedTuple):
    tag: str
    size_bytes: int
    extra_dims: tuple[int, ...] = ()


_NAMED = {
    "bool": _Kind("BOOL", 1),
    "uint8": _Kind("U8", 1),
    "int8": _Kind("I8", 1),
    "uint16": _Kind("U16", 2),
    "int16": _Kind("I16", 2),
    "uint32": _Kind("U32", 4),
    "int32": _Kind("I32", 4),
    "uint64": _Kind("U64", 8),
    "int64": _Kind("I64", 8),
    "float16": _Kind("F16", 2),
    "bfloat16": _Kind("BF16", 2),
    "float32": _Kind("F32", 4),
    "float64": _Kind("F64", 8),
    "float8_e4m3fn": _Kind("F8_E4M3", 1),
    "float8_e5m2": _Kind("F8_E5M2", 1),
    "complex64": _Kind("F32", 8, (2,)),
    "complex128": _Kind("F64", 16, (2,)),
}
# Types that the safetensors format has no tag for; they are stored as their bytes.
_BYTES_ONLY = {
    "complex32": 4,
    "bcomplex32": 4,
    "float4_e2m1fn_x2": 1,
    "float8_e3m4": 1,
    "float8_e4m3": 1,
    "float8_e4m3b11fnuz": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float6_e2m3fn": 1,
    "float6_e3m2fn": 1,
    "float4_e2m1fn": 1,
    "int1": 1,
    "int2": 1,
    "int4": 1,
    "uint1": 1,
    "uint2": 1,
    "uint4": 1,
}
_NUMPY_OWN = frozenset(_NAMED) - {"bfloat16", "float8_e4m3fn", "float8_e5m2"}
_ML_DTYPES = (frozenset(_BYTES_ONLY) | {"bfloat16", "float8_e4m3fn", "float8_e5m2"}) - {"float4_e2m1fn_x2"}
# torch has these names for types without arithmetic or storage of their own; a tensor of one cannot be viewed as bytes.
_TORCH_UNUSABLE = re.compile(r"u?int[1-7]\Z|q|bits?")
_NUMPY_STRING = re.compile(
    r"(?:[<>|][iufcbSUV][0-9]{1,9}|[<>][mM]8(?:\[[0-9]{0,9}[A-Za-z\u03bc]{1,3}(?:/[0-9]{1,9})?\])?)\Z"
)
_MAX_NESTING = 8
_MAX_FIELDS = 10_000
_MAX_ITEM_BYTES = 2**31 - 1
_CARRIERS: dict[int, "np.dtype[Any]"] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.int16),
    4: np.dtype(np.int32),
    8: np.dtype(np.int64),
}


@lru_cache(maxsize=4096)
def dtype_name(dtype: "np.dtype[Any]") -> DtypeName | None:
    """The name of a numpy dtype (with those that ml_dtypes adds).

    None for one that holds objects, has no bytes, or is nested or large beyond what `freeze_dtype` takes.
    """
    if dtype.hasobject or dtype.itemsize == 0:
        return None
    if dtype.isbuiltin == 2:
        return dtype.name if dtype.name in _ML_DTYPES else None
    if dtype.subdtype is not None:
        inner = dtype_name(dtype.subdtype[0])
        return None if inner is None else _if_known(("sub", inner, tuple(dtype.subdtype[1])))
    if dtype.fields is not None:
        return _structured_name(dtype)
    if dtype.isnative and dtype.name in _NUMPY_OWN:
        return dtype.name
    return _if_known(dtype.str)


def torch_dtype_name(dtype: object) -> str | None:
    """The name of a torch dtype; None for quantised and placeholder types."""
    name = str(dtype).removeprefix("torch.")
    return name if name in _NAMED or (name in _BYTES_ONLY and not _TORCH_UNUSABLE.match(name)) else None


def freeze_dtype(value: object) -> DtypeName:
    """The dtype as it came out of JSON, checked and made hashable; FormatError where it is none."""
    if type(value) is str and value in _NAMED:
        return value
    return _freeze(value, 0)


def is_known_dtype(value: object) -> bool:
    """Whether the value, from JSON, names an element type."""
    try:
        freeze_dtype(value)
    except FormatError:
        return False
    return True


def itemsize(dtype: DtypeName) -> int:
    """Bytes of one element. The name must have been made by this module or checked by `freeze_dtype`."""
    if isinstance(dtype, str):
        named = _NAMED.get(dtype)
        if named is not None:
            return named.size_bytes
        return _BYTES_ONLY.get(dtype) or _numpy_from_string(dtype).itemsize
    if dtype[0] == "sub":
        return itemsize(dtype[1]) * math.prod(dtype[2])
    return int(dtype[1])


def safetensors_type(dtype: DtypeName) -> tuple[str, tuple[int, ...]]:
    """The tag of a safetensors header and the dimensions to append to the shape."""
    named = _NAMED.get(dtype) if isinstance(dtype, str) else None
    return (named.tag, named.extra_dims) if named else ("U8", (itemsize(dtype),))


def carrier_dtype(dtype: DtypeName) -> "np.dtype[Any]":
    """The plain numpy dtype of the same size, through which the bytes move."""
    return _carrier_of_size(itemsize(dtype))


def storage_dtype(dtype: DtypeName) -> "np.dtype[Any]":
    """The numpy dtype to allocate: numpy's own where it has one, else the carrier's."""
    if isinstance(dtype, str) and dtype in _NUMPY_OWN:
        return np.dtype(dtype)
    return carrier_dtype(dtype)


def numpy_dtype(dtype: DtypeName) -> "np.dtype[Any]":
    """The numpy dtype of that name; UnsupportedError where numpy (with ml_dtypes, if needed) has none."""
    if not isinstance(dtype, str):
        return _numpy_from_list(dtype)
    if dtype in _NUMPY_OWN:
        return np.dtype(dtype)
    if dtype in _ML_DTYPES:
        return _from_ml_dtypes(dtype)
    if dtype in _BYTES_ONLY:
        raise UnsupportedError(f"numpy has no dtype {dtype}", hint="load it with torch installed, as native arrays")
    return _numpy_from_string(dtype)


def torch_dtype(dtype: DtypeName) -> Any:
    """The torch dtype of that name, or None. torch must have been imported."""
    if not isinstance(dtype, str) or (dtype not in _NAMED and dtype not in _BYTES_ONLY):
        return None
    found = getattr(sys.modules["torch"], dtype, None)
    return found if found is not None and torch_dtype_name(found) == dtype else None


def _structured_name(dtype: "np.dtype[Any]") -> DtypeName | None:
    fields = []
    known: Mapping[str, Any] = dtype.fields or {}
    for name in dtype.names or ():
        inner, offset, *titles = known[name]
        inner_name = dtype_name(inner)
        if inner_name is None or titles:  # a field's second name has no place in ours: it would be lost
            return None
        fields.append((name, inner_name, int(offset)))
    return _if_known(("struct", dtype.itemsize, tuple(fields)))


def _if_known(name: DtypeName) -> DtypeName | None:
    return name if is_known_dtype(name) else None


def _freeze(value: object, depth: int) -> DtypeName:
    if isinstance(value, str):
        if value in _NAMED or value in _BYTES_ONLY:
            return value
        if 0 < _numpy_from_string(value).itemsize <= _MAX_ITEM_BYTES:
            return value
    elif isinstance(value, list | tuple) and len(value) == 3 and depth < _MAX_NESTING:
        if value[0] == "sub" and _are_lengths(value[2]):
            frozen = ("sub", _freeze(value[1], depth + 1), tuple(value[2]))
            if 0 < itemsize(frozen) <= _MAX_ITEM_BYTES:
                return frozen
        if value[0] == "struct" and _is_count(value[1], _MAX_ITEM_BYTES) and isinstance(value[2], list | tuple):
            return ("struct", value[1], _freeze_fields(value[2], value[1], depth))
    raise _not_a_dtype(value)


def _freeze_fields(fields: Sequence[object], size_bytes: int, depth: int) -> tuple[tuple[str, DtypeName, int], ...]:
    frozen: list[tuple[str, DtypeName, int]] = []
    for field in fields[: _MAX_FIELDS + 1]:
        if not (isinstance(field, list | tuple) and len(field) == 3 and isinstance(field[0], str)):
            raise _not_a_dtype(field)
        inner = _freeze(field[1], depth + 1)
        if not _is_count(field[2], size_bytes) or field[2] + itemsize(inner) > size_bytes:
            raise _not_a_dtype(field)
        frozen.append((field[0], inner, field[2]))
    if len(frozen) > _MAX_FIELDS or len({name for name, _, _ in frozen}) < len(frozen) or not size_bytes:
        raise _not_a_dtype("a structure with repeated, too many or no fields")
    return tuple(frozen)


def _is_count(value: object, limit: int) -> bool:
    return type(value) is int and 0 <= value <= limit


def _are_lengths(value: object) -> bool:
    if not isinstance(value, list | tuple) or len(value) > MAX_NDIM:
        return False
    return all(_is_count(length, _MAX_ITEM_BYTES) for length in value)


def _not_a_dtype(value: object) -> FormatError:
    return FormatError(f"dtype {printable(repr(value))[:80]} is not one that this version knows")


def _numpy_from_list(dtype: Sequence[Any]) -> "np.dtype[Any]":
    try:
        if dtype[0] == "sub":
            return np.dtype((numpy_dtype(dtype[1]), tuple(dtype[2])))
        names, formats, offsets = zip(*dtype[2], strict=True) if dtype[2] else ((), (), ())
        return np.dtype(
            {
                "names": list(names),
                "formats": [numpy_dtype(inner) for inner in formats],
                "offsets": list(offsets),
                "itemsize": dtype[1],
            }
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise _not_a_dtype(dtype) from error


@lru_cache(maxsize=4096)
def _numpy_from_string(text: str) -> "np.dtype[Any]":
    if not _NUMPY_STRING.match(text):
        raise _not_a_dtype(text)
    try:
        found = np.dtype(text)
    except (TypeError, ValueError) as error:
        raise _not_a_dtype(text) from error
    if found.hasobject:
        raise _not_a_dtype(text)
    return found


@lru_cache(maxsize=64)
def _from_ml_dtypes(name: str) -> "np.dtype[Any]":
    try:
        import ml_dtypes
    except ImportError:
        hint = "pip install ml_dtypes, or use torch"
        raise UnsupportedError(f"numpy has no dtype {name} by itself", hint=hint) from None
    found = getattr(ml_dtypes, name, None)
    if found is None:
        raise UnsupportedError(f"the installed ml_dtypes has no dtype {name}", hint="pip install --upgrade ml_dtypes")
    dtype: np.dtype[Any] = np.dtype(found)
    return dtype


@lru_cache(maxsize=1024)
def _carrier_of_size(size_bytes: int) -> "np.dtype[Any]":
    return _CARRIERS.get(size_bytes) or np.dtype((np.void, size_bytes))
