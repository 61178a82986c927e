"""What a sensor is, and how the small files of the system are read: those that cannot be say nothing."""

from pathlib import Path
from typing import Protocol

from holdfast.policy.risk import Reading

__all__ = ["Sensor", "number_in", "text_of", "whole"]

_MOST_BYTES = 1 << 20
_MOST_DIGITS = 30


class Sensor(Protocol):
    """Asked now and then by one thread. Cheap, and back within a second; one that raises or hangs is switched off."""

    name: str

    def read(self) -> Reading:
        """What there is to see now."""
        ...


def text_of(path: Path) -> str:
    """The file's text; empty where it is not there or may not be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_BYTES)
    except (OSError, ValueError):  # also a name that no file can have
        return ""


def number_in(path: Path) -> int | None:
    """The whole number that the file consists of."""
    text = text_of(path).strip()
    return -found if text.startswith("-") and (found := whole(text[1:])) is not None else whole(text)


def whole(text: str) -> int | None:
    """The whole number that the text is, unless it is far too long for one."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None
