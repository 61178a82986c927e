"""The head of a manifest: what a listing needs, at the start of the file, with a digest of its own.

A manifest is valid JSON in exactly four lines (docs/format.md):

    {"head":{...},
    "head_blake3":"<64 hex digits>",
    "body":{...},
    "blake3":"<64 hex digits>"}

`head_blake3` covers the JSON text of the head, `blake3` every byte before its own line. Light on purpose: the standard
library's json, because `holdfast ls` reads a thousand of these and nothing else.
"""

import json
import math
import sys
from collections.abc import Callable
from itertools import product
from operator import itemgetter

from blake3 import blake3

from holdfast.core.errors import FormatError, FormatVersionError, IntegrityError, UsageError
from holdfast.core.light_typing import Any
from holdfast.core.limits import MAX_FORKS, MAX_HEAD_BYTES, MAX_METRICS, MAX_NOTE_CHARS, MAX_TAGS
from holdfast.core.names import parse_checkpoint_id
from holdfast.core.values import Checkpoint, Fork

__all__ = ["FORMAT_VERSION", "decode_head", "digest_hex", "encode_head", "head_lines", "split_head"]

FORMAT_VERSION = 1

HEAD_OPEN = b'{"head":'
HEAD_CLOSE = b',\n"head_blake3":"'
HEX_DIGITS = 64
_OPEN_BYTES, _CLOSE_BYTES = len(HEAD_OPEN), len(HEAD_CLOSE)

_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_scan: Callable[[str, int], tuple[Any, int]] = vars(json.JSONDecoder())["scan_once"]
_JSON_SPACE = " \t\n\r"


def digest_hex(data: bytes | bytearray | memoryview) -> str:
    """The BLAKE3 of the data in 64 lower-case hexadecimal digits."""
    return blake3(data).hexdigest()


