"""Sizes, ages and numbers as people read them, and JSON as programs do."""

import json
import math
from collections.abc import Mapping

from holdfast.core.errors import UsageError

__all__ = ["age", "amount", "count", "duration", "json_text", "metric", "parse_bytes", "short", "size"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SUFFIXES = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgtp", 1):
    # As people mean it for memory and disks alike: 10G is 10 GiB. 10GB says so explicitly.
    _SUFFIXES |= {_letter: 1 << 10 * _power, f"{_letter}ib": 1 << 10 * _power, f"{_letter}b": 1000**_power}

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400
# Unit, the smaller one that is said with it, and up to where it is.
_DURATIONS = (
    (_DAY_S, "d", _HOUR_S, "h", 10 * _DAY_S),
    (_HOUR_S, "h", _MINUTE_S, "min", 10 * _HOUR_S),
    (_MINUTE_S, "min", 1, "s", 0),
)


def size(size_bytes: float) -> str:
    """`1.21 GiB`: three digits and a unit."""
    value, unit = float(size_bytes), 0
    while abs(value) >= 1000 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{value:.0f} {_UNITS[unit]}" if unit == 0 else f"{short(value)} {_UNITS[unit]}"


def short(value: float) -> str:
    """Three digits: `0.91`, `1.21`, `12.1`, `121`."""
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def parse_bytes(text: str, *, option: str) -> int:
    """`500M`, `1.5GiB`, `10GB` or a plain number, in bytes; K, M, G and T alone are powers of 1024."""
    stripped = text.strip().lower()
    number = stripped.rstrip("abcdefghijklmnopqrstuvwxyz ")
    factor = _SUFFIXES.get(stripped[len(number) :].strip())
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if factor is None or not math.isfinite(value * factor) or value < 0:
        raise UsageError(f"{option}: {text!r} is not a size", hint=f"for example {option} 500M, 1.5GiB or 2000000000")
    return int(value * factor)


def age(seconds: float) -> str:
    """`3 min ago`; clocks of other machines may make it negative."""
    return "just now" if -_MINUTE_S < seconds < 5 else f"{duration(seconds)} ago" if seconds > 0 else "in the future"


def duration(seconds: float) -> str:
    """`42 s`, `3 min`, `5 h 20 min`, `2 d 3 h`, `40 d`: as exact as anybody asks."""
    whole = max(0, int(seconds))
    for unit_s, name, smaller_s, smaller, both_below in _DURATIONS:
        if whole >= unit_s:
            rest = whole % unit_s // smaller_s
            return f"{whole // unit_s} {name}" + (f" {rest} {smaller}" if rest and whole < both_below else "")
    return f"{whole} s"


def metric(value: float) -> str:
    """Five significant digits: enough to see a loss fall."""
    return f"{value:.5g}"


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 checkpoint`, `3 checkpoints`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def amount(number: int) -> str:
    """`110M`: a number of elements."""
    for factor, suffix in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= factor:
            return f"{short(number / factor)}{suffix}"
    return str(number)


def json_text(document: object) -> str:
    """The document as JSON that every reader takes: numbers that are not finite become texts, as in the manifest."""
    return json.dumps(_finite(document), indent=2, ensure_ascii=False, allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_finite(item) for item in value]
    return value if value is None or isinstance(value, bool | int | str) else str(value)
