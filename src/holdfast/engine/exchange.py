"""Export: a checkpoint's arrays in files that other programs read, array by array, in bounded memory."""

import os
import shlex
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.core.errors import BlobMissingError, FormatError, StateError, StorageError, UsageError
from holdfast.engine.leafwise import RawLeaf, batches, read_group
from holdfast.engine.loading import Source, load_tree, read_manifest
from holdfast.engine.outline import Entry, outline
from holdfast.engine.plain_tree import plain_tree
from holdfast.engine.whole_file import whole_file
from holdfast.format.arrays import copy_range
from holdfast.format.dtypes import DtypeName, carrier_dtype, freeze_dtype, itemsize, safetensors_type, storage_dtype
from holdfast.format.manifest import LeafRecord, Manifest
from holdfast.format.paths import remainder
from holdfast.format.select import select
from holdfast.format.shard import TensorEntry, lay_out

__all__ = ["Exported", "Suffix", "export_checkpoint", "suffix_of"]

Suffix = Literal[".safetensors", ".pt", ".npz"]
_SUFFIXES: tuple[Suffix, ...] = (".safetensors", ".pt", ".npz")
_ARRAY_KINDS = ("array", "tensor", "jax", "jax_key")
_COPY_BYTES = 16 << 20
_MAX_MEMBER_BYTES = 65_000  # of a name in a zip file
_SHOWN_CHARS = 80


class Exported(NamedTuple):
    """What was written."""

    path: str
    arrays: int
    size_bytes: int
    left_out: list[str]
    """The paths of what the format cannot hold."""


class _Array(NamedTuple):
    name: str
    leaf: int
    dtype: DtypeName
    shape: tuple[int, ...]
    view: Mapping[str, Any] | None
    """Where the array is only a part of the leaf: offset and strides in bytes."""

    @property
    def size_bytes(self) -> int:
        size_bytes = itemsize(self.dtype)
        for length in self.shape:
            size_bytes *= length
        return size_bytes


def suffix_of(path: str) -> Suffix:
    """Which of the formats a file's name asks for."""
    for suffix in _SUFFIXES:
        if path.endswith(suffix):
            return suffix
    raise UsageError(f"{path}: the name does not say which format", hint=f"end it in {', '.join(_SUFFIXES)}")


def export_checkpoint(
    source: Source, checkpoint_id: str, path: str, *, only: str | None = None, replace: bool = False
) -> Exported:
    """Write the checkpoint, or its part at the path `only`, as a new file. Every byte is verified on the way (I4)."""
    suffix = suffix_of(path)
    _check_target(path)
    manifest = read_manifest(source, checkpoint_id)
    node, root = (manifest.body.tree, "") if only is None else select(manifest.body.tree, only)
    entries = list(outline(node, root))
    if suffix == ".pt":
        return _export_torch(source, checkpoint_id, path, only=only, replace=replace)
    arrays = [_array(entry, manifest.body.leaves, root) for entry in entries if _is_array(entry)]
    left_out = [entry.path for entry in entries if not _is_array(entry)]
    if not arrays:
        raise StateError(f"{checkpoint_id}: there are no arrays{f' in {only}' if only else ''}", hint="export to .pt")
    write = _write_safetensors if suffix == ".safetensors" else _write_npz
    with whole_file(path, replace=replace) as file:
        write(file, arrays, _contents(source, manifest, arrays))
        size_bytes = file.seek(0, 2)
    return Exported(path, len(arrays), size_bytes, left_out)


def _check_target(path: str) -> None:
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        hint = f"make it first: mkdir -p {shlex.quote(folder)}"
        raise BlobMissingError(f"{path}: there is no directory {folder}", hint=hint)
    if os.path.isdir(path):
        raise UsageError(f"{path} is a directory", hint="name the new file itself")


def _is_array(entry: Entry) -> bool:
    return entry.leaf is not None and entry.kind in _ARRAY_KINDS


