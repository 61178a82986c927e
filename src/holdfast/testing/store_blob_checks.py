"""What every store does with blobs: one check for each behaviour."""

import threading
from functools import partial

from holdfast.core.errors import BlobExistsError, BlobMissingError, IntegrityError, StorageError, UsageError
from holdfast.storage.store import BlobInfo
from holdfast.testing.store_check import (
    LIMIT_BYTES,
    PATIENCE_S,
    OpenStore,
    StoreCheck,
    aligned,
    expect,
    pattern,
    raises,
    read_all,
    same,
    write,
)

__all__: list[str] = []


@StoreCheck
def a_published_blob_reads_back(open_store: OpenStore) -> None:
    store = open_store()

    store.publish("holdfast.json", b"one")
    store.publish("group/blob", b"")

    same(store.read("holdfast.json", LIMIT_BYTES), b"one")
    same(store.read("group/blob", LIMIT_BYTES), b"")


@StoreCheck
def what_was_published_is_there_for_the_next_process(open_store: OpenStore) -> None:
    store = open_store()

    store.publish("group/blob", b"kept")
    store.close()

    same(open_store().read("group/blob", LIMIT_BYTES), b"kept")


@StoreCheck
def publishing_a_taken_name_changes_nothing(open_store: OpenStore) -> None:
    store = open_store()
    store.publish("group/blob", b"first")

    raises(BlobExistsError, store.publish, "group/blob", b"second")

    same(store.read("group/blob", LIMIT_BYTES), b"first")
    same(store.list("group"), [BlobInfo("blob", is_group=False)])


@StoreCheck
def publishing_makes_no_group_where_that_is_not_wanted(open_store: OpenStore) -> None:
    store = open_store()
    store.publish("group/other", b"x")

    store.publish("group/blob", b"y", make_group=False)

    raises(BlobMissingError, lambda: store.publish("nowhere/blob", b"z", make_group=False))
    same(store.read("group/blob", LIMIT_BYTES), b"y")
    same(store.list(), [BlobInfo("group", is_group=True)])


@StoreCheck
def a_missing_blob_is_reported_as_missing(open_store: OpenStore) -> None:
    store = open_store()
    store.publish("group/other", b"x")

    for key in ("blob", "group/blob", "nowhere/blob"):
        raises(BlobMissingError, store.read, key, LIMIT_BYTES)
        raises(BlobMissingError, store.open, key)


@StoreCheck
def a_blob_above_the_limit_is_refused(open_store: OpenStore) -> None:
    store = open_store()
    store.publish("blob", b"12345")

    same(store.read("blob", 5), b"12345")
    raises(IntegrityError, store.read, "blob", 4)


@StoreCheck
def names_that_leave_the_run_are_refused(open_store: OpenStore) -> None:
    store = open_store()
    bad_keys = (
        "",
        "..",
        "../blob",
        "/blob",
        "a/b/c",
        "group/",
        "group/..",
        ".hidden",
        "group/.hidden",
        "-x",
        "a\nb",
        "é",
    )

    for key in bad_keys:
        raises(UsageError, store.publish, key, b"x")
        raises(UsageError, store.create, key, 1)
        raises(UsageError, partial(store.append, durable=False), key, b"x")
        raises(UsageError, store.read, key, LIMIT_BYTES)
        raises(UsageError, store.open, key)
        raises(UsageError, store.remove, key)
        raises(UsageError, store.hold, key)
    raises(UsageError, store.list, "..")
    raises(UsageError, store.remove_group, "..")
    raises(UsageError, store.list_heads, [".."], "blob", 1)

    same(store.list(), [])


@StoreCheck
def the_stores_own_lock_is_no_key(open_store: OpenStore) -> None:
    store = open_store()
    with store.exclusive(PATIENCE_S):
        pass

    raises(UsageError, store.publish, "lock", b"x")

    same(store.list(), [])


@StoreCheck
def a_listing_is_sorted_and_tells_groups_from_blobs(open_store: OpenStore) -> None:
    store = open_store()
    for key in ("b", "c/2", "c/10", "a/x"):
        store.publish(key, b"x")

    same(store.list(), [BlobInfo("a", is_group=True), BlobInfo("b", is_group=False), BlobInfo("c", is_group=True)])
    same([entry.name for entry in store.list("c")], ["10", "2"])
    same(store.list("nowhere"), [])


