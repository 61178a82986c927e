"""The ads that HTCondor writes beside a job: text of others, read as data."""

import math
import os
import re

__all__ = ["read_ad", "read_ad_numbers"]

_MAX_BYTES = 1 << 20
_MAX_NUMBER_LENGTH = 100
_NUMBER = r"[-+]?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?"
# HTCondor writes limits as they stand in its configuration: MachineMaxVacateTime = 10 * 60.
_PRODUCT = re.compile(rf"{_NUMBER}(?:\s*\*\s*{_NUMBER})*\Z")
# In these files a backslash means something only before a quote: "C:\new" has none, "a \"b\" c\" has two quotes in it.
_STRING = re.compile(r'"((?:[^"]|(?<=\\)")*)"\Z')


def read_ad(path: str | None) -> dict[str, float | str | bool]:
    """The attributes of an ad file that are plain numbers, strings or truth values, by their names in lower case.

    Empty where there is no such file; expressions are left out, but for products of numbers.
    """
    found: dict[str, float | str | bool] = {}
    for line in _text(path).split("\n"):
        name, equals, raw = line.partition("=")
        value = _value(raw.strip()) if equals else None
        if value is not None:
            found[name.strip().lower()] = value
    return found


def read_ad_numbers(path: str | None) -> dict[str, float]:
    """Those of them that are numbers."""
    return {name: value for name, value in read_ad(path).items() if type(value) is float}


def _value(text: str) -> float | str | bool | None:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    string = _STRING.match(text)
    if string is not None:
        return string[1].replace('\\"', '"')
    if len(text) <= _MAX_NUMBER_LENGTH and _PRODUCT.match(text):
        number = math.prod(float(factor) for factor in text.split("*"))
        return number if math.isfinite(number) else None
    return None


def _text(path: str | None) -> str:
    if not path or "\0" in path:
        return ""
    try:
        # Without waiting, should it be a FIFO.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            return (file.read(_MAX_BYTES) or b"").decode(errors="replace")
    except OSError:
        return ""