def _array(entry: Entry, leaves: Sequence[LeafRecord], root: str) -> _Array:
    # Without the part's own name, as its load_state_dict or reader wants them; a single array keeps its last step.
    name = (remainder(entry.path, root) if root else entry.path) or root.rpartition(".")[2]
    if entry.leaf is None or not 0 <= entry.leaf < len(leaves):
        raise FormatError(f"{entry.path}: refers to leaf {entry.leaf}, there are {len(leaves)}")
    leaf, view = leaves[entry.leaf], entry.node.get("view")
    if view is None:
        return _Array(name, entry.leaf, freeze_dtype(leaf.dtype), tuple(leaf.shape), None)
    shape = view.get("shape") if isinstance(view, dict) else None
    if not isinstance(shape, list) or not all(type(length) is int and length >= 0 for length in shape):
        raise FormatError(f"{entry.path}: its view of leaf {leaf.name!r} is malformed")
    return _Array(name, entry.leaf, freeze_dtype(view.get("dtype")), tuple(shape), view)


def _contents(
    source: Source, manifest: Manifest, arrays: Sequence[_Array]
) -> Iterator[tuple[int, npt.NDArray[np.generic]]]:
    """(position in the list, contents through a plain dtype), in the order of the file."""
    users: dict[int, list[int]] = {}
    for position, array in enumerate(arrays):
        users.setdefault(array.leaf, []).append(position)
    for group in batches(manifest.body.leaves, users):
        raw = read_group(source, manifest, group)
        for leaf in group:
            data = raw.pop(leaf)
            for position in users[leaf]:
                yield position, _shaped(arrays[position], data)


def _shaped(array: _Array, raw: RawLeaf) -> npt.NDArray[np.generic]:
    dtype = carrier_dtype(array.dtype)
    try:
        if array.view is None:
            return raw.view(dtype).reshape(array.shape)
        offset, strides = array.view.get("offset"), array.view.get("strides")
        # numpy refuses a view that leaves its buffer.
        return np.ndarray(array.shape, dtype, raw, offset, strides)  # type: ignore[arg-type]
    except (ValueError, TypeError, OverflowError) as error:
        raise FormatError(f"{array.name}: shape {array.shape} does not fit its {raw.nbytes} bytes") from error


def _write_safetensors(
    file: IO[bytes], arrays: Sequence[_Array], contents: Iterator[tuple[int, npt.NDArray[np.generic]]]
) -> None:
    entries = []
    for array in arrays:
        tag, extra = safetensors_type(array.dtype)
        entries.append(TensorEntry(array.name, tag, (*array.shape, *extra), array.size_bytes, itemsize(array.dtype)))
    layout = lay_out(entries)
    file.write(layout.header)
    for position, carrier in contents:
        begin = layout.places[position].begin
        for start in range(0, carrier.nbytes, _COPY_BYTES):
            block = memoryview(bytearray(min(_COPY_BYTES, carrier.nbytes - start)))
            copy_range(carrier, start, start + len(block), block)
            file.seek(begin + start)
            file.write(block)


def _write_npz(
    file: IO[bytes], arrays: Sequence[_Array], contents: Iterator[tuple[int, npt.NDArray[np.generic]]]
) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for position, carrier in contents:
            array = arrays[position]
            # What numpy has no dtype for (bfloat16, float8) is stored as its bits.
            plain = np.ascontiguousarray(carrier).view(storage_dtype(array.dtype)).reshape(array.shape)
            if len(array.name.encode()) > _MAX_MEMBER_BYTES:
                what = f"{array.name[:_SHOWN_CHARS]}…: its name is too long for an .npz file"
                raise StateError(what, hint="export to .safetensors")
            with archive.open(zipfile.ZipInfo(f"{array.name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, plain, allow_pickle=False)


def _export_torch(source: Source, checkpoint_id: str, path: str, *, only: str | None, replace: bool) -> Exported:
    try:
        import torch
    except ImportError as error:
        hint = "pip install torch, or export to .safetensors or .npz"
        raise UsageError(f"{path}: torch cannot be imported: {error}", hint=hint) from error
    tree, arrays, left_out = plain_tree(load_tree(source, checkpoint_id, only=only), torch)
    with whole_file(path, replace=replace) as file:
        try:
            torch.save(tree, file)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):
                raise error.__context__ from error  # a full disk, which torch words in its own way
            raise StorageError(f"{path}: torch.save failed: {error}") from error
        size_bytes = file.seek(0, 2)
    return Exported(path, arrays, size_bytes, left_out)
