"""Memory for the leaves of a stored state, and arrays of any library on it; checked before it is allocated."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from holdfast.core.errors import FormatError, UnsupportedError
from holdfast.core.limits import MAX_LEAVES, MAX_NDIM
from holdfast.format.aliases import PartOf, View
from holdfast.format.arrays import MAX_LEAF_BYTES, Carrier, Destination, LeafInfo
from holdfast.format.dtypes import (
    DtypeName,
    carrier_dtype,
    freeze_dtype,
    itemsize,
    numpy_dtype,
    storage_dtype,
    torch_dtype,
)
from holdfast.format.frameworks import Frameworks
from holdfast.format.nodes import Node, field, flag, int_list, malformed

__all__ = ["ArraySpec", "LeafMemory", "view_carrier"]


class ArraySpec(msgspec.Struct, frozen=True):
    """What a node says of an array: which leaf, and what it looks like."""

    leaf: int
    dtype: DtypeName
    shape: tuple[int, ...]
    view: View | None
    order: tuple[int, ...] | None
    part_of: PartOf | None = None


def view_carrier(base: Carrier, spec: ArraySpec, dtype: "np.dtype[Any]") -> Carrier:
    """The part of the C-contiguous base's memory that a view describes; FormatError where it reaches outside."""
    assert spec.view is not None
    data = base.reshape(-1).view(np.uint8)
    try:
        return np.ndarray(spec.shape, dtype, data, spec.view.offset, spec.view.strides)
    except (ValueError, TypeError, OverflowError) as error:
        raise FormatError(f"a view of leaf {spec.leaf} reaches outside of it ({error})") from error


class LeafMemory:
    """Allocates each leaf once, when the first array of it is wanted."""

    def __init__(self, leaves: Sequence[LeafInfo], frameworks: Frameworks) -> None:
        if len(leaves) > MAX_LEAVES:
            raise FormatError(f"{len(leaves)} leaves, the limit is {MAX_LEAVES}")
        self._leaves = leaves
        self._frameworks = frameworks
        self._storage: dict[int, Carrier] = {}
        self._wholes: dict[int, ArraySpec] = {}

    def spec(self, node: Node) -> ArraySpec:
        """What the node describes, checked."""
        leaf = field(node, "leaf", int)
        spec = self._wholes.get(leaf)
        if spec is None:
            if not 0 <= leaf < len(self._leaves):
                raise malformed(node, f"leaf to be below {len(self._leaves)}, found {leaf}")
            spec = self._whole(leaf)
        if "view" in node:
            spec = _view_spec(leaf, field(node, "view", dict))
        elif "order" in node:
            order = int_list(node, "order", MAX_NDIM)
            if sorted(order) != list(range(len(spec.shape))):
                raise malformed(node, f"order to be a permutation of {len(spec.shape)} axes")
            spec = msgspec.structs.replace(spec, order=tuple(order))
        if "part" in node:
            spec = msgspec.structs.replace(spec, part_of=_part_of(field(node, "part", dict), len(spec.shape)))
        return spec

    def has(self, leaf: int) -> bool:
        """Whether memory was allocated for the leaf."""
        return leaf in self._storage

    def storage(self, spec: ArraySpec) -> Carrier:
        """The array's memory, of numpy's own dtype where it has one, else of the carrier's."""
        if spec.leaf not in self._storage:
            self._storage[spec.leaf] = self._allocate(spec)
        base = self._storage[spec.leaf]
        if spec.view is None:
            return base
        if not base.flags.c_contiguous:
            raise FormatError(f"leaf {spec.leaf} is viewed, but not in C order")
        return view_carrier(base, spec, storage_dtype(spec.dtype))

    def leaf_carrier(self, leaf: int) -> Carrier:
        """The memory of the whole leaf, allocated if it was not yet, as plain numbers."""
        spec = self._whole(leaf)
        return self.storage(spec).view(carrier_dtype(spec.dtype))

    def destinations(self) -> list[Destination]:
        """What has to be read."""
        return [Destination(leaf, self.leaf_carrier(leaf)) for leaf in self._storage]

    def numpy_array(self, spec: ArraySpec) -> Any:
        """An array on the leaf's memory, to be filled later."""
        wanted = numpy_dtype(spec.dtype)
        storage = self.storage(spec)
        return storage if storage.dtype == wanted else storage.view(wanted)

    def tensor(self, spec: ArraySpec, node: Node) -> Any:
        """A torch tensor on the leaf's memory; a numpy array where torch is not wanted or not installed."""
        torch = self._frameworks.torch
        if torch is None:
            return self.numpy_array(spec)
        dtype = torch_dtype(spec.dtype)
        if dtype is None:
            raise UnsupportedError(f"the installed torch has no dtype {spec.dtype!r}", hint="load as numpy arrays")
        if spec.view is not None and spec.view.offset % itemsize(spec.dtype):
            raise malformed(node, "a tensor whose elements are aligned")
        try:
            plain = torch.from_numpy(self.storage(spec))
            # numpy gives an array without elements strides of 0, which no tensor of torch's own has.
            tensor = (plain if plain.numel() else torch.empty(spec.shape, dtype=plain.dtype)).view(dtype)
            if flag(node, "parameter"):
                return torch.nn.Parameter(tensor, requires_grad=flag(node, "grad"))
            return tensor.requires_grad_() if flag(node, "grad") else tensor
        except (RuntimeError, ValueError, TypeError) as error:
            raise malformed(node, f"a tensor that torch can hold ({error})") from error

    def _allocate(self, spec: ArraySpec) -> Carrier:
        whole = self._whole(spec.leaf)
        shape = whole.shape if spec.order is None else tuple(whole.shape[axis] for axis in spec.order)
        try:
            dense: Carrier = np.empty(shape, storage_dtype(whole.dtype))
        except (MemoryError, ValueError) as error:
            info = self._leaves[spec.leaf]
            raise UnsupportedError(f"no memory for leaf {info.name!r} ({info.nbytes} bytes)") from error
        return dense if spec.order is None else dense.transpose(np.argsort(spec.order))

    def _whole(self, leaf: int) -> ArraySpec:
        whole = self._wholes.get(leaf)
        if whole is None:
            info = self._leaves[leaf]
            whole = self._wholes[leaf] = ArraySpec(leaf, freeze_dtype(info.dtype), info.shape, view=None, order=None)
        return whole


def _view_spec(leaf: int, view: Node) -> ArraySpec:
    shape = int_list(view, "shape", MAX_NDIM, lambda length: 0 <= length < MAX_LEAF_BYTES)
    dtype = freeze_dtype(view.get("dtype"))
    if math.prod(shape) * itemsize(dtype) > MAX_LEAF_BYTES:
        raise malformed(view, "a view of a size that a leaf can have")
    return ArraySpec(leaf, dtype, tuple(shape), _view(view, len(shape)), None)


def _part_of(part: Node, ndim: int) -> PartOf:
    return PartOf(field(part, "of", int), _view(part, ndim))


def _view(node: Node, ndim: int) -> View:
    strides = int_list(node, "strides", MAX_NDIM, lambda stride: abs(stride) < MAX_LEAF_BYTES)
    offset = field(node, "offset", int)
    if len(strides) != ndim or not 0 <= offset < MAX_LEAF_BYTES:
        raise malformed(node, "a view with a stride per axis and an offset in the leaf")
    return View(offset, tuple(strides))
