"""What every store does with the run's lock and with held blobs: one check for each behaviour."""

import threading
from collections.abc import Callable

from holdfast.core.errors import BlobMissingError, RunBusyError, StorageError
from holdfast.storage.store import Store
from holdfast.testing.store_check import LIMIT_BYTES, PATIENCE_S, OpenStore, StoreCheck, expect, raises, read_all, same

__all__: list[str] = []


@StoreCheck
def the_lock_excludes_everybody_else(open_store: OpenStore) -> None:
    store, other = open_store(), open_store()
    waited: list[str] = []

    with store.exclusive(PATIENCE_S):
        raises(RunBusyError, lambda: _lock_briefly(other, 0.0, lambda: None))
        raises(RunBusyError, lambda: _lock_briefly(store, 0.0, lambda: None))
        raises(RunBusyError, lambda: _lock_briefly(other, 0.01, lambda: waited.append("once")))

    same(waited, ["once"])
    _lock_briefly(other, 0.0, lambda: None)


@StoreCheck
def the_lock_is_given_back_after_an_error(open_store: OpenStore) -> None:
    store, other = open_store(), open_store()

    def fail() -> None:
        with store.exclusive(PATIENCE_S):
            raise StorageError("on purpose")

    raises(StorageError, fail)

    _lock_briefly(other, 0.0, lambda: None)


@StoreCheck
def the_lock_lets_one_thread_in_at_a_time(open_store: OpenStore) -> None:
    stores = [open_store() for _ in range(4)]
    inside: list[int] = []
    most: list[int] = []

    def work(store: Store) -> None:
        for _ in range(5):
            with store.exclusive(PATIENCE_S):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    same((len(most), max(most)), (20, 1))


@StoreCheck
def closing_one_store_leaves_the_lock_of_another(open_store: OpenStore) -> None:
    store, other, third = open_store(), open_store(), open_store()
    _lock_briefly(other, 0.0, lambda: None)

    with store.exclusive(PATIENCE_S):
        other.close()

        raises(RunBusyError, lambda: _lock_briefly(third, 0.0, lambda: None))


@StoreCheck
def a_blob_is_held_by_one_until_it_is_let_go(open_store: OpenStore) -> None:
    store, other = open_store(), open_store()
    store.publish("attempts/1", b"x")
    before = store.is_held("attempts/1")

    first, again, second = store.hold("attempts/1"), store.hold("attempts/1"), other.hold("attempts/1")
    held = (store.is_held("attempts/1"), other.is_held("attempts/1"))
    other.let_go("attempts/1")
    still_held = other.is_held("attempts/1")
    store.let_go("attempts/1")

    same((before, first, again, second), (False, True, False, False))
    same((held, still_held, other.is_held("attempts/1")), ((True, True), True, False))
    expect(other.hold("attempts/1"))


@StoreCheck
def a_held_blob_is_read_and_stays_held(open_store: OpenStore) -> None:
    store, other = open_store(), open_store()
    store.publish("attempts/1", b"me")
    store.hold("attempts/1")

    for each in (store, other):
        same(each.read("attempts/1", LIMIT_BYTES), b"me")
        same(list(each.list_heads(["attempts"], "1", 2)), [b"me"])
        same(read_all(each, "attempts/1"), b"me")

    same((store.is_held("attempts/1"), other.is_held("attempts/1")), (True, True))


@StoreCheck
def closing_the_store_lets_go(open_store: OpenStore) -> None:
    store, other = open_store(), open_store()
    store.publish("attempts/1", b"x")
    store.hold("attempts/1")

    store.close()

    same((other.is_held("attempts/1"), other.hold("attempts/1")), (False, True))


@StoreCheck
def what_does_not_exist_is_not_held(open_store: OpenStore) -> None:
    store = open_store()

    expect(not store.is_held("attempts/1"))
    store.let_go("attempts/1")
    raises(BlobMissingError, lambda: store.hold("attempts/1"))


def _lock_briefly(store: Store, deadline_s: float, on_wait: Callable[[], None]) -> None:
    with store.exclusive(deadline_s, on_wait):
        pass