def encode_head(checkpoint: Checkpoint, run_id: str) -> bytes:
    """The JSON text of the head."""
    fields = {
        "format": FORMAT_VERSION,
        "run": run_id,
        "id": checkpoint.id,
        "step": checkpoint.step,
        "epoch": checkpoint.epoch,
        "attempt": checkpoint.attempt,
        "seq": checkpoint.seq,
        "parent": checkpoint.parent,
        "origin": checkpoint.origin,
        "utc_s": checkpoint.utc_s,
        "size_bytes": checkpoint.size_bytes,
        "leaves": checkpoint.leaves,
        "world": checkpoint.world,
        "metrics": {name: _encode_metric(value) for name, value in checkpoint.metrics.items()},
        "note": checkpoint.note,
        "tags": list(checkpoint.tags),
        "pickle": checkpoint.pickle,
        "forks": [list(fork) for fork in checkpoint.forks],
    }
    head = json.dumps(fields, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    if len(head) > MAX_HEAD_BYTES:
        raise UsageError(
            f"metrics, note and tags take {len(head)} bytes together, the limit is {MAX_HEAD_BYTES}",
            hint="shorten them; hyperparameters and the state itself have more room",
        )
    return head


def head_lines(head: bytes) -> bytes:
    """The first two lines of a manifest."""
    return HEAD_OPEN + head + HEAD_CLOSE + digest_hex(head).encode() + b'",\n'


def split_head(start: bytes, where: str) -> tuple[bytes, int]:
    """The verified JSON text of the head, and where the third line begins; `start` may end after the second line."""
    close = start.find(HEAD_CLOSE)
    digest = close + _CLOSE_BYTES
    end = digest + HEX_DIGITS
    if not start.startswith(HEAD_OPEN) or close < 0 or start[end : end + 3] != b'",\n':
        raise IntegrityError(f"{where}: the manifest does not begin with a head (found {start[:24]!r}…)")
    head = start[_OPEN_BYTES:close]
    if start[digest:end] != blake3(head).hexdigest().encode():
        raise IntegrityError(f"{where}: the head of the manifest differs from its digest")
    return head, end + 3


def decode_head(head: bytes, *, where: str, checkpoint_id: str, run_id: str | None) -> tuple[Checkpoint, str]:
    """The checkpoint that a verified head describes, and its run's id. It must be the one of that directory and run."""
    fields = _parse(head, where)
    version = fields.get("format")
    if type(version) is int and version > FORMAT_VERSION:
        raise FormatVersionError(
            f"{where}: written in format {version}, this holdfast reads up to {FORMAT_VERSION}",
            hint="use a newer holdfast: pip install -U holdfast",
        )
    (
        _,
        found_run,
        found_id,
        step,
        epoch,
        attempt,
        seq,
        parent,
        origin,
        utc_s,
        size_bytes,
        leaves,
        world,
        metrics,
        note,
        tags,
        pickle,
        forks,
    ) = _checked(fields, where)
    if found_id != checkpoint_id:
        raise IntegrityError(f"{where}: the manifest belongs to checkpoint {found_id!r}, not to {checkpoint_id!r}")
    if run_id is not None and found_run != run_id:
        raise IntegrityError(f"{where}: the manifest belongs to run {found_run!r}, not to {run_id!r}")
    parsed = parse_checkpoint_id(checkpoint_id)
    if parsed is None or parsed.step != step or parsed.attempt != attempt:
        raise FormatError(f"{where}: step or attempt differ from the directory's name")
    if str in map(type, metrics.values()):
        metrics = {name: _NON_FINITE.get(value, value) for name, value in metrics.items()}
    checkpoint = Checkpoint(
        found_id,
        step,
        epoch,
        attempt,
        seq,
        parent,
        origin,
        float(utc_s),
        size_bytes,
        leaves,
        world,
        metrics,
        note,
        tuple(tags) if tags else (),
        pickle,
        forks=tuple([Fork(*fork) for fork in forks]) if forks else (),
    )
    return checkpoint, found_run


def _parse(head: bytes, where: str) -> dict[str, Any]:
    if len(head) > MAX_HEAD_BYTES:
        raise FormatError(f"{where}: the head has {len(head)} bytes, the limit is {MAX_HEAD_BYTES}")
    try:
        text = head.decode().strip(_JSON_SPACE)  # UTF-8 only: json would guess at others
        fields, end = _scan(text, 0)  # json.loads without what it does for other kinds of input
    except (ValueError, RecursionError, StopIteration) as error:
        raise FormatError(f"{where}: the head is not JSON ({type(error).__name__})") from error
    if end != len(text) or not isinstance(fields, dict):
        raise FormatError(f"{where}: the head is not a JSON object")
    return fields


def _encode_metric(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _checked(fields: dict[str, Any], where: str) -> tuple[Any, ...]:
    """The values, in the order of _TYPES; FormatError where one is missing or not valid.

    All types and all counts at once: a listing checks a thousand heads.
    """
    try:
        values: tuple[Any, ...] = _in_order(fields)
        are_typed = tuple(map(type, values)) in _SIGNATURES
    except KeyError:
        are_typed = False
    if not are_typed:
        raise _invalid(where, next(name for name, types in _TYPES.items() if type(fields.get(name, ...)) not in types))
    version, _, found_id, step, epoch, attempt, seq, parent, origin, utc_s, size_bytes, leaves, world = values[:13]
    metrics, note, tags, _, forks = values[13:]
    # Or-ed together: a negative count leaves its sign, one that is too large a bit above the others.
    if (version | step | (epoch or 0) | attempt | seq | size_bytes | leaves | world) >> _COUNT_BITS or version < 1:
        raise _invalid(where, next(name for name in _COUNTS if not _LEAST.get(name, 0) <= fields[name] < _COUNT_END))
    if parse_checkpoint_id(found_id) is None:
        raise _invalid(where, "id")
    if parent is not None and parse_checkpoint_id(parent) is None:
        raise _invalid(where, "parent")
    if origin is not None and parse_checkpoint_id(origin) is None:
        raise _invalid(where, "origin")
    if not abs(utc_s) <= _LARGEST_FLOAT:  # nor NaN, which compares with nothing
        raise _invalid(where, "utc_s")
    if metrics and not _are_metrics(metrics):
        raise _invalid(where, "metrics")
    if len(note) > MAX_NOTE_CHARS:
        raise _invalid(where, "note")
    if tags and not _are_tags(tags):
        raise _invalid(where, "tags")
    if forks and not _are_forks(forks):
        raise _invalid(where, "forks")
    return values


def _invalid(where: str, name: str) -> FormatError:
    return FormatError(f"{where}: the head's field {name!r} is missing or not valid")


def _are_metrics(values: dict[str, object]) -> bool:
    return len(values) <= MAX_METRICS and (
        set(map(type, values.values())) == _FLOATS or all(map(_is_metric, values.values()))
    )


def _is_metric(value: object) -> bool:
    if type(value) is float:
        return True
    if type(value) is int:
        return abs(value) <= _LARGEST_FLOAT  # what no float can hold could be neither compared nor shown
    return type(value) is str and value in _NON_FINITE


def _are_tags(values: list[object]) -> bool:
    return len(values) <= MAX_TAGS and all(type(value) is str for value in values)


def _are_forks(values: list[object]) -> bool:
    return len(values) <= MAX_FORKS and all(map(_is_fork, values))


def _is_fork(value: object) -> bool:
    return (
        isinstance(value, list)
        and [type(part) for part in value] in ([int, str], [int, _Null])
        and 0 <= value[0] < _COUNT_END
        and (value[1] is None or parse_checkpoint_id(value[1]) is not None)
    )


_Null = type(None)
_FLOATS = {float}
_COUNT_BITS = 63
_COUNT_END = 1 << _COUNT_BITS
_LARGEST_FLOAT = sys.float_info.max

# Every field, and what JSON may make of it.
_TYPES: dict[str, tuple[type, ...]] = {
    "format": (int,),
    "run": (str,),
    "id": (str,),
    "step": (int,),
    "epoch": (int, _Null),
    "attempt": (int,),
    "seq": (int,),
    "parent": (str, _Null),
    "origin": (str, _Null),
    "utc_s": (int, float),
    "size_bytes": (int,),
    "leaves": (int,),
    "world": (int,),
    "metrics": (dict,),
    "note": (str,),
    "tags": (list,),
    "pickle": (bool,),
    "forks": (list,),
}
_in_order = itemgetter(*_TYPES)
_SIGNATURES = frozenset(product(*_TYPES.values()))

_COUNTS = ("format", "step", "attempt", "seq", "size_bytes", "leaves", "world", "epoch")
_LEAST = {"format": 1}
