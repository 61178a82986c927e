"""The array parts of a state: leaves with their names, the memory that is read into, and moving ranges of their bytes.

A *carrier* is a numpy array of a plain dtype that views the memory of the program's array, whatever its strides. The
bytes of a leaf are the carrier's contents in C order.
"""

import math

import msgspec
import numpy as np
import numpy.typing as npt

from holdfast.core.errors import FormatError
from holdfast.core.limits import MAX_NDIM
from holdfast.format.dtypes import DtypeName, freeze_dtype, itemsize
from holdfast.format.moving import move

__all__ = [
    "MAX_LEAF_BYTES",
    "Carrier",
    "Destination",
    "Extent",
    "Leaf",
    "LeafInfo",
    "address_of",
    "bytes_view",
    "copy_range",
    "extent_of",
    "scatter_range",
]

Carrier = npt.NDArray[np.generic]

MAX_LEAF_BYTES = 1 << 60
"""More than any machine has; what claims to be larger is not a leaf."""


class Extent(msgspec.Struct, frozen=True):
    """The addresses between which an array's bytes lie, and of its first element."""

    low: int
    high: int
    start: int


class Leaf(msgspec.Struct, frozen=True):
    """One array of a state that is about to be written. It does not keep the array's memory alive."""

    name: str
    dtype: DtypeName
    shape: tuple[int, ...]
    nbytes: int
    itemsize: int
    """Of the carrier."""
    extent: Extent


class LeafInfo(msgspec.Struct, frozen=True):
    """One array of a stored state, as the manifest describes it; FormatError where that makes no sense."""

    name: str
    dtype: DtypeName
    shape: tuple[int, ...]
    nbytes: int = 0
    """Follows from the others, whatever is given."""

    def __post_init__(self) -> None:
        shape, dtype = self.shape, self.dtype
        for length in shape:
            if type(length) is not int or length < 0 or len(shape) > MAX_NDIM:
                raise FormatError(f"leaf {self.name!r}: {shape[:8]!r} is not a shape")
        freeze_dtype(dtype)
        nbytes = math.prod(shape) * itemsize(dtype)
        if nbytes > MAX_LEAF_BYTES:
            raise FormatError(f"leaf {self.name!r}: {nbytes} bytes are more than any machine has")
        msgspec.structs.force_setattr(self, "nbytes", nbytes)


class Destination(msgspec.Struct, frozen=True):
    """Memory to be filled with the bytes of a leaf: it has the leaf's shape and size."""

    leaf: int
    carrier: Carrier


def address_of(carrier: Carrier) -> int:
    """The address of the first element. numpy takes a microsecond to say it."""
    address: int = carrier.__array_interface__["data"][0]
    return address


def extent_of(carrier: Carrier, start: int) -> Extent:
    """Where the array with that address lies in memory; nothing (low == high) for one without elements."""
    nbytes = carrier.nbytes
    if carrier.flags.forc or not nbytes:
        return Extent(start, start + nbytes, start)
    low = high = start
    for length, stride in zip(carrier.shape, carrier.strides, strict=True):
        reach = (length - 1) * stride
        low, high = (low + reach, high) if stride < 0 else (low, high + reach)
    return Extent(low, high + carrier.itemsize, start)


def bytes_view(carrier: Carrier) -> memoryview:
    """The memory of a C-contiguous carrier as bytes, writable if the carrier is."""
    if not carrier.size:
        return memoryview(b"")
    if carrier.dtype.kind == "V":  # memoryview cannot cast from void
        return carrier.reshape(-1).view(np.uint8).data
    return carrier.data.cast("B")


def copy_range(carrier: Carrier, begin: int, end: int, out: memoryview) -> None:
    """Copy the bytes [begin, end) of the carrier's C-order contents to the start of `out`."""
    if begin >= end:
        return
    if carrier.flags.c_contiguous:
        move(bytes_view(carrier)[begin:end], out[: end - begin])
        return
    row_bytes = carrier.nbytes // carrier.shape[0]
    first, last = -(-begin // row_bytes), end // row_bytes
    if first > last:  # inside one row
        copy_range(carrier[last, ...], begin - last * row_bytes, end - last * row_bytes, out)
        return
    head = first * row_bytes - begin
    if head:
        copy_range(carrier[first - 1, ...], row_bytes - head, row_bytes, out)
    if first < last:
        np.copyto(_rows(carrier, last - first, out[head : head + (last - first) * row_bytes]), carrier[first:last])
    if end > last * row_bytes:
        copy_range(carrier[last, ...], 0, end - last * row_bytes, out[last * row_bytes - begin :])


def scatter_range(carrier: Carrier, begin: int, data: memoryview) -> None:
    """Write the data into the carrier's memory, from byte `begin` of its C-order contents on."""
    end = begin + data.nbytes
    if begin >= end:
        return
    if carrier.flags.c_contiguous:
        move(data, bytes_view(carrier)[begin:end])
        return
    row_bytes = carrier.nbytes // carrier.shape[0]
    first, last = -(-begin // row_bytes), end // row_bytes
    if first > last:
        scatter_range(carrier[last, ...], begin - last * row_bytes, data)
        return
    head = first * row_bytes - begin
    if head:
        scatter_range(carrier[first - 1, ...], row_bytes - head, data[:head])
    if first < last:
        np.copyto(carrier[first:last], _rows(carrier, last - first, data[head : head + (last - first) * row_bytes]))
    if end > last * row_bytes:
        scatter_range(carrier[last, ...], 0, data[last * row_bytes - begin :])


def _rows(carrier: Carrier, count: int, data: memoryview) -> Carrier:
    # Any alignment is fine: numpy reads and writes unaligned memory through this dtype.
    return np.frombuffer(data, np.uint8).view(carrier.dtype).reshape((count, *carrier.shape[1:]))
