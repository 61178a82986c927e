"""What the memory store has beyond the protocol: a capacity, and a second handle."""

import pytest

from holdfast.core.errors import NoSpaceError, StorageError
from holdfast.storage.memory import MemoryStore


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    store = MemoryStore(capacity_bytes=10)
    store.publish("first", b"123456")

    with pytest.raises(NoSpaceError, match="5 bytes are wanted, 4 are left"):
        store.publish("second", b"12345")

    assert [entry.name for entry in store.list()] == ["first"]
    assert store.space().free_bytes == 4


def test_a_blob_that_ran_out_of_space_can_only_be_abandoned() -> None:
    store = MemoryStore(capacity_bytes=10)
    writer = store.create("blob", 11)

    with pytest.raises(NoSpaceError):
        writer.write_at(memoryview(bytes(11)), 0)
    with pytest.raises(StorageError, match="failed before"):
        writer.finish(0)
    writer.abandon()

    assert store.space().free_bytes == 10


def test_removing_makes_room() -> None:
    store = MemoryStore(capacity_bytes=10)
    store.publish("group/blob", bytes(10))

    store.remove("group/blob")

    store.publish("group/next", bytes(10))
    assert store.read("group/next", 10) == bytes(10)


def test_another_handle_sees_the_same_blobs_and_has_holds_of_its_own() -> None:
    store = MemoryStore()
    other = store.another()
    store.publish("attempts/1", b"x")
    store.hold("attempts/1")

    other.close()

    assert other.read("attempts/1", 10) == b"x"
    assert other.is_held("attempts/1")
