"""A slot's content, read like a run."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import native
from holdfast.core.errors import BlobMissingError, FormatError, IntegrityError, StorageError, UsageError
from holdfast.core.values import Checkpoint
from holdfast.format.checksum import checksum_hex
from holdfast.format.manifest import Body, ShardRecord, encode_manifest
from holdfast.storage.store import BlobInfo
from holdfast.tiers.arena_store import ArenaStore
from holdfast.tiers.finding import find_arenas
from holdfast.tiers.slot import Slot
from tests.tiers.conftest import MakeArena

ID = "000000007-e001-20261115T184201Z-a0001"
SHARD = f"{ID}/rank-00000.safetensors"
IMAGE = os.urandom(100_000)


def manifest(checkpoint_id: str = ID) -> bytes:
    checkpoint = Checkpoint(
        id=checkpoint_id,
        step=7,
        epoch=1,
        attempt=1,
        seq=1,
        parent=None,
        origin=None,
        utc_s=1794768121.0,
        size_bytes=len(IMAGE),
        leaves=0,
        world=1,
        metrics={},
        note="",
        tags=(),
        pickle=False,
    )
    shard = ShardRecord("rank-00000.safetensors", len(IMAGE), 1 << 20, ["0" * 32], ["0" * 64])
    return encode_manifest(checkpoint, "run", Body({}, {}, [], [shard], [], None, {}))


@pytest.fixture
def own_slot(make_arena: MakeArena) -> Slot:
    """The slot of a training, filled."""
    arena = make_arena()
    arena.fit(len(IMAGE))
    fill(arena.slots[0])
    return arena.slots[0]


@pytest.fixture
def store(own_slot: Slot, root: Path) -> Iterator[ArenaStore]:
    """The same slot, as another process finds it."""
    slots = find_arenas("run", root)[0].slots()
    yield ArenaStore(slots[0])
    for slot in slots:
        slot.close()


def fill(slot: Slot, data: bytes | None = None) -> None:
    slot.begin()
    slot.image(len(IMAGE))[:] = IMAGE
    slot.finish(len(IMAGE), manifest() if data is None else data)


def test_the_checkpoint_is_what_the_manifest_says(store: ArenaStore) -> None:
    assert (store.checkpoint.id, store.checkpoint.step, store.run_id) == (ID, 7, "run")
    assert store.read(f"{ID}/manifest.json", 1 << 20) == manifest()
    assert store.list() == [BlobInfo(ID, is_group=True)]
    assert [entry.name for entry in store.list(ID)] == ["manifest.json", "rank-00000.safetensors"]
    assert store.list("another") == []
    assert store.location.endswith("slot-0")


def test_any_range_is_read_into_any_buffers(store: ArenaStore) -> None:
    reader = store.open(SHARD)
    buffers = [bytearray(size) for size in (1, 0, 4096, 50_000)]

    reader.read_at([memoryview(buffer) for buffer in buffers], 123)

    assert b"".join(buffers) == IMAGE[123 : 123 + 54_097]
    assert reader.size_bytes == len(IMAGE)
    assert reader.is_cached()
    reader.close()


@pytest.mark.skipif(not native.is_built(), reason="the native part is not built")
def test_an_image_is_filled_into_place_and_checked_in_one_pass(store: ArenaStore) -> None:
    reader = store.open(SHARD)
    buffers = [bytearray(size) for size in (1, 0, 4096, 50_000)]

    found = reader.read_checked([memoryview(buffer) for buffer in buffers], 123, 30_000)

    assert b"".join(buffers) == IMAGE[123 : 123 + 54_097]
    assert found == [checksum_hex(IMAGE[123:30_123]), checksum_hex(IMAGE[30_123 : 123 + 54_097])]
    with pytest.raises(IntegrityError, match="were wanted"):
        reader.read_checked([memoryview(bytearray(len(IMAGE)))], 1, len(IMAGE))
    reader.close()


@pytest.mark.skipif(not native.is_built(), reason="the native part is not built")
@pytest.mark.parametrize("error", [OSError(errno.ENOMEM, "no addresses"), ValueError("longer than the file")])
def test_an_image_that_cannot_be_mapped_is_read_by_calls(
    store: ArenaStore, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("holdfast.tiers.shared_memory.mmap.mmap", refused)
    reader = store.open(SHARD)
    memory = memoryview(bytearray(50_000))

    assert reader.read_checked([memory], 5, 50_000) is None
    reader.read_at([memory], 5)

    assert memory == IMAGE[5:50_005]


def test_more_buffers_than_one_call_takes_are_filled(store: ArenaStore) -> None:
    memory = bytearray(30_000)
    view = memoryview(memory)

    store.open(SHARD).read_at([view[begin : begin + 10] for begin in range(0, len(memory), 10)], 0)

    assert memory == IMAGE[: len(memory)]


def test_a_small_image_is_read_whole_and_a_larger_one_than_expected_is_refused(store: ArenaStore) -> None:
    assert store.read(SHARD, len(IMAGE)) == IMAGE
    for key in (SHARD, f"{ID}/manifest.json"):
        with pytest.raises(IntegrityError, match="at most 100 were expected"):
            store.read(key, 100)


def test_the_manifest_can_be_opened_too(store: ArenaStore) -> None:
    reader = store.open(f"{ID}/manifest.json")
    memory = bytearray(reader.size_bytes - 1)

    reader.read_at([memoryview(memory)], 1)

    assert memory == manifest()[1:]
    with pytest.raises(IntegrityError):
        reader.read_at([memoryview(memory)], 2)


@pytest.mark.parametrize("key", ["manifest.json", "other/manifest.json", f"{ID}/rank-00001.safetensors", f"{ID}/x"])
def test_what_the_slot_does_not_hold_is_missing(store: ArenaStore, key: str) -> None:
    with pytest.raises(BlobMissingError, match="does not exist"):
        store.open(key)
    with pytest.raises(BlobMissingError, match="does not exist"):
        store.read(key, 1 << 20)


def test_names_that_no_store_has_are_refused(store: ArenaStore) -> None:
    with pytest.raises(UsageError):
        store.open(f"../{ID}/x")


@pytest.mark.parametrize("offset", [-1, len(IMAGE) - 5])
def test_reading_outside_of_the_image_is_refused(store: ArenaStore, offset: int) -> None:
    with pytest.raises(IntegrityError, match="were wanted"):
        store.open(SHARD).read_at([memoryview(bytearray(10))], offset)


def test_an_arena_that_somebody_cuts_off_while_it_is_read_is_an_error_and_no_signal(
    store: ArenaStore, own_slot: Slot
) -> None:
    reader = store.open(SHARD)

    os.ftruncate(own_slot.descriptor, 50_000)

    with pytest.raises(IntegrityError, match="somebody cut it off"):
        reader.read_at([memoryview(bytearray(len(IMAGE)))], 0)


def test_a_snapshot_that_is_replaced_while_it_is_read_is_an_error(store: ArenaStore, own_slot: Slot) -> None:
    reader = store.open(SHARD)
    fill(own_slot)

    with pytest.raises(BlobMissingError, match="replaced"):
        reader.read_at([memoryview(bytearray(10))], 0)
    with pytest.raises(BlobMissingError, match="replaced"):
        store.open(SHARD)


def test_reading_from_a_closed_slot_is_our_error(own_slot: Slot) -> None:
    slot = Slot.attach(os.dup(own_slot.descriptor))
    reader = ArenaStore(slot).open(SHARD)
    slot.close()

    with pytest.raises(StorageError, match="closed"):
        reader.read_at([memoryview(bytearray(10))], 0)


def test_a_slot_without_content_is_no_store(own_slot: Slot) -> None:
    own_slot.begin()

    with pytest.raises(BlobMissingError, match="no complete snapshot"):
        ArenaStore(own_slot)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"x" * 5000, manifest()[:200], manifest().replace(b'"step":7', b'"step":8')]
)
def test_a_manifest_that_is_none_is_refused(own_slot: Slot, data: bytes) -> None:
    fill(own_slot, data)

    with pytest.raises(FormatError):
        ArenaStore(own_slot)
