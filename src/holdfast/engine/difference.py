"""What differs between two checkpoints, leaf by leaf, in bounded memory."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.core.errors import FormatError, NoCheckpointError
from holdfast.engine.leafwise import RawLeaf, as_numbers, batches, read_group
from holdfast.engine.loading import Source, read_manifest
from holdfast.engine.outline import Entry, outline, value_text
from holdfast.format.manifest import Body, LeafRecord, Manifest, ShardRecord
from holdfast.format.nodes import Node
from holdfast.format.paths import RANDOM_ROOT, is_inside
from holdfast.format.select import select

__all__ = ["ArrayChange", "Difference", "Numbers", "ValueChange", "compare", "compare_arrays"]

_SLICE = 1 << 16
"""Elements that are compared at once: what is computed of them stays in the cache, which is twice as fast."""
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Numbers(NamedTuple):
    """How far two arrays of numbers are apart."""

    max_abs: float
    max_rel: float
    """The largest of |b - a| / max(|a|, |b|)."""
    norm: float
    """The 2-norm of b - a."""
    norm_before: float
    nans_before: int
    nans_after: int


class ArrayChange(NamedTuple):
    """An array that is not the same in both."""

    name: str
    what: str
    """`changed`, `added`, `removed`, `shape` or `dtype`."""
    before: str
    after: str
    elements: int = 0
    changed: int = 0
    """How many elements differ in any bit."""
    numbers: Numbers | None = None


class ValueChange(NamedTuple):
    """A plain value that is not the same in both."""

    path: str
    what: str
    before: str
    after: str


class Difference(NamedTuple):
    """All that differs."""

    arrays: list[ArrayChange]
    values: list[ValueChange]
    equal_arrays: int
    equal_values: int

    @property
    def is_empty(self) -> bool:
        return not self.arrays and not self.values


class _Side(NamedTuple):
    source: Source
    manifest: Manifest
    by_name: dict[str, int]
    """The arrays to compare: their names and numbers."""
    values: dict[str, Node]


def compare(before: Source, before_id: str, after: Source, after_id: str, *, only: str | None = None) -> Difference:
    """What changed from one checkpoint to the other.

    `only` looks at one part of the tree; NoCheckpointError where neither of them has it.
    """
    manifests = read_manifest(before, before_id), read_manifest(after, after_id)
    parts = [_part(manifest.body, only) for manifest in manifests]
    if only is not None and not any(parts):
        select(manifests[0].body.tree, only)  # raises, and says what there is
    sides = _side(before, manifests[0], parts[0], only), _side(after, manifests[1], parts[1], only)
    arrays = list(_array_changes(*sides))
    values, equal_values = _value_changes(sides[0].values, sides[1].values)
    common = len(sides[0].by_name.keys() & sides[1].by_name.keys())
    unlike = sum(change.what not in ("added", "removed") for change in arrays)
    return Difference(arrays, values, common - unlike, equal_values)


def compare_arrays(before: npt.NDArray[np.generic], after: npt.NDArray[np.generic]) -> tuple[int, Numbers | None]:
    """How many elements differ in any bit, and for numbers by how much."""
    old, new = before.reshape(-1), after.reshape(-1)
    if old.dtype.kind not in "fciub":
        return _count_unlike(old, new), None
    unlike, tally = 0, _Tally()
    for start in range(0, old.size, _SLICE):
        one, other = old[start : start + _SLICE], new[start : start + _SLICE]
        unlike += _count_unlike(one, other)
        tally.add(_wide(one), _wide(other))
    return unlike, tally.numbers()


class _Tally:
    """Sums and maxima over the slices of two arrays; what is not a number on either side is counted, not compared."""

    def __init__(self) -> None:
        self.max_abs = self.max_rel = self.squares = self.squares_before = 0.0
        self.nans_before = self.nans_after = 0

    def add(self, old: "npt.NDArray[np.inexact]", new: "npt.NDArray[np.inexact]") -> None:
        with np.errstate(all="ignore"):
            gap, size_before, size_after = np.abs(new - old), np.abs(old), np.abs(new)
            if not np.isfinite(gap).all():
                self.nans_before += int(np.isnan(old).sum())
                self.nans_after += int(np.isnan(new).sum())
                # Equal infinities differ by nothing; numpy says that their difference is not a number.
                gap = np.where(old == new, 0.0, gap)
                comparable = ~np.isnan(gap)
                gap, size_before, size_after = gap[comparable], size_before[comparable], size_after[comparable]
            scale = np.maximum(size_before, size_after)
            relative = np.divide(gap, scale, out=np.zeros_like(gap), where=gap > 0)
            finite_before = size_before[np.isfinite(size_before)]
        self.max_abs = max(self.max_abs, float(gap.max(initial=0.0)))
        self.max_rel = max(self.max_rel, float(np.nanmax(relative, initial=0.0)))
        self.squares += float(np.dot(gap, gap))
        self.squares_before += float(np.dot(finite_before, finite_before))

    def numbers(self) -> Numbers:
        return Numbers(
            self.max_abs,
            self.max_rel,
            math.sqrt(self.squares),
            math.sqrt(self.squares_before),
            self.nans_before,
            self.nans_after,
        )


def _wide(array: npt.NDArray[np.generic]) -> "npt.NDArray[np.inexact]":
    wide: npt.NDArray[np.inexact] = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    return wide


def _count_unlike(old: npt.NDArray[np.generic], new: npt.NDArray[np.generic]) -> int:
    if not old.size:
        return 0
    # By bits: NaN equals the same NaN, and 0.0 is not -0.0.
    word = _WORDS.get(old.dtype.itemsize)
    if word is not None:
        return int(np.count_nonzero(old.view(word) != new.view(word)))
    bits = old.view(np.uint8).reshape(old.size, -1) != new.view(np.uint8).reshape(new.size, -1)
    return int(bits.any(axis=1).sum())


def _part(body: Body, only: str | None) -> list[Entry]:
    """The arrays and values of the tree, or of a part of it; of nothing where there is no such part."""
    random = [] if body.random is None else list(outline(body.random, RANDOM_ROOT))
    if only is None:
        return [*outline(body.tree), *random]
    if is_inside(only, RANDOM_ROOT):
        return [entry for entry in random if is_inside(entry.path, only)]
    try:
        node, root = select(body.tree, only)
    except NoCheckpointError:
        return []
    return list(outline(node, root))


def _side(source: Source, manifest: Manifest, part: Sequence[Entry], only: str | None) -> _Side:
    # By what the part refers to, not by names: of tied arrays only one gives the leaf its name.
    used = {entry.leaf for entry in part}
    by_name = {leaf.name: i for i, leaf in enumerate(manifest.body.leaves) if only is None or i in used}
    return _Side(source, manifest, by_name, {entry.path: entry.node for entry in part if entry.leaf is None})


def _array_changes(before: _Side, after: _Side) -> Iterator[ArrayChange]:
    old_leaves, new_leaves = before.manifest.body.leaves, after.manifest.body.leaves
    to_read: list[int] = []
    for name, index in before.by_name.items():
        old = old_leaves[index]
        if name not in after.by_name:
            yield ArrayChange(name, "removed", _shape_text(old), "")
            continue
        new = new_leaves[after.by_name[name]]
        if old.dtype != new.dtype or old.shape != new.shape:
            what = "shape" if old.dtype == new.dtype else "dtype"
            yield ArrayChange(name, what, _shape_text(old), _shape_text(new))
        elif not _is_surely_equal(before.manifest.body, old, after.manifest.body, new):
            to_read.append(index)
    for name, index in after.by_name.items():
        if name not in before.by_name:
            yield ArrayChange(name, "added", "", _shape_text(new_leaves[index]))
    for group in batches(old_leaves, to_read):
        partners = {index: after.by_name[old_leaves[index].name] for index in group}
        old_raw = read_group(before.source, before.manifest, group)
        new_raw = read_group(after.source, after.manifest, partners.values())
        for index in group:
            change = _compare_leaf(old_leaves[index], old_raw.pop(index), new_raw.pop(partners[index]))
            if change is not None:
                yield change


def _is_surely_equal(old_body: Body, old: LeafRecord, new_body: Body, new: LeafRecord) -> bool:
    """Whether the digests alone say so: at the same place of chunks that have the same digests."""
    old_shard, new_shard = old_body.shards[old.shard], new_body.shards[new.shard]
    if (old.begin, old.end, old_shard.chunk_bytes) != (new.begin, new.end, new_shard.chunk_bytes):
        return old.begin == old.end and new.begin == new.end
    return _digests(old_shard, old) == _digests(new_shard, new)


def _digests(shard: ShardRecord, leaf: LeafRecord) -> list[str]:
    return shard.blake3[leaf.begin // shard.chunk_bytes : -(-leaf.end // shard.chunk_bytes)]


def _compare_leaf(leaf: LeafRecord, old: RawLeaf, new: RawLeaf) -> ArrayChange | None:
    if np.array_equal(old, new):
        return None
    shape = _shape_text(leaf)
    try:
        before, after = as_numbers(leaf, old), as_numbers(leaf, new)
    except FormatError:  # a dtype that only torch knows: that it changed can be said, by how much cannot
        return ArrayChange(leaf.name, "changed", shape, shape, math.prod(leaf.shape))
    unlike, numbers = compare_arrays(before, after)
    return ArrayChange(leaf.name, "changed", shape, shape, math.prod(leaf.shape), unlike, numbers)


def _value_changes(old: Mapping[str, Node], new: Mapping[str, Node]) -> tuple[list[ValueChange], int]:
    changes = [
        ValueChange(path, "changed", value_text(old[path]), value_text(new[path]))
        for path in old
        if path in new and old[path] != new[path]
    ]
    equal = len(old.keys() & new.keys()) - len(changes)
    changes += [ValueChange(path, "removed", value_text(old[path]), "") for path in old if path not in new]
    changes += [ValueChange(path, "added", "", value_text(new[path])) for path in new if path not in old]
    return changes, equal


def _shape_text(leaf: LeafRecord) -> str:
    dtype = leaf.dtype if isinstance(leaf.dtype, str) else "structured"
    return f"{dtype}[{', '.join(map(str, leaf.shape))}]"
