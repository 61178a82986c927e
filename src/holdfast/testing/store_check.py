"""One check of the conformance suite of stores, and the words that checks are written in."""

import mmap
from collections.abc import Callable

from holdfast.core.errors import HoldfastError
from holdfast.storage.store import Store, Writer

__all__ = [
    "LIMIT_BYTES",
    "PATIENCE_S",
    "OpenStore",
    "StoreCheck",
    "aligned",
    "expect",
    "pattern",
    "raises",
    "read_all",
    "same",
    "write",
]

OpenStore = Callable[[], Store]
"""Opens one place, the same at each call, as processes of their own would."""

LIMIT_BYTES = 1 << 20
PATIENCE_S = 30.0


class StoreCheck:
    """One behaviour. Call it with a function that opens the place, which must be empty at first."""

    def __init__(self, check: Callable[[OpenStore], None]) -> None:
        self._check = check
        self.name = check.__name__

    def __call__(self, open_store: OpenStore) -> None:
        opened: list[Store] = []

        def open_and_remember() -> Store:
            opened.append(open_store())
            return opened[-1]

        try:
            self._check(open_and_remember)
        finally:
            for store in opened:
                store.close()

    def __repr__(self) -> str:
        return self.name


def write(writer: Writer, data: bytes) -> None:
    """Write the bytes in aligned blocks, and finish."""
    step = 64 * writer.alignment
    for offset in range(0, len(data), step):
        writer.write_at(aligned(data[offset : offset + step]), offset)
    writer.finish(len(data))


def read_all(store: Store, key: str) -> bytes:
    """The whole blob, read through a reader."""
    reader = store.open(key)
    try:
        memory = aligned(bytes(reader.size_bytes))
        reader.read_at([memory], 0)
        return bytes(memory)
    finally:
        reader.close()


def aligned(data: bytes) -> memoryview:
    """The bytes in memory that begins at a page, as stores that write past the page cache want it."""
    memory = memoryview(mmap.mmap(-1, max(1, len(data))))[: len(data)]
    memory[:] = data
    return memory


def pattern(size: int) -> bytes:
    """Bytes in which no two pages are alike."""
    return b"".join(number.to_bytes(8, "big") for number in range(-(-size // 8)))[:size]


def expect(condition: object) -> None:
    """What the check's name says is true."""
    if not condition:
        raise AssertionError("it is not so")


def same(found: object, expected: object) -> None:
    """Both are equal."""
    if found != expected:
        raise AssertionError(f"found {_short(found)}, expected {_short(expected)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}… ({len(text)} characters)"


def raises(kind: type[HoldfastError], action: Callable[..., object], *arguments: object) -> None:
    """The action raises that error of ours, and no other."""
    try:
        action(*arguments)
    except kind:
        return
    raise AssertionError(f"nothing was raised, expected {kind.__name__}")
