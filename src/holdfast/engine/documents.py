"""What people say of a checkpoint: metrics, notes, tags. Checked before anything is written."""

import enum
import logging
import math
import numbers
import operator
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import SupportsFloat, cast

from holdfast.core.errors import UsageError
from holdfast.core.limits import MAX_METRICS, MAX_NOTE_CHARS, MAX_TAGS

__all__ = [
    "check_count",
    "check_hyperparameters",
    "check_kinds",
    "check_metrics",
    "check_note",
    "check_tags",
    "usable_epoch",
    "usable_metrics",
]

_log = logging.getLogger("holdfast")

_MAX_WORD_CHARS = 100
_MAX_DEPTH = 20
_MAX_INT_BITS = 4096
_MAX_COUNT = 10**15


def check_count(what: str, value: object) -> int:
    """A step or an epoch: a whole number from 0 on, also as a numpy or torch scalar."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:  # also of a tensor that is no whole number
        number = None
    if number is None:
        raise UsageError(f"{what} is {value!r} ({type(value).__name__}), expected a whole number")
    if not 0 <= number <= _MAX_COUNT:
        raise UsageError(f"{what} is {number}, expected 0 to {_MAX_COUNT}")
    return number


def check_metrics(metrics: Mapping[str, object] | None) -> dict[str, float]:
    """Name to number; scalars of numpy, torch and jax are taken for their value."""
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise UsageError(
            f"metrics is of type {type(metrics).__name__}, expected names with numbers", hint='metrics={"loss": loss}'
        )
    if len(metrics) > MAX_METRICS:
        raise UsageError(f"{len(metrics)} metrics, the limit is {MAX_METRICS}")
    return {_word("metric name", name): _number(name, value) for name, value in metrics.items()}


def check_kinds(metrics: Mapping[str, object]) -> None:
    """Whether these can be metrics; without their values, which may still have to come from a device."""
    for name, value in metrics.items():
        _check_kind(name, value)


def usable_metrics(metrics: Mapping[str, object]) -> dict[str, float]:
    """Those of the end, which nobody may have looked at; none where they make no sense: the state counts more."""
    try:
        return check_metrics({name: value for name, value in metrics.items() if value is not None})
    except UsageError as error:
        _log.warning("the end is saved without its metrics: %s", error.message)
        return {}


def usable_epoch(epoch: object) -> int | None:
    """The same for the epoch."""
    try:
        return None if epoch is None else check_count("epoch", epoch)
    except UsageError as error:
        _log.warning("the end is saved without its epoch: %s", error.message)
        return None


def check_note(note: object) -> str:
    """A text of bounded length that can be written as UTF-8."""
    if not isinstance(note, str):
        raise UsageError(f"note is of type {type(note).__name__}, expected text", hint="leave it out if there is none")
    if len(note) > MAX_NOTE_CHARS:
        raise UsageError(f"note has {len(note)} characters, the limit is {MAX_NOTE_CHARS}")
    return _encodable("note", note)


def check_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """A few short texts."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise UsageError(f"tags is {tags!r}, expected a list of texts", hint=f"tags=[{str(tags)!r}]")
    try:
        found = tuple(_word("tag", tag) for tag in tags)
    except TypeError as error:  # an array of no dimension says that it can be gone through
        raise UsageError(f"tags is {tags!r}, expected a list of texts", hint='tags=["sweep"]') from error
    if len(found) > MAX_TAGS:
        raise UsageError(f"{len(found)} tags, the limit is {MAX_TAGS}")
    return found


def check_hyperparameters(value: object, path: str = "hyperparameters", depth: int = 0) -> object:
    """Nested mappings and lists of plain values, as JSON can say them; others are refused by their path."""
    if value is None or (isinstance(value, bool | int) and not isinstance(value, enum.Enum)):
        if isinstance(value, int) and value.bit_length() > _MAX_INT_BITS:
            raise UsageError(f"{path} is a number of {value.bit_length()} bits, the limit is {_MAX_INT_BITS}")
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str | PurePath):
        return _encodable(path, str(value))
    if depth > _MAX_DEPTH:
        raise UsageError(f"{path}: nested more than {_MAX_DEPTH} deep")
    if isinstance(value, Mapping):
        return {
            _word(f"a key of {path}", key): check_hyperparameters(item, f"{path}.{key}", depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [check_hyperparameters(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    raise UsageError(
        f"{path} is {type(value).__name__}, which a document cannot hold",
        hint="give plain values: None, bool, int, float, str, and lists and mappings of them",
    )


def _word(what: str, text: object) -> str:
    if not isinstance(text, str) or not 0 < len(text) <= _MAX_WORD_CHARS or not text.isprintable():
        raise UsageError(f"{what} {text!r} is not a printable text of 1 to {_MAX_WORD_CHARS} characters")
    return _encodable(what, text)


def _encodable(what: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} {text!r} cannot be written as UTF-8") from error
    return text


def _check_kind(name: object, value: object) -> None:
    is_scalar = isinstance(value, numbers.Real) or getattr(value, "shape", None) == ()
    if isinstance(value, bool | str | bytes) or not is_scalar or not hasattr(value, "__float__"):
        raise UsageError(
            f"metric {name!r} is {type(value).__name__}, expected a number",
            hint="a float, or an array or tensor of one number: loss.mean()",
        )


def _number(name: object, value: object) -> float:
    _check_kind(name, value)
    item = getattr(value, "item", None)  # of a tensor: no warning about gradients, and one transfer from a device
    try:
        return float(item() if callable(item) else cast(SupportsFloat, value))
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise UsageError(f"metric {name!r} cannot be made a float: {error}") from error
