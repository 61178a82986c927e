"""Verified reading: leaves into their places, in parallel, each chunk checked first (I4)."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from holdfast.core.errors import IntegrityError
from holdfast.engine.blocks import BlockPool, run_workers
from holdfast.format.arrays import Destination, bytes_view, scatter_range
from holdfast.format.checksum import checksum_hex, checksum_of_parts
from holdfast.format.head import digest_hex
from holdfast.format.manifest import Body, ShardRecord
from holdfast.format.moving import scatter
from holdfast.storage.store import Reader, Store

__all__ = ["Progress", "read_leaves", "verify_shard"]

Progress = Callable[[int], None]
"""Called with the number of bytes done since the last call, possibly from several threads."""

_Use = Callable[[Reader, range, memoryview], None]
"""Reads and uses chunks that lie one after the other: the shard, their numbers, and memory of their size."""


# More pieces of a chunk than this are read into one buffer and copied from there.
_MOST_PIECES = 16
# Each thread gets chunks so often, at least: then all of them end at about the same time.
_LEAST_TURNS = 4


class _Target(NamedTuple):
    begin: int
    end: int
    carrier: np.ndarray


class _Piece(NamedTuple):
    """The part of a target that lies in a chunk; begin and end count from the start of the shard."""

    begin: int
    end: int
    target: _Target


def read_leaves(
    store: Store,
    checkpoint_id: str,
    body: Body,
    destinations: Iterable[Destination],
    *,
    pool: BlockPool,
    workers: int,
    progress: Progress | None = None,
    on_touch: Callable[[], None] | None = None,
) -> None:
    """Fill every destination. Only chunks that hold a part of one are read; IntegrityError where one is damaged.

    `on_touch` runs before a byte of a destination changes, and not where nothing can be read.
    """
    targets: list[list[_Target]] = [[] for _ in body.shards]
    for destination in destinations:
        leaf, carrier = body.leaves[destination.leaf], destination.carrier
        begin, end, size_bytes = leaf.begin, leaf.end, carrier.nbytes
        if size_bytes != end - begin:
            raise IntegrityError(
                f"{checkpoint_id}: leaf {leaf.name!r} has {end - begin} bytes, its shape wants {size_bytes}"
            )
        if size_bytes:
            targets[leaf.shard].append(_Target(begin, end, carrier))
    for shard, wanted in zip(body.shards, targets, strict=True):
        if wanted:
            _read_shard(
                store, checkpoint_id, shard, wanted, pool=pool, workers=workers, progress=progress, on_touch=on_touch
            )


def verify_shard(
    store: Store,
    checkpoint_id: str,
    shard: ShardRecord,
    *,
    pool: BlockPool,
    workers: int,
    progress: Progress | None = None,
) -> list[int]:
    """The numbers of the chunks that differ from a digest or checksum; IntegrityError where the size does."""
    damaged: list[int] = []

    def check(reader: Reader, run: range, data: memoryview) -> None:
        (index,) = run
        reader.read_at([data], index * shard.chunk_bytes)
        if checksum_hex(data) != shard.xxh3[index] or digest_hex(data) != shard.blake3[index]:
            damaged.append(index)

    _each_chunk(
        store, checkpoint_id, shard, range(len(shard.blake3)), check, pool=pool, workers=workers, progress=progress
    )
    return sorted(damaged)


def _read_shard(
    store: Store,
    checkpoint_id: str,
    shard: ShardRecord,
    targets: list[_Target],
    *,
    pool: BlockPool,
    workers: int,
    progress: Progress | None,
    on_touch: Callable[[], None] | None,
) -> None:
    # By end, then by begin: several targets may want the same leaf (tied in the checkpoint, not in the program).
    targets.sort(key=itemgetter(1, 0))
    ends = [target.end for target in targets]

    def pieces_of(begin: int, end: int) -> list[_Piece]:
        pieces = []
        for position in range(bisect_right(ends, begin), len(targets)):
            target = targets[position]
            first, last, _ = target
            if first >= end:
                break
            pieces.append(_Piece(first if first > begin else begin, last if last < end else end, target))
        return pieces

    def check(index: int, checksum: str) -> None:
        if checksum != shard.xxh3[index]:
            raise IntegrityError(f"{shard.name} of {checkpoint_id}: chunk {index} differs from its checksum")

    def read_checked(reader: Reader, run: range, places: list[memoryview] | None) -> bool:
        if places is None or not reader.is_cached():
            return False
        checksums = reader.read_checked(places, run.start * shard.chunk_bytes, shard.chunk_bytes)
        if checksums is None:
            return False
        for index, checksum in zip(run, checksums, strict=True):
            check(index, checksum)
        return True

    def read_chunk(reader: Reader, index: int, data: memoryview) -> None:
        begin = index * shard.chunk_bytes
        pieces = pieces_of(begin, begin + len(data))
        places = _places(pieces, begin, data, _MOST_PIECES)
        if read_checked(reader, range(index, index + 1), places):
            return
        left: Sequence[_Piece] = ()
        if places is not None and reader.is_cached():
            reader.read_at(places, begin)
            checksum = checksum_of_parts(places)
        else:
            reader.read_at([data], begin)
            if places is not None and len(places) == len(pieces):
                # All of it goes to the program, and is checked on its way: one trip to memory less.
                checksum = scatter(data, places)
            else:
                checksum, left = checksum_hex(data), pieces
        check(index, checksum)
        for first, last, target in left:
            scatter_range(target.carrier, first - target.begin, data[first - begin : last - begin])

    def read(reader: Reader, run: range, data: memoryview) -> None:
        if len(run) > 1:
            begin = run.start * shard.chunk_bytes
            places = _places(pieces_of(begin, begin + len(data)), begin, data, _MOST_PIECES * len(run))
            if read_checked(reader, run, places):
                return
        for index, at in zip(run, range(0, len(data), shard.chunk_bytes), strict=True):
            read_chunk(reader, index, data[at : at + shard.chunk_bytes])

    wanted = _chunks_of(targets, shard.chunk_bytes)
    _each_chunk(
        store,
        checkpoint_id,
        shard,
        wanted,
        read,
        pool=pool,
        workers=workers,
        progress=progress,
        at_once=True,
        on_begin=on_touch,
    )


def _places(pieces: Sequence[_Piece], begin: int, data: memoryview, most: int) -> list[memoryview] | None:
    """Where the bytes go, in order: the program's memory, and ours for what it does not want.

    None where they must be read into our memory and copied: strided, wanted twice, or in so many pieces that this is
    faster. All else is moved once, and checked meanwhile. A restore that finds damage there does not return: it fills
    all of it again from an older checkpoint, or raises.
    """
    if len(pieces) > most:
        return None
    parts, at = [], begin
    for first, last, target in pieces:
        if first < at or not target.carrier.flags.c_contiguous:
            return None
        if first > at:
            parts.append(data[at - begin : first - begin])
        parts.append(bytes_view(target.carrier)[first - target.begin : last - target.begin])
        at = last
    if at < begin + len(data):
        parts.append(data[at - begin :])
    return parts


def _chunks_of(targets: Iterable[_Target], chunk_bytes: int) -> Sequence[int]:
    chunks: set[int] = set()
    for begin, end, _ in targets:
        first, last = begin // chunk_bytes, (end - 1) // chunk_bytes
        chunks.add(first)
        if last > first:
            chunks.update(range(first + 1, last + 1))
    return sorted(chunks)


def _each_chunk(
    store: Store,
    checkpoint_id: str,
    shard: ShardRecord,
    chunks: Sequence[int],
    use: _Use,
    *,
    pool: BlockPool,
    workers: int,
    progress: Progress | None,
    at_once: bool = False,
    on_begin: Callable[[], None] | None = None,
) -> None:
    """`at_once`: several chunks that lie one after the other are used by one call, where they are in memory.

    `on_begin` runs before the first one is used: the shard is there then, and has its size.
    """
    reader = store.open(f"{checkpoint_id}/{shard.name}")
    try:
        if reader.size_bytes != shard.size_bytes:
            raise IntegrityError(
                f"{shard.name} of {checkpoint_id} has {reader.size_bytes} bytes, the manifest says {shard.size_bytes}"
            )
        if shard.chunk_bytes > pool.size_bytes:
            pool = BlockPool(shard.chunk_bytes)
        # Copying from memory takes a core; waiting for a disk does not.
        if workers > 1:
            workers = -(-workers // 2) if reader.is_cached() else 2 * workers
        most = -(-len(chunks) // (_LEAST_TURNS * workers)) if at_once and reader.is_cached() else 1
        most = max(1, min(most, pool.size_bytes // shard.chunk_bytes))
        runs = _runs(chunks, most, shard.size_bytes // shard.chunk_bytes)
        if on_begin is not None:
            on_begin()
        _read_runs(reader, shard, runs, use, pool=pool, workers=workers, progress=progress)
    finally:
        reader.close()


def _runs(chunks: Sequence[int], most: int, whole: int) -> list[range]:
    """Those that lie one after the other, at most so many of them. What follows the `whole` ones is alone: it is short,
    and may have to be read another way.
    """
    runs: list[range] = []
    for index in chunks:
        last = runs[-1] if runs else range(0)
        if index == last.stop and 0 < len(last) < most and index < whole:
            runs[-1] = range(last.start, index + 1)
        else:
            runs.append(range(index, index + 1))
    return runs


def _read_runs(
    reader: Reader,
    shard: ShardRecord,
    runs: Sequence[range],
    use: _Use,
    *,
    pool: BlockPool,
    workers: int,
    progress: Progress | None,
) -> None:
    longest_bytes = max(map(len, runs), default=1) * shard.chunk_bytes

    def read(next_index: Callable[[], int | None]) -> None:
        with pool.block() as block:
            # One place after the other: into memory that the processor has in its caches, because it has just looked at
            # it, some disks read at half their speed (decision 31).
            places = cycle(range(0, len(block) - longest_bytes + 1, longest_bytes))
            while (position := next_index()) is not None:
                run, place = runs[position], next(places)
                size_bytes = min(run.stop * shard.chunk_bytes, shard.size_bytes) - run.start * shard.chunk_bytes
                data = block[place : place + size_bytes]
                use(reader, run, data)
                if progress is not None:
                    progress(len(data))

    run_workers(read, len(runs), workers)