@StoreCheck
def heads_are_the_first_bytes_and_none_where_there_is_no_blob(open_store: OpenStore) -> None:
    store = open_store()
    store.publish("long/manifest", b"0123456789")
    store.publish("short/manifest", b"01")
    store.publish("empty/manifest", b"")
    store.publish("other/blob", b"x")

    heads = store.list_heads(["long", "short", "empty", "other", "nowhere", "long"], "manifest", 4)

    same(list(heads), [b"0123", b"01", b"", None, None, b"0123"])


@StoreCheck
def a_written_blob_has_exactly_its_size(open_store: OpenStore) -> None:
    store = open_store()
    sizes = (0, 1, 511, 4095, 4096, 4097, 3 * 4096, 3 * 4096 + 5, 1 << 20)

    for size in sizes:
        write(store.create(f"group/size-{size}", size), pattern(size))

    for size in sizes:
        same(read_all(store, f"group/size-{size}"), pattern(size))


@StoreCheck
def padding_after_the_size_is_cut_off(open_store: OpenStore) -> None:
    store = open_store()
    writer = store.create("group/blob", 5)

    writer.write_at(aligned(b"12345" + bytes(4091)), 0)
    writer.finish(5)

    same(read_all(store, "group/blob"), b"12345")


@StoreCheck
def blocks_may_come_in_any_order_from_many_threads(open_store: OpenStore) -> None:
    store = open_store()
    data = pattern(16 * 4096 + 100)
    writer = store.create("group/blob", len(data))

    offsets = list(range(0, len(data), 4096))
    threads = [
        threading.Thread(target=lambda at=at: writer.write_at(aligned(data[at : at + 4096]), at))
        for at in reversed(offsets)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.finish(len(data))

    same(read_all(store, "group/blob"), data)


@StoreCheck
def memory_that_is_not_aligned_is_written_and_read_too(open_store: OpenStore) -> None:
    store = open_store()
    data = pattern(300_000)
    writer = store.create("group/blob", len(data))

    writer.write_at(memoryview(bytearray(b"?" + data))[1:], 0)
    writer.finish(len(data))

    memory = memoryview(bytearray(len(data) + 1))[1:]
    reader = store.open("group/blob")
    reader.read_at([memory], 0)
    reader.close()
    same(bytes(memory), data)


@StoreCheck
def a_range_is_read_into_many_buffers(open_store: OpenStore) -> None:
    store = open_store()
    data = pattern(50_000)
    write(store.create("group/blob", len(data)), data)
    buffers = [memoryview(bytearray(size)) for size in (1, 4096, 0, 7, 20_000)]

    reader = store.open("group/blob")
    reader.read_at(buffers, 4096)
    size_bytes, _ = reader.size_bytes, reader.is_cached()
    reader.close()

    same(b"".join(bytes(buffer) for buffer in buffers), data[4096 : 4096 + 24_104])
    same(size_bytes, len(data))


@StoreCheck
def reading_past_the_end_is_an_integrity_error(open_store: OpenStore) -> None:
    store = open_store()
    store.publish("blob", b"12345")
    reader = store.open("blob")

    raises(IntegrityError, lambda: reader.read_at([memoryview(bytearray(2))], 4))

    reader.close()


@StoreCheck
def a_blob_that_lacks_blocks_cannot_be_finished(open_store: OpenStore) -> None:
    store = open_store()
    writer = store.create("group/blob", 8192)
    writer.write_at(aligned(bytes(4096)), 0)

    raises(StorageError, writer.finish, 8192)

    writer.abandon()


@StoreCheck
def a_taken_name_cannot_be_created(open_store: OpenStore) -> None:
    store = open_store()
    store.publish("group/published", b"first")
    begun = store.create("group/begun", 1)

    raises(BlobExistsError, store.create, "group/published", 1)
    raises(BlobExistsError, store.create, "group/begun", 1)
    raises(BlobExistsError, store.publish, "group/begun", b"x")

    begun.abandon()
    same(store.read("group/published", LIMIT_BYTES), b"first")


@StoreCheck
def an_abandoned_blob_is_gone(open_store: OpenStore) -> None:
    store = open_store()
    writer = store.create("group/blob", 4096)
    writer.write_at(aligned(bytes(4096)), 0)

    writer.abandon()
    writer.abandon()

    same(store.list("group"), [])
    raises(StorageError, writer.finish, 4096)


@StoreCheck
def a_finished_blob_cannot_be_abandoned_or_changed(open_store: OpenStore) -> None:
    store = open_store()
    writer = store.create("group/blob", 3)
    writer.write_at(aligned(b"abc"), 0)
    writer.finish(3)

    writer.abandon()
    raises(StorageError, lambda: writer.write_at(aligned(b"xyz"), 0))
    raises(StorageError, writer.finish, 3)

    same(store.read("group/blob", LIMIT_BYTES), b"abc")


@StoreCheck
def lines_are_appended_each_with_one_newline(open_store: OpenStore) -> None:
    store = open_store()

    store.append("journal", b"one", durable=False)
    store.append("journal", b"two\n", durable=True)
    open_store().append("journal", b"three", durable=True)

    same(store.read_tail("journal", LIMIT_BYTES), b"one\ntwo\nthree\n")


@StoreCheck
def a_torn_last_line_is_ended_before_the_next(open_store: OpenStore) -> None:
    store = open_store()
    store.publish("journal", b"whole\nto")

    store.append("journal", b"next", durable=True)

    same(store.read_tail("journal", LIMIT_BYTES), b"whole\nto\nnext\n")


@StoreCheck
def a_tail_is_the_last_bytes_and_empty_where_there_is_no_blob(open_store: OpenStore) -> None:
    store = open_store()
    store.publish("journal", b"0123456789")

    same(store.read_tail("journal", 3), b"789")
    same(store.read_tail("journal", 0), b"")
    same(store.read_tail("nothing", 3), b"")
    same(store.read_tail("nowhere/nothing", 3), b"")


@StoreCheck
def a_removed_blob_is_gone_and_removing_it_again_is_fine(open_store: OpenStore) -> None:
    store = open_store()
    store.publish("group/blob", b"x")
    store.publish("group/other", b"y")

    for key in ("group/blob", "group/blob", "nowhere/blob", "nothing"):
        store.remove(key)

    same([entry.name for entry in store.list("group")], ["other"])


@StoreCheck
def a_removed_group_is_gone_with_all_it_holds(open_store: OpenStore) -> None:
    store = open_store()
    store.publish("group/blob", b"x")
    store.create("group/begun", 4096).write_at(aligned(bytes(4096)), 0)
    store.publish("kept/blob", b"y")

    store.remove_group("group")
    store.remove_group("group")

    same(store.list(), [BlobInfo("kept", is_group=True)])
    same(store.list("group"), [])


@StoreCheck
def a_group_is_neither_read_nor_removed_as_a_blob(open_store: OpenStore) -> None:
    store = open_store()
    store.publish("group/blob", b"x")

    raises(IntegrityError, store.read, "group", LIMIT_BYTES)
    raises(IntegrityError, store.open, "group")
    raises(IntegrityError, store.remove, "group")
    raises(BlobExistsError, store.publish, "group", b"y")

    same(store.read("group/blob", LIMIT_BYTES), b"x")


@StoreCheck
def a_blob_is_not_used_as_a_group(open_store: OpenStore) -> None:
    store = open_store()
    store.publish("blob", b"x")

    raises(IntegrityError, store.publish, "blob/inner", b"y")

    same(list(store.list_heads(["blob"], "inner", 1)), [None])
    same(store.read("blob", LIMIT_BYTES), b"x")


@StoreCheck
def an_open_reader_survives_the_removal_of_its_blob(open_store: OpenStore) -> None:
    store = open_store()
    store.publish("group/blob", b"12345")
    reader = store.open("group/blob")

    store.remove_group("group")

    memory = memoryview(bytearray(5))
    reader.read_at([memory], 0)
    reader.close()
    same(bytes(memory), b"12345")


@StoreCheck
def space_is_positive_and_within_the_total(open_store: OpenStore) -> None:
    space = open_store().space()

    expect(0 < space.free_bytes <= space.total_bytes)
    expect(space.free_inodes > 0)


@StoreCheck
def a_store_says_where_it_is_and_closes_twice(open_store: OpenStore) -> None:
    store = open_store()

    expect(store.location)
    store.close()
    store.close()
