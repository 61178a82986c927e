"""Values without parts: how each of Python's own stands in JSON, and back."""

import datetime as dt
import math
import pathlib
import re
import struct
import zoneinfo
from collections.abc import Callable
from typing import Any

from holdfast.core.errors import UnsupportedError
from holdfast.format.frameworks import Frameworks
from holdfast.format.nodes import Node, base64_field, base64_text, field, malformed, optional_field

__all__ = ["PLAIN_DECODERS", "PLAIN_ENCODERS", "decode_plain", "encode_plain", "is_json_text"]

# Whole numbers up to here are exact in every JSON reader.
_SAFE_INT = 2**53
_ZONE_KEY = re.compile(r"[A-Za-z0-9_+-]{1,40}(?:/[A-Za-z0-9_+-]{1,40}){0,3}\Z", re.ASCII)
_PATH_CLASSES: dict[str, Callable[[str], pathlib.PurePath]] = {
    "PurePosixPath": pathlib.PurePosixPath,
    "PureWindowsPath": pathlib.PureWindowsPath,
    # A path of the other system cannot be opened here; its pure form says the same.
    "PosixPath": pathlib.PurePosixPath,
    "WindowsPath": pathlib.PureWindowsPath,
    type(pathlib.Path()).__name__: pathlib.Path,
}


