"""What a program may give as a number or a switch: also those of numpy, and nothing that only looks like one."""

import operator
from typing import Any

import numpy as np

from holdfast.core.errors import UsageError

__all__ = ["MAX_LENGTH", "length_by", "shown", "switch", "whole", "whole_batch_size", "whole_seed"]

MAX_LENGTH = 1 << 62
# Far above anything that is meant, and below what Python writes in decimal.
_SEED_BITS = 4096


def whole(what: str, value: Any, least: int | None = None, most: int | None = None, *, hint: str = "") -> int:
    """The number; UsageError where it is none, or not in between."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        found = f"{shown(value)} ({type(value).__name__})"
        raise UsageError(f"{what} is {found}, expected a whole number", hint=hint) from None
    if least is not None and number < least:
        raise UsageError(f"{what} is {shown(number)}, expected at least {least}", hint=hint)
    if most is not None and number > most:
        raise UsageError(f"{what} is {shown(number)}, expected at most {most}", hint=hint)
    return number


def whole_seed(value: Any) -> int:
    """Any number that can be written down."""
    number = whole("seed", value, hint="any number will do, e.g. seed=7; the same in every attempt")
    if number.bit_length() > _SEED_BITS:
        raise UsageError(f"seed has {number.bit_length()} bits, expected at most {_SEED_BITS}", hint="e.g. seed=7")
    return number


def whole_batch_size(value: Any) -> int:
    """At least one sample."""
    return whole(
        "batch_size", value, 1, MAX_LENGTH, hint="how many samples one rank takes in a step, e.g. batch_size=32"
    )


def switch(what: str, value: Any) -> bool:
    """True or False, and nothing else: "no" would be true."""
    if not isinstance(value, bool | np.bool_):
        raise UsageError(f"{what} is {value!r} ({type(value).__name__})", hint=f"{what}=True or {what}=False")
    return bool(value)


def length_by(thing: Any, what: str) -> int:
    """What its own `__len__` says; UsageError where that is of no use."""
    hint = "give it __len__(), which says how many samples it has"
    if not hasattr(thing, "__len__"):
        raise UsageError(f"{what} has no length, so an epoch has no end", hint=hint)
    try:
        length = len(thing)
    except Exception as error:
        raise UsageError(
            f"{what} does not say how many samples it has: {type(error).__name__}: {error}", hint=hint
        ) from error
    return whole(f"the length of {what}", length, 0, MAX_LENGTH, hint=hint)


def shown(value: object) -> str:
    """For a message; a number that is too long to be written is only measured."""
    if isinstance(value, int) and value.bit_length() > _SEED_BITS:
        return f"a number of {value.bit_length()} bits"
    return repr(value)
