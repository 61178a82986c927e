"""The control record of a slot: says that the content is complete, and what it is. Anything else is no content."""

import struct
from typing import NamedTuple

from holdfast.core.limits import MAX_MANIFEST_BYTES, PAGE_BYTES
from holdfast.format.checksum import checksum_hex

__all__ = [
    "CONTROL_BYTES",
    "EMPTY_RECORD",
    "FILLED_AT",
    "RECORD_BYTES",
    "Control",
    "decode_control",
    "decode_filled",
    "encode_control",
    "encode_filled",
]

CONTROL_BYTES = PAGE_BYTES
"""The record has a page to itself, so that the image behind it begins with one."""

_MAGIC = b"hfarena\x00"
_VERSION = 1
# Magic, version, nothing, generation, image_bytes, manifest_bytes; then their checksum.
_FIELDS = struct.Struct("<8sIIQQQ")
_CHECKSUM_BYTES = 16
RECORD_BYTES = _FIELDS.size + _CHECKSUM_BYTES
EMPTY_RECORD = bytes(RECORD_BYTES)
# Behind the record, and no part of it: how far the image is filled while there is no content.
_FILLED = struct.Struct("<Q")
FILLED_AT = 64
_MAX_IMAGE_BYTES = 1 << 60


class Control(NamedTuple):
    """What a valid record says."""

    generation: int
    image_bytes: int
    manifest_bytes: int


def encode_control(control: Control) -> bytes:
    """The bytes of the record."""
    fields = _FIELDS.pack(_MAGIC, _VERSION, 0, *control)
    return fields + bytes.fromhex(checksum_hex(fields))


def decode_control(record: bytes) -> Control | None:
    """What the record says; None where it is empty, torn, damaged or of another version."""
    fields, checksum = record[: _FIELDS.size], record[_FIELDS.size :]
    if len(record) != RECORD_BYTES or bytes.fromhex(checksum_hex(fields)) != checksum:
        return None
    magic, version, nothing, generation, image_bytes, manifest_bytes = _FIELDS.unpack(fields)
    if (magic, version, nothing) != (_MAGIC, _VERSION, 0) or generation == 0:
        return None
    if image_bytes > _MAX_IMAGE_BYTES or manifest_bytes > MAX_MANIFEST_BYTES:
        return None
    return Control(generation, image_bytes, manifest_bytes)


def encode_filled(filled_bytes: int) -> bytes:
    """The bytes at FILLED_AT."""
    return _FILLED.pack(filled_bytes)


def decode_filled(record: bytes) -> int:
    """How far the image is filled; 0 where that is not known."""
    return int(_FILLED.unpack(record)[0]) if len(record) == _FILLED.size else 0