def is_json_text(text: str) -> bool:
    """Whether JSON can hold the text: it has no lone surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def encode_plain(value: object) -> Node:
    """The node of a value that is surely plain: of a type in PLAIN_ENCODERS."""
    return PLAIN_ENCODERS[type(value)](value)


def decode_plain(node: Node, frameworks: Frameworks) -> Any:
    """The value of a node that must be plain."""
    if node is None or type(node) in (bool, int, float, str):
        return node
    decoder = PLAIN_DECODERS.get(str(node.get("kind"))) if isinstance(node, dict) else None
    if decoder is None:
        raise malformed(node, "a plain value")
    return decoder(node, frameworks)


def _itself(value: Any) -> Node:
    return value


def _encode_int(value: int) -> Node:
    return value if -_SAFE_INT <= value <= _SAFE_INT else {"kind": "int", "hex": hex(value)}


def _decode_int(node: Node, _: Frameworks) -> int:
    text = field(node, "hex", str)
    if not re.match(r"-?0x[0-9a-f]+\Z", text, re.ASCII):
        raise malformed(node, "a hexadecimal number")
    return int(text, 16)


def _encode_float(value: float) -> Node:
    return value if math.isfinite(value) else {"kind": "float", "bits": struct.pack(">d", value).hex()}


def _decode_float(node: Node, _: Frameworks) -> float:
    text = field(node, "bits", str)
    if not re.match(r"[0-9a-f]{16}\Z", text, re.ASCII):
        raise malformed(node, "16 hexadecimal digits")
    return float(struct.unpack(">d", bytes.fromhex(text))[0])


def _encode_complex(value: complex) -> Node:
    return {"kind": "complex", "real": _encode_float(value.real), "imag": _encode_float(value.imag)}


def _decode_complex(node: Node, frameworks: Frameworks) -> complex:
    return complex(_float_part(node, "real", frameworks), _float_part(node, "imag", frameworks))


def _float_part(node: Node, name: str, frameworks: Frameworks) -> float:
    value = decode_plain(node.get(name), frameworks)
    if type(value) is not float:
        raise malformed(node, f"{name} to be a float")
    return value


def _encode_str(value: str) -> Node:
    if is_json_text(value):
        return value
    return {"kind": "str", "base64": base64_text(value.encode("utf-8", "surrogatepass"))}


def _decode_str(node: Node, _: Frameworks) -> str:
    return base64_field(node).decode("utf-8", "surrogatepass")


def _encode_range(value: range) -> Node:
    return {"kind": "range", "of": [_encode_int(part) for part in (value.start, value.stop, value.step)]}


def _decode_range(node: Node, frameworks: Frameworks) -> range:
    parts = [decode_plain(part, frameworks) for part in field(node, "of", list)[:4]]
    if len(parts) != 3 or not all(type(part) is int for part in parts):
        raise malformed(node, "three whole numbers")
    return range(*parts)


def _encode_path(value: pathlib.PurePath) -> Node:
    return {"kind": "path", "class": type(value).__name__, "text": _encode_str(str(value))}


def _decode_path(node: Node, frameworks: Frameworks) -> pathlib.PurePath:
    text = decode_plain(node.get("text"), frameworks)
    make = _PATH_CLASSES.get(field(node, "class", str))
    if type(text) is not str or make is None:
        raise malformed(node, "a path's class and text")
    return make(text)


def _encode_date(value: dt.date) -> Node:
    return {"kind": "date", "iso": value.isoformat()}


def _encode_clock(value: dt.datetime | dt.time) -> Node:
    node: Node = {"kind": type(value).__name__, "iso": value.replace(tzinfo=None).isoformat()}
    if value.fold:
        node["fold"] = value.fold
    if value.tzinfo is not None:
        node["tz"] = encode_plain(value.tzinfo)
    return node


def _decode_clock(node: Node, frameworks: Frameworks) -> dt.datetime | dt.time:
    cls: type[dt.datetime] | type[dt.time] = dt.datetime if node["kind"] == "datetime" else dt.time
    zone = decode_plain(node.get("tz"), frameworks)
    if zone is not None and not isinstance(zone, dt.tzinfo):
        raise malformed(node, "tz to be a time zone")
    value = cls.fromisoformat(field(node, "iso", str))
    return value.replace(tzinfo=zone, fold=optional_field(node, "fold", int, 0))


def _encode_timedelta(value: dt.timedelta) -> Node:
    return {"kind": "timedelta", "of": [value.days, value.seconds, value.microseconds]}


def _decode_timedelta(node: Node, _: Frameworks) -> dt.timedelta:
    parts = field(node, "of", list)
    if len(parts) != 3 or not all(type(part) is int for part in parts):
        raise malformed(node, "days, seconds and microseconds")
    return dt.timedelta(*parts)


def _encode_timezone(value: dt.timezone) -> Node:
    offset, *name = value.__getinitargs__()  # type: ignore[attr-defined]  # the only way to tell whether it was named
    node = {"kind": "timezone", "offset": _encode_timedelta(offset)}
    if name:
        node["name"] = _encode_str(name[0])
    return node


def _decode_timezone(node: Node, frameworks: Frameworks) -> dt.timezone:
    offset = _decode_timedelta(field(node, "offset", dict), frameworks)
    if "name" in node:
        return dt.timezone(offset, decode_plain(node["name"], frameworks))
    return dt.timezone(offset) if offset else dt.UTC


def _decode_zone(node: Node, _: Frameworks) -> zoneinfo.ZoneInfo:
    key = field(node, "key", str)
    # Where the system has no database, ZoneInfo looks for a package below tzdata: only such names may get there.
    if not _ZONE_KEY.match(key):
        raise malformed(node, "the name of a time zone")
    try:
        return zoneinfo.ZoneInfo(key)
    except zoneinfo.ZoneInfoNotFoundError as error:
        raise UnsupportedError(f"time zone {key!r} is not known on this machine", hint="pip install tzdata") from error


PLAIN_ENCODERS: dict[type, Callable[[Any], Node]] = {
    type(None): _itself,
    bool: _itself,
    int: _encode_int,
    float: _encode_float,
    complex: _encode_complex,
    str: _encode_str,
    range: _encode_range,
    type(...): lambda _: {"kind": "ellipsis"},
    dt.date: _encode_date,
    dt.datetime: _encode_clock,
    dt.time: _encode_clock,
    dt.timedelta: _encode_timedelta,
    dt.timezone: _encode_timezone,
    pathlib.PurePosixPath: _encode_path,
    pathlib.PureWindowsPath: _encode_path,
    type(pathlib.Path()): _encode_path,
}
PLAIN_DECODERS: dict[str, Callable[[Node, Frameworks], Any]] = {
    "int": _decode_int,
    "float": _decode_float,
    "complex": _decode_complex,
    "str": _decode_str,
    "range": _decode_range,
    "ellipsis": lambda *_: ...,
    "date": lambda node, _: dt.date.fromisoformat(field(node, "iso", str)),
    "datetime": _decode_clock,
    "time": _decode_clock,
    "timedelta": _decode_timedelta,
    "timezone": _decode_timezone,
    "zoneinfo": _decode_zone,
    "path": _decode_path,
}
