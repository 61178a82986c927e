"""Chunks that are moved and checked in one pass, past the caches: where the native part was built for this processor.

Without it, and with `HOLDFAST_NATIVE=0`, both say that they cannot.
"""

import os
from collections.abc import Sequence
from types import ModuleType

__all__ = ["gather", "is_built", "scatter"]

# Shorter ones are soon looked at again, and XXH3 takes another way for some of them.
_LEAST_BYTES = 16 << 10


def _load() -> ModuleType | None:
    if os.environ.get("HOLDFAST_NATIVE") == "0":
        return None
    try:
        from holdfast.native import _streams as built
    except ImportError:  # not built, or another processor
        return None
    return built


_streams = _load()


def is_built() -> bool:
    """Whether it is there, and used."""
    return _streams is not None


def gather(target: memoryview, parts: Sequence[memoryview]) -> str | None:
    """Put the parts, one after the other, into the target, which they fill; the XXH3-128 of what is in it then.

    None where that cannot be done this way.
    """
    if _streams is None or target.nbytes < _LEAST_BYTES:
        return None
    checksum: str = _streams.gather(target, parts)
    return checksum


def scatter(source: memoryview, parts: Sequence[memoryview]) -> str | None:
    """Put the source, which may be a mapped file, into the parts; the XXH3-128 of what is in them then.

    None where that cannot be done this way, or some of the source cannot be read; then the parts hold anything.
    """
    if _streams is None or source.nbytes < _LEAST_BYTES:
        return None
    checksum: str | None = _streams.scatter(source, parts)
    return checksum
