"""What is done in C where it was built: chunks that are moved and checked in one pass, and starts of many files.

Where it was not built, or not for this processor, and with `HOLDFAST_NATIVE=0`, each says that it cannot.
"""

import os
import sys
from collections.abc import Sequence
from types import ModuleType

__all__ = ["gather", "gather_chunks", "is_built", "open_starts", "scatter", "scatter_chunks"]

# Shorter ones are soon looked at again, and XXH3 takes another way for some of them.
_LEAST_BYTES = 16 << 10


_loaded: dict[str, ModuleType | None] = {}


def _part(name: str) -> ModuleType | None:
    """Loaded when it is used first: a listing needs one of them, a save the other."""
    if name not in _loaded:
        try:
            _loaded[name] = None if os.environ.get("HOLDFAST_NATIVE") == "0" else _load(name)
        except OSError:  # no descriptor is free for it; perhaps the next time
            return None
    return _loaded[name]


def _load(name: str) -> ModuleType | None:
    try:
        __import__(f"holdfast.native.{name}")  # importlib would be loaded for it, and a listing is to start at once
    except ImportError:  # not built, or another processor
        return None
    return sys.modules[f"holdfast.native.{name}"]


def is_built() -> bool:
    """Whether chunks are moved that way."""
    return _part("_streams") is not None


def gather(target: memoryview, parts: Sequence[memoryview], *, kept: bool = False) -> str | None:
    """Put the parts, one after the other, into the target, which they fill; the XXH3-128 of what is in it then.

    What is kept in the caches is looked at again at once; all else goes past them. None where that cannot be done.
    """
    built = _part("_streams")
    if built is None or target.nbytes < _LEAST_BYTES:
        return None
    checksum: str = built.gather(target, parts, kept)
    return checksum


def gather_chunks(target: memoryview, parts: Sequence[memoryview], chunk_bytes: int) -> list[str] | None:
    """Put the parts, one after the other, into the target, which they fill, past the caches; each chunk's XXH3-128.

    One call, because a thread that comes back from each chunk waits for the interpreter's lock as often. None where
    that cannot be done.
    """
    built = _part("_streams")
    last_bytes = target.nbytes % chunk_bytes or chunk_bytes
    if built is None or min(chunk_bytes, last_bytes) < _LEAST_BYTES:
        return None
    checksums: list[str] = built.gather_chunks(target, parts, chunk_bytes)
    return checksums


def scatter(source: memoryview, parts: Sequence[memoryview]) -> str | None:
    """Put the source, which may be a mapped file, into the parts; the XXH3-128 of what is in them then.

    None where that cannot be done this way, or some of the source cannot be read; then the parts hold anything.
    """
    checksums = scatter_chunks(source, parts, source.nbytes)
    return None if checksums is None else checksums[0]


def scatter_chunks(source: memoryview, parts: Sequence[memoryview], chunk_bytes: int) -> list[str] | None:
    """The same for a source of several chunks, of which the last may be shorter: the XXH3-128 of each.

    One call for many: with a call each, threads wait for the interpreter's lock a thousand times a second.
    """
    built = _part("_streams")
    if built is None or min(chunk_bytes, (source.nbytes - 1) % chunk_bytes + 1 if source.nbytes else 0) < _LEAST_BYTES:
        return None
    checksums: list[str] | None = built.scatter(source, parts, chunk_bytes)
    return checksums


def open_starts(
    root: int, groups: Sequence[str], name: str, size_bytes: int
) -> list[tuple[int, int, int, bytes | int] | int | None] | None:
    """`group/name` of each group below the root, open, with its first bytes: descriptor, device, inode, and those.

    No link is followed. None for what is not there, or is no ordinary file; an `errno` in the place of what failed.
    None for all where that cannot be done this way.
    """
    built = _part("_starts")
    if built is None:
        return None
    starts: list[tuple[int, int, int, bytes | int] | int | None] = built.open_starts(
        root, list(groups), name, size_bytes
    )
    return starts
