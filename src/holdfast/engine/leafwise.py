"""Leaf by leaf through a checkpoint, with bounded memory: for whoever compares or converts and needs no tree."""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from holdfast.core.errors import FormatError
from holdfast.engine.loading import Source, fill
from holdfast.format.arrays import Destination
from holdfast.format.dtypes import freeze_dtype, itemsize, numpy_dtype
from holdfast.format.manifest import LeafRecord, Manifest

__all__ = ["as_numbers", "leaf_bytes", "read_batches"]

# Whole chunks are read and verified: many small leaves share one, so they are read together.
BATCH_BYTES = 64 << 20

_ADDED = 2  # what `isbuiltin` says of dtypes that a library registered

RawLeaf = npt.NDArray[np.uint8]


class _Batch:
    """The memory of a few leaves."""

    def __init__(self, destinations: list[Destination]) -> None:
        self.destinations = destinations


def leaf_bytes(leaf: LeafRecord) -> int:
    """How many bytes a leaf has, by its place in the shard."""
    return leaf.end - leaf.begin


def batches(leaves: list[LeafRecord], wanted: Iterable[int], *, limit_bytes: int = BATCH_BYTES) -> Iterator[list[int]]:
    """The wanted leaves in the order of the file, in groups of at most that many bytes, or of one larger leaf."""
    group: list[int] = []
    size_bytes = 0
    for index in sorted(wanted, key=lambda index: (leaves[index].shard, leaves[index].begin)):
        if group and size_bytes + leaf_bytes(leaves[index]) > limit_bytes:
            yield group
            group, size_bytes = [], 0
        group.append(index)
        size_bytes += leaf_bytes(leaves[index])
    if group:
        yield group


def read_batches(source: Source, manifest: Manifest, wanted: Iterable[int]) -> Iterator[dict[int, RawLeaf]]:
    """The verified bytes of the wanted leaves, a few at a time, in the order of the file."""
    for group in batches(manifest.body.leaves, wanted):
        yield read_group(source, manifest, group)


def read_group(source: Source, manifest: Manifest, group: Iterable[int]) -> dict[int, RawLeaf]:
    """The verified bytes of these leaves."""
    raw = {index: np.empty(leaf_bytes(manifest.body.leaves[index]), np.uint8) for index in group}
    fill(source, manifest, _Batch([Destination(index, data) for index, data in raw.items()]))
    return raw


def as_numbers(leaf: LeafRecord, raw: RawLeaf) -> npt.NDArray[np.generic]:
    """The leaf as numpy sees it; FormatError where numpy has no such dtype or the size does not fit the shape."""
    name = freeze_dtype(leaf.dtype)
    expected = itemsize(name)
    for length in leaf.shape:
        expected *= length
    if expected != raw.nbytes:
        raise FormatError(f"leaf {leaf.name!r} has {raw.nbytes} bytes, its shape and dtype want {expected}")
    if name == "bfloat16":
        # Every bfloat16 is the upper half of a float32; no library is needed to read it.
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(leaf.shape)
    array = raw.view(numpy_dtype(name)).reshape(leaf.shape)
    # The types that ml_dtypes adds are all narrower than float32, which holds each of their values exactly.
    return array.astype(np.float32) if array.dtype.isbuiltin == _ADDED else array
