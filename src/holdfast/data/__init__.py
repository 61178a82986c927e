"""Data order that resumes: which sample comes when is a function of seed, epoch and position, and of nothing else.

Importing it is light: torch is imported only where a thing of torch is given.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.data.making import resumable
    from holdfast.data.protocol import Data, Handed

__all__ = ["resumable", "Data", "Handed"]

_HOMES = {
    "resumable": "holdfast.data.making",
    "Data": "holdfast.data.protocol",
    "Handed": "holdfast.data.protocol",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
