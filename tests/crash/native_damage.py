"""Part (d), once more where the native part moves the chunks: in the other parts of the rig they are too short for it.

Files are mapped then, so there is one more thing that can happen to them: that they end while they are read.
"""

import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from mmap import mmap
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from holdfast import native
from holdfast.engine.blocks import BlockPool
from holdfast.storage.files import Files
from tests.crash.damage import OLDER, check_restore, make_baseline, write_tree
from tests.crash.memory_damage import flip_bits_in_memory
from tests.crash.outcome import Outcome, Progress
from tests.crash.slices import WHOLE, Slice
from tests.crash.subject import RUN, in_memory, small_and_fast

__all__ = ["damage_natively", "damage_natively_in_memory"]

_CHUNK_BYTES = 24 << 10
_FLOATS = 8_100  # three chunks: the last is not full, and still long enough to be moved natively


class _Flip(NamedTuple):
    bit: int

    def done_to(self, shard: Path) -> Files:
        with shard.open("r+b") as file:
            file.seek(self.bit // 8)
            byte = file.read(1)[0]
            file.seek(self.bit // 8)
            file.write(bytes([byte ^ 1 << self.bit % 8]))
        return Files()


class _Cut(NamedTuple):
    length: int

    def done_to(self, shard: Path) -> Files:
        length = self.length

        class Cutting(Files):
            def map(self, descriptor: int, size_bytes: int) -> mmap | None:
                memory = super().map(descriptor, size_bytes)
                os.truncate(shard, length)
                return memory

        return Cutting()


def damage_natively(*, at_most: int, first_only: bool = False, part: Slice = WHOLE) -> Outcome:
    """That many bits of the newest shard, each alone, evenly spread; and the shard cut while it is read."""
    if not native.is_built():
        return Outcome(0, [], "the native part is not built")
    violations: list[str] = []
    count = 0
    with (
        small_and_fast(_CHUNK_BYTES),
        _several_at_once(),
        patch("holdfast.storage.posix_reader._LEAST_MAPPED_BYTES", _CHUNK_BYTES),
        tempfile.TemporaryDirectory(prefix="holdfast-native-", dir=in_memory()) as scratch,
    ):
        baseline = make_baseline(floats=_FLOATS)
        shard = next(path for path in baseline.paths if baseline.newest in path and path.endswith(".safetensors"))
        data = baseline.tree[shard] or b""
        damages = part.of([*_flips(len(data), at_most), *_cuts(len(data))])
        progress = Progress("damage of large chunks", len(damages))
        for count, damage in enumerate(damages, 1):
            root = Path(scratch) / "damaged"
            write_tree(baseline.tree, root)
            with _counted() as used:
                problem = check_restore(
                    damage.done_to(root / shard.lstrip("/")), {OLDER}, path=f"{root}{RUN}", floats=_FLOATS
                )
            shutil.rmtree(root)
            if not problem and used.value < 2:
                problem = "the native part did not read several chunks at once"
            if problem:
                violations.append(f"{damage}: {problem}")
            progress.show(count, len(violations))
            if first_only and violations:
                break
    return Outcome(count, violations)


def damage_natively_in_memory(*, at_most: int, first_only: bool = False, part: Slice = WHOLE) -> Outcome:
    """The same for a snapshot that is in memory only."""
    if not native.is_built():
        return Outcome(0, [], "the native part is not built")
    with _counted() as used:
        outcome = flip_bits_in_memory(
            at_most=at_most, first_only=first_only, floats=_FLOATS, chunk_bytes=_CHUNK_BYTES, part=part
        )
    return outcome if used.value else Outcome(outcome.counted, ["nothing was read by the native part"])


def _flips(size_bytes: int, at_most: int) -> Iterator[_Flip]:
    edges = {edge + beside for edge in range(0, size_bytes + 1, _CHUNK_BYTES) for beside in (-1, 0)} | {size_bytes - 1}
    yield from (_Flip(byte * 8 + byte % 8) for byte in sorted(edges) if 0 <= byte < size_bytes)
    # An odd stride: all places in a byte, and in a stripe of the checksum, get their turn.
    yield from map(_Flip, range(0, size_bytes * 8, max(1, size_bytes * 8 // at_most) | 1))


def _cuts(size_bytes: int) -> list[_Cut]:
    return [_Cut(length) for length in (0, 1, 4096, _CHUNK_BYTES, 2 * _CHUNK_BYTES + 1, size_bytes - 1)]


@contextmanager
def _several_at_once() -> Iterator[None]:
    """The first two of the three chunks are moved by one call."""
    with (
        patch.object(BlockPool.__init__, "__defaults__", (2 * _CHUNK_BYTES,)),
        patch("holdfast.engine.reading._LEAST_TURNS", 1),
    ):
        yield


@contextmanager
def _counted() -> Iterator[Any]:
    """How many chunks the native part was to move at once at most, here and in child processes."""
    scatter, used = native.scatter_chunks, multiprocessing.Value("q", lock=False)

    def counting(source: memoryview, parts: Sequence[memoryview], chunk_bytes: int) -> list[str] | None:
        if source.nbytes >= native._LEAST_BYTES:
            used.value = max(used.value, -(-source.nbytes // chunk_bytes))
        return scatter(source, parts, chunk_bytes)

    with patch.object(native, "scatter_chunks", counting):
        yield used
