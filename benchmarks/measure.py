"""Timing of contenders in turn, the state of the page cache, and the memory that a call needs at its peak."""

import gc
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

__all__ = ["Call", "Sample", "drop_from_cache", "in_turn", "read_into_cache", "settle", "timed"]

Call = Callable[[], None]

_T = TypeVar("_T")
_READ_BYTES = 8 << 20


class Sample(NamedTuple):
    """One timed call."""

    wall_s: float
    extra_bytes: int


def timed(call: Callable[[], object]) -> Sample:
    """Run the call once. What earlier ones left to be done, in memory and on the disk, is not charged to this one."""
    settle()
    with _peak_memory() as peak_bytes:
        begin_bytes = _status_bytes("VmRSS")
        begin_s = time.perf_counter()
        call()
        wall_s = time.perf_counter() - begin_s
        extra_bytes = max(0, peak_bytes() - begin_bytes)
    return Sample(wall_s, extra_bytes)


def settle() -> None:
    """Do what earlier calls left to be done, in memory and on the disk."""
    gc.collect()
    os.sync()  # the blocks of removed files are given back to the disk with the next commit of the journal


def in_turn(contenders: Sequence[_T], repeat: int, measure: Callable[[_T], Sample | None]) -> list[list[Sample]]:
    """The samples of each contender. They take turns, in another order each round: noise hits all alike."""
    samples: list[list[Sample]] = [[] for _ in contenders]
    shuffle = random.Random(1).sample
    for _ in range(repeat):
        for index in shuffle(range(len(contenders)), len(contenders)):
            sample = measure(contenders[index])
            if sample is not None:
                samples[index].append(sample)
    return samples


def drop_from_cache(directory: Path) -> None:
    """Forget the cached pages of all files below the directory. What the disk itself caches, nobody can drop."""
    for path in _files(directory):
        with _opened(path) as descriptor:
            os.fsync(descriptor)  # dirty pages cannot be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def read_into_cache(directory: Path) -> None:
    """Bring all files below the directory into the page cache."""
    buffer = bytearray(_READ_BYTES)
    for path in _files(directory):
        with _opened(path) as descriptor:
            offset = 0
            while read := os.preadv(descriptor, [buffer], offset):
                offset += read


def _files(directory: Path) -> list[Path]:
    return [path for path in sorted(directory.rglob("*")) if path.is_file()]


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _peak_memory() -> Iterator[Callable[[], int]]:
    """Gives a function that says the peak of the resident memory since now."""
    # 5: the kernel's own high-water mark starts again from here; sampling from a thread would miss peaks and cost time.
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    yield lambda: _status_bytes("VmHWM")


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"/proc/self/status has no {field}")
