"""What the machine can do at all: the same bytes, written and read without a format."""

import mmap
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import blake3
import torch

from benchmarks.measure import Call
from benchmarks.results import Role
from benchmarks.states import TorchState

__all__ = ["RawDirectRead", "RawRead", "RawWrite"]

_PAGE_BYTES = 4096
_BLOCK_BYTES = 8 << 20
_DIGEST_BYTES = 1 << 20
_FILE = "raw.bin"


class RawWrite:
    """Direct I/O of page-aligned memory, in large blocks, then fsync of the file and its directory."""

    role: Role = "limit"

    def __init__(self, threads: int) -> None:
        self.name = f"raw direct write ×{threads}"
        self._threads = threads
        self._image: mmap.mmap | None = None

    def saving(self, state: TorchState, directory: Path) -> AbstractContextManager[Call]:
        if self._image is None:
            self._image = _image(state)
        image = self._image
        return nullcontext(lambda: _write(directory, image, self._threads))


class RawRead:
    """Reading through the page cache, straight into the tensors, in parallel; digesting what was read if asked."""

    def __init__(self, threads: int, *, digest: bool = False) -> None:
        self.name = f"raw read into place ×{threads}" + (" + BLAKE3" if digest else "")
        self.role: Role = "verified limit" if digest else "limit"
        self._threads = threads
        self._digest = digest

    def restoring(self, state: TorchState, directory: Path) -> AbstractContextManager[Call]:
        pieces = _pieces(state, _DIGEST_BYTES if self._digest else _BLOCK_BYTES)

        def read(descriptor: int, first: int) -> None:
            for offset, piece in pieces[first :: self._threads]:
                _read_fully(descriptor, piece, offset)
                if self._digest:
                    blake3.blake3(piece).hexdigest()

        return nullcontext(lambda: _in_threads(directory / _FILE, os.O_RDONLY, self._threads, read))


class RawDirectRead:
    """Reading past the page cache into page-aligned memory, in parallel; the tensors themselves are not aligned."""

    role: Role = "limit"

    def __init__(self, threads: int) -> None:
        self.name = f"raw direct read ×{threads}"
        self._threads = threads
        self._image: mmap.mmap | None = None

    def restoring(self, state: TorchState, directory: Path) -> AbstractContextManager[Call]:
        if self._image is None:
            self._image = _image(state)
        view = memoryview(self._image)

        def read(descriptor: int, first: int) -> None:
            for offset in range(first * _BLOCK_BYTES, len(view), self._threads * _BLOCK_BYTES):
                _read_fully(descriptor, view[offset : offset + _BLOCK_BYTES], offset)

        return nullcontext(lambda: _in_threads(directory / _FILE, os.O_RDONLY | os.O_DIRECT, self._threads, read))


def _image(state: TorchState) -> mmap.mmap:
    """The tensors' bytes one after the other, in memory as direct I/O wants it."""
    size_bytes = -(-state.size_bytes // _PAGE_BYTES) * _PAGE_BYTES
    image = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # From small pages that happen to lie apart, the same write may take one and a half times as long.
    image.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(image)
    for offset, piece in _pieces(state, _BLOCK_BYTES):
        view[offset : offset + len(piece)] = piece
    return image


def _pieces(state: TorchState, size_bytes: int) -> list[tuple[int, memoryview]]:
    """(offset in the file, memory of a tensor), in pieces of at most that size."""
    pieces, offset = [], 0
    for tensor in state.flat.values():
        memory = tensor.view(-1).view(torch.uint8).numpy().data
        for begin in range(0, len(memory), size_bytes):
            piece = memory[begin : begin + size_bytes]
            pieces.append((offset, piece))
            offset += len(piece)
    return pieces


def _write(directory: Path, image: mmap.mmap, threads: int) -> None:
    view = memoryview(image)

    def write(descriptor: int, first: int) -> None:
        for offset in range(first * _BLOCK_BYTES, len(view), threads * _BLOCK_BYTES):
            block = view[offset : offset + _BLOCK_BYTES]
            if os.pwrite(descriptor, block, offset) != len(block):
                raise RuntimeError("a raw write was short")

    directory.mkdir()
    _in_threads(directory / _FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, threads, write, sync=True)
    for path in (directory, directory.parent):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def _in_threads(path: Path, flags: int, threads: int, work: Callable[[int, int], None], *, sync: bool = False) -> None:
    descriptor = os.open(path, flags, 0o600)
    failures: list[BaseException] = []

    def guarded(first: int) -> None:
        try:
            work(descriptor, first)
        except BaseException as error:
            failures.append(error)

    try:
        started: Sequence[threading.Thread] = [
            threading.Thread(target=guarded, args=(first,)) for first in range(threads)
        ]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if failures:
        raise failures[0]


def _read_fully(descriptor: int, piece: memoryview, offset: int) -> None:
    done = 0
    while done < len(piece):
        read = os.preadv(descriptor, [piece[done:]], offset + done)
        if read <= 0:
            raise RuntimeError(f"a raw read ended at byte {offset + done}")
        done += read
