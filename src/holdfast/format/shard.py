"""A shard: an ordinary safetensors file whose data starts on a page boundary, laid out before a byte is copied."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from holdfast.core.errors import FormatError, StateError
from holdfast.core.limits import MAX_LEAVES, MAX_SHARD_HEADER_BYTES, PAGE_BYTES

__all__ = ["Layout", "Place", "TensorEntry", "lay_out", "parse_header", "read_header_size"]

_PREFIX_BYTES = 8


class TensorEntry(msgspec.Struct, frozen=True):
    """One tensor as safetensors describes it."""

    name: str
    tag: str
    shape: tuple[int, ...]
    size_bytes: int
    alignment: int


class Place(msgspec.Struct, frozen=True):
    """Where a leaf's bytes are, counted from the start of the file."""

    begin: int
    end: int


class Layout(NamedTuple):
    """The exact bytes of a shard, except for the tensors' own."""

    header: bytes
    """Everything before the data: length, JSON, padding."""
    places: list[Place]
    """One per entry, in the order in which the entries were given."""
    order: list[int]
    """The entries in the order of their places."""
    size_bytes: int


def lay_out(entries: Sequence[TensorEntry]) -> Layout:
    """Places for all entries: widest elements first, so that each tensor is aligned without holes."""
    order = sorted(range(len(entries)), key=lambda index: -entries[index].alignment)
    header: dict[str, object] = {"__metadata__": {"holdfast": "1"}}
    offset = 0
    relative = [Place(0, 0)] * len(entries)
    for index in order:
        entry = entries[index]
        if entry.name in header:
            raise StateError(f"two leaves are named {entry.name!r}", hint="rename one of them")
        end = offset + entry.size_bytes
        relative[index] = Place(offset, end)
        header[entry.name] = {"dtype": entry.tag, "shape": entry.shape, "data_offsets": (offset, end)}
        offset = end
    text = msgspec.json.encode(header)
    # Spaces are part of the header in safetensors; they bring the data to a page boundary, as direct I/O wants it.
    text += b" " * (-(_PREFIX_BYTES + len(text)) % PAGE_BYTES)
    if len(text) > MAX_SHARD_HEADER_BYTES or len(entries) > MAX_LEAVES:
        raise StateError(
            f"the state has {len(entries)} arrays; their names and shapes take {len(text)} bytes, "
            f"safetensors allows {MAX_SHARD_HEADER_BYTES}",
            hint="stack small arrays into larger ones",
        )
    start = _PREFIX_BYTES + len(text)
    places = [Place(start + place.begin, start + place.end) for place in relative]
    return Layout(struct.pack("<Q", len(text)) + text, places, order, start + offset)


def read_header_size(prefix: bytes, file_bytes: int, where: str) -> int:
    """How long the header after the first eight bytes is; checked against the file and the limit before it is read."""
    if len(prefix) < _PREFIX_BYTES:
        raise FormatError(f"{where}: {len(prefix)} bytes are too few for a safetensors file")
    (size_bytes,) = struct.unpack("<Q", prefix[:_PREFIX_BYTES])
    if size_bytes > min(MAX_SHARD_HEADER_BYTES, file_bytes - _PREFIX_BYTES):
        raise FormatError(f"{where}: a header of {size_bytes} bytes does not fit (file: {file_bytes} bytes)")
    return int(size_bytes)


class _RawEntry(msgspec.Struct, frozen=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def parse_header(text: bytes, file_bytes: int, where: str) -> dict[str, tuple[str, tuple[int, ...], Place]]:
    """Name to (dtype tag, shape, place in the file); every place lies in the file, without overlap or hole."""
    try:
        raw: dict[str, msgspec.Raw] = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        found = {name: msgspec.json.decode(entry, type=_RawEntry) for name, entry in raw.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{where}: the header is not that of a safetensors file: {error}") from error
    start = _PREFIX_BYTES + len(text)
    expected = 0
    for name, entry in sorted(found.items(), key=lambda item: item[1].data_offsets):
        begin, end = entry.data_offsets
        if begin != expected or end < begin or any(length < 0 for length in entry.shape):
            raise FormatError(f"{where}: tensor {name!r} lies at {begin}–{end}, expected to begin at {expected}")
        expected = end
    if start + expected != file_bytes:
        raise FormatError(f"{where}: the tensors end at byte {start + expected}, the file at {file_bytes}")
    return {
        name: (entry.dtype, tuple(entry.shape), Place(start + entry.data_offsets[0], start + entry.data_offsets[1]))
        for name, entry in found.items()
    }
