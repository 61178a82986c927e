"""Writing a snapshot while it is being copied: what comes of it, and what is left of one that was given up."""

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from holdfast.core.limits import CHUNK_BYTES
from holdfast.engine import ahead
from holdfast.engine.ahead import WrittenAhead, may_write_ahead, write_ahead
from holdfast.engine.blocks import BlockPool
from holdfast.engine.filled import Filled
from holdfast.engine.laying import lay_out_state
from holdfast.engine.overlap import Overlapped
from holdfast.format.checksum import checksum_hex
from holdfast.format.encode import encode_state
from holdfast.format.head import digest_hex
from holdfast.format.manifest import ShardRecord
from holdfast.storage.files import Files
from holdfast.storage.posix import PosixStore

NAME = "000000001-e000-20260101T000000Z-a0001"
SHARD = "rank-00000.safetensors"
SIZE = 9 * CHUNK_BYTES + 12345


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    return PosixStore(tmp_path / "run", create=True)


@pytest.fixture
def image() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, SIZE, np.uint8)


def _staged(image: np.ndarray) -> ShardRecord:
    chunks = [image[begin : begin + CHUNK_BYTES].tobytes() for begin in range(0, len(image), CHUNK_BYTES)]
    return ShardRecord(
        name=SHARD, size_bytes=len(image), chunk_bytes=CHUNK_BYTES, xxh3=list(map(checksum_hex, chunks)), blake3=[]
    )


def _write(
    store: PosixStore,
    image: np.ndarray,
    *,
    filled_bytes: Callable[[], int],
    goes_on: Callable[[], bool] = lambda: True,
    workers: int = 2,
) -> WrittenAhead | None:
    return write_ahead(
        store,
        NAME,
        memoryview(image),
        attempt=1,
        filled_bytes=filled_bytes,
        goes_on=goes_on,
        pool=BlockPool(4 * CHUNK_BYTES),
        workers=workers,
        progress=lambda size_bytes: None,
    )


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_what_is_filled_while_it_is_written_is_the_shard_with_its_digests(store, tmp_path, image, workers):
    memory, filled = np.zeros_like(image), [0]

    def fill_some_more() -> int:
        """Only what is filled is there: whoever reads further finds zeros."""
        end = min(SIZE, filled[0] + CHUNK_BYTES // 2)
        memory[filled[0] : end] = image[filled[0] : end]
        filled[0] = end
        return filled[0]

    lock = threading.Lock()

    def filled_bytes() -> int:
        with lock:
            return fill_some_more()

    written = _write(store, memory, filled_bytes=filled_bytes, workers=workers)

    assert written is not None
    assert written.is_of(NAME, _staged(image))
    record = written.finish(_staged(image))
    assert (tmp_path / "run" / NAME / SHARD).read_bytes() == image.tobytes()
    assert record.blake3 == [
        digest_hex(image[begin : begin + CHUNK_BYTES].tobytes()) for begin in range(0, SIZE, CHUNK_BYTES)
    ]


def test_what_was_read_before_it_was_there_is_not_the_shard(store, image):
    memory = image.copy()
    memory[5 * CHUNK_BYTES] ^= 1  # as if it were copied once more after it was read

    written = _write(store, memory, filled_bytes=lambda: SIZE)

    assert written is not None
    assert not written.is_of(NAME, _staged(image))
    assert not written.is_of("000000002-e000-20260101T000000Z-a0001", _staged(memory))
    assert written.is_of(NAME, _staged(memory))


def test_nothing_is_left_of_one_that_is_abandoned(store, image):
    written = _write(store, image, filled_bytes=lambda: SIZE)

    assert written is not None
    assert [entry.name for entry in store.list(NAME)] == [SHARD]
    written.abandon(store, 1)
    assert store.list(NAME) == []


def test_a_copy_that_does_not_go_on_leaves_nothing(store, image):
    assert _write(store, image, filled_bytes=lambda: SIZE // 2, goes_on=lambda: False) is None
    assert store.list(NAME) == []


def test_what_is_filled_is_not_written_any_more_when_something_else_is_wanted(store, image):
    orders = iter([True, True, False])

    assert _write(store, image, filled_bytes=lambda: SIZE, goes_on=lambda: next(orders, False), workers=1) is None
    assert store.list(NAME) == []


def test_a_directory_without_its_file_is_not_left(tmp_path, image):
    class Full(Files):
        def create(self, parent: int, name: str, mode: int, *, direct: bool = False) -> int:
            if name == SHARD:
                raise OSError(errno.EMFILE, "too many")
            return super().create(parent, name, mode, direct=direct)

    store = PosixStore(tmp_path / "run", create=True, files=Full())

    assert _write(store, image, filled_bytes=lambda: SIZE) is None
    assert not (tmp_path / "run" / NAME).exists()


def test_a_copy_that_stands_still_is_not_waited_for(store, image, monkeypatch):
    monkeypatch.setattr(ahead, "_PATIENCE_S", 0.05)

    assert _write(store, image, filled_bytes=lambda: 0) is None
    assert store.list(NAME) == []


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_storage_that_fails_leaves_nothing_and_raises_nothing(tmp_path, image, number):
    class Failing(Files):
        def write_at(self, descriptor: int, data: memoryview, offset: int) -> int:
            if offset:
                raise OSError(number, "broken")
            return super().write_at(descriptor, data, offset)

    store = PosixStore(tmp_path / "run", create=True, files=Failing())

    assert _write(store, image, filled_bytes=lambda: SIZE) is None
    assert store.list(NAME) == []


def test_only_free_names_with_plenty_of_room_are_written_ahead(store, image):
    free_bytes = store.space().free_bytes

    assert may_write_ahead(store, NAME, SIZE)
    assert not may_write_ahead(store, NAME, free_bytes // 2)
    assert _write(store, image, filled_bytes=lambda: SIZE) is not None
    assert not may_write_ahead(store, NAME, SIZE)


@pytest.mark.parametrize("workers", [1, 3])
def test_an_overlapped_capture_tells_how_far_it_is_and_what_it_told_stays(workers):
    state = {"a": np.random.default_rng(2).standard_normal(1 << 20), "b": np.arange(3 << 20)}
    laid = lay_out_state(encode_state(state))
    image, size = bytearray(laid.layout.size_bytes), laid.layout.size_bytes
    told: list[tuple[int, bytes]] = []

    copying = Overlapped(
        laid.layout,
        laid.encoded.carriers,
        {0},
        memoryview(image),
        workers=workers,
        note_filled=lambda filled: told.append((filled, bytes(image[:filled]))),
    )
    assert copying.wait(60)

    assert copying.error is None
    assert [filled for filled, _ in told] == sorted({filled for filled, _ in told})
    assert told[-1][0] == size
    assert workers > 1 or len(told) >= size // CHUNK_BYTES // 4  # of several, one may have been held up at the start
    assert all(image.startswith(prefix) for _, prefix in told)


def test_chunks_that_are_done_out_of_order_are_told_when_those_before_them_are():
    told: list[int] = []
    filled = Filled(10 * CHUNK_BYTES + 1, told.append)

    for chunk in (1, 2, 3, 0, 9, 10, 8, 7, 6, 5):
        filled.note(chunk)
    assert told == [4 * CHUNK_BYTES]
    filled.note(4)

    assert told == [4 * CHUNK_BYTES, 10 * CHUNK_BYTES + 1]
