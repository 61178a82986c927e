"""What is not an ordinary file is never followed, read or waited for; what is not ours is left alone."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.core.errors import HoldfastError, IntegrityError
from holdfast.storage.posix import PosixStore
from holdfast.storage.store import BlobInfo
from holdfast.testing import FakeClock, Fault, FaultyFiles

_USES: dict[str, Callable[[PosixStore, str], object]] = {
    "read": lambda store, key: store.read(key, 100),
    "open": lambda store, key: store.open(key),
    "append": lambda store, key: store.append(key, b"x", durable=True),
    "read_tail": lambda store, key: store.read_tail(key, 100),
    "hold": lambda store, key: store.hold(key),
    "is_held": lambda store, key: store.is_held(key),
}


def _link(path: Path) -> None:
    (path.parent / "target").write_bytes(b"secret\n")
    path.symlink_to("target")


def _device(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make devices")
    os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero: it never ends


_THINGS: dict[str, Callable[[Path], object]] = {
    "link": _link,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "fifo": os.mkfifo,
    "directory": os.mkdir,
    "device": _device,
}


@pytest.mark.parametrize("use", _USES.values(), ids=_USES)
@pytest.mark.parametrize("put", _THINGS.values(), ids=_THINGS)
def test_what_is_no_ordinary_file_is_refused_by_name(
    run: Path, store: PosixStore, put: Callable[[Path], object], use: Callable[[PosixStore, str], object]
) -> None:
    store.publish("group/other", b"x")
    put(run / "group" / "blob")

    with pytest.raises(IntegrityError, match="run/group/blob"):
        use(store, "group/blob")


@pytest.mark.parametrize("put", _THINGS.values(), ids=_THINGS)
def test_heads_leave_out_what_is_no_ordinary_file(run: Path, store: PosixStore, put: Callable[[Path], object]) -> None:
    store.publish("good/manifest", b"x")
    store.publish("bad/other", b"x")
    put(run / "bad" / "manifest")

    assert list(store.list_heads(["bad", "good"], "manifest", 10)) == [None, b"x"]


def test_a_link_in_the_place_of_a_group_is_not_followed(run: Path, store: PosixStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "blob").write_bytes(b"mine")
    (run / "group").symlink_to(outside)

    for use in (
        lambda: store.read("group/blob", 100),
        lambda: store.publish("group/new", b"x"),
        lambda: store.create("group/new", 1),
        lambda: store.remove("group/blob"),
        lambda: store.remove_group("group"),
        lambda: store.list("group"),
    ):
        with pytest.raises(IntegrityError, match="run/group"):
            use()

    assert list(store.list_heads(["group"], "blob", 10)) == [None]
    assert [path.name for path in outside.iterdir()] == ["blob"]


@pytest.mark.parametrize("put", _THINGS.values(), ids=_THINGS)
def test_what_is_no_ordinary_file_is_not_used_as_the_lock(
    run: Path, store: PosixStore, put: Callable[[Path], object]
) -> None:
    put(run / "lock")

    with pytest.raises(IntegrityError, match="run/lock"), store.exclusive(1.0):
        pass


def test_temporaries_are_not_listed_and_go_with_their_group(run: Path, store: PosixStore) -> None:
    store.publish("group/blob", b"x")
    (run / "group" / ".blob.1-2-3.tmp").write_bytes(b"half")
    (run / "group" / "link").symlink_to("/etc/passwd")
    (run / ".holdfast.json.1-2-3.tmp").write_bytes(b"half")

    listed = (store.list(), [entry.name for entry in store.list("group")])
    store.remove_group("group")

    assert listed == ([BlobInfo("group", is_group=True)], ["blob", "link"])
    assert not (run / "group").exists()


def test_files_of_others_are_listed_under_their_own_names(run: Path, store: PosixStore) -> None:
    (run / "my notes (1).txt").write_bytes(b"x")

    assert store.list() == [BlobInfo("my notes (1).txt", is_group=False)]


def test_a_group_that_holds_a_directory_is_left_as_it_is(run: Path, store: PosixStore) -> None:
    store.publish("group/blob", b"x")
    (run / "group" / "mine").mkdir()

    with pytest.raises(IntegrityError, match="'mine'"):
        store.remove_group("group")

    assert store.read("group/blob", 100) == b"x"


def test_files_that_nfs_keeps_for_a_reader_are_left_quietly(run: Path, store: PosixStore) -> None:
    store.publish("group/blob", b"x")
    (run / "group" / ".nfs000000000000a1b2").write_bytes(b"x")

    store.remove_group("group")

    assert [path.name for path in (run / "group").iterdir()] == [".nfs000000000000a1b2"]
    assert store.list("group") == []


def test_a_removal_that_failed_at_any_call_can_be_repeated(run: Path) -> None:
    def attempt(files: FaultyFiles, name: str) -> PosixStore:
        store = PosixStore(run / name, create=True, clock=FakeClock(), files=files)
        store.publish("group/one", b"x")
        store.publish("group/two", b"x")
        files.calls.clear()
        return store

    probe = FaultyFiles()
    attempt(probe, "probe").remove_group("group")

    for number, method in probe.calls:
        files = FaultyFiles()
        store = attempt(files, f"run-{number}")
        files.plan.append(Fault(at=number, error=5))
        try:
            store.remove_group("group")
            failed = False
        except HoldfastError:
            failed = True
        assert failed == (method != "close")

        store.remove_group("group")

        assert store.list() == []
        store.close()
