"""Moving a chunk and taking its checksum: in one pass past the caches where the native part is there, else in two."""

import sys
from collections.abc import Sequence

from holdfast import native
from holdfast.format.checksum import checksum_hex

__all__ = ["gather", "move", "scatter", "stream", "streams"]

# Below this, what numpy needs to make its views costs more than a short hold of the interpreter's lock.
_GIL_FREE_BYTES = 64 << 10


def move(source: memoryview, target: memoryview) -> None:
    """Copy bytes; other threads run meanwhile if there are many, and numpy is loaded: an agent does without it."""
    numpy = sys.modules.get("numpy")
    if numpy is None or source.nbytes < _GIL_FREE_BYTES:
        target[:] = source
    else:
        numpy.copyto(numpy.frombuffer(target, numpy.uint8), numpy.frombuffer(source, numpy.uint8))


def gather(target: memoryview, parts: Sequence[memoryview], *, kept: bool = False) -> str:
    """Put the parts, one after the other, into the target, which they fill; the checksum of what is in it then.

    With `kept`, what is in it stays in the caches: somebody looks at it next.
    """
    checksum = native.gather(target, parts, kept=kept)
    if checksum is not None:
        return checksum
    at = 0
    for part in parts:
        move(part, target[at : at + part.nbytes])
        at += part.nbytes
    # While it is in the cache that it was copied to.
    return checksum_hex(target)


def scatter(source: memoryview, parts: Sequence[memoryview]) -> str:
    """Put the source into the parts, which it fills; the checksum of what is in them then."""
    checksum = native.scatter(source, parts)
    if checksum is not None:
        return checksum
    at = 0
    for part in parts:
        move(source[at : at + part.nbytes], part)
        at += part.nbytes
    return checksum_hex(source)


def streams() -> bool:
    """Whether chunks can go past the caches."""
    return native.is_built()


def stream(source: memoryview, target: memoryview) -> None:
    """Copy bytes that nobody looks at again soon, past the caches."""
    scatter(source, [target])
