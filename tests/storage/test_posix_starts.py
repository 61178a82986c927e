"""The starts of many blobs: read at once where the native part is built, else one by one, with the same answers."""

import errno
import os
import resource
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from holdfast import native
from holdfast.core.errors import StorageError, UsageError
from holdfast.storage import posix_locks
from holdfast.storage.files import Files, Start
from holdfast.storage.posix import PosixStore
from tests.descriptors import open_descriptors


@pytest.fixture(params=["at once", "one by one"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    # Blobs that other tests hold still would be a reason to read one by one.
    monkeypatch.setattr(posix_locks, "_newest", posix_locks.Registry())
    if request.param == "one by one":
        monkeypatch.setitem(native._loaded, "_starts", None)
    elif native._part("_starts") is None and "CI" not in os.environ:
        pytest.skip("the native part is not built: no compiler")


def _device(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make devices")
    os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero: it never ends


_THINGS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda _: None,
    "link to a file": lambda path: path.symlink_to(path.with_name("other")),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "directory": lambda path: path.mkdir(),
    "FIFO": lambda path: os.mkfifo(path),
    "device": _device,
}


@pytest.mark.parametrize("put", _THINGS.values(), ids=_THINGS)
def test_what_is_no_ordinary_file_has_no_start(run: Path, store: PosixStore, put: Callable[[Path], object]) -> None:
    store.publish("bad/other", b"x")
    store.publish("good/blob", b"0123456789")
    put(run / "bad" / "blob")

    assert list(store.list_heads(["good", "bad", "good"], "blob", 4)) == [b"0123", None, b"0123"]


@pytest.mark.parametrize("target", ["group", "../outside", "/"])
def test_a_group_that_is_a_link_is_not_followed_wherever_it_leads(
    run: Path, store: PosixStore, tmp_path: Path, target: str
) -> None:
    store.publish("group/blob", b"x")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "blob").write_bytes(b"x")
    (run / "link").symlink_to(target)

    assert list(store.list_heads(["link", "group"], "blob", 4)) == [None, b"x"]


@pytest.mark.parametrize("name", ["..", ".", "a/b", "", "group/..", "a\0b"])
def test_a_name_that_leads_elsewhere_is_refused(store: PosixStore, name: str) -> None:
    store.publish("group/blob", b"x")

    for groups, blob in ((["group", name], "blob"), (["group"], name)):
        with pytest.raises(UsageError):
            store.list_heads(groups, blob, 4)


def test_as_many_bytes_come_as_there_are(store: PosixStore) -> None:
    sizes = (0, 1, 999, 1000, 1001, 70_000)
    for size in sizes:
        store.publish(f"group{size}/blob", bytes(size))

    found = store.list_heads([f"group{size}" for size in sizes], "blob", 1000)

    assert [len(start or b"") for start in found] == [min(size, 1000) for size in sizes]


def test_hundreds_are_read_with_few_descriptors_and_none_stays_open(run: Path) -> None:
    class Watching(Files):
        most = 0

        def open_starts(self, root: int, groups: Sequence[str], name: str, size_bytes: int) -> list[Start] | None:
            found = Files().open_starts(root, groups, name, size_bytes)
            self.most = max(self.most, len(open_descriptors()))
            return found

    files = Watching()
    store = PosixStore(run, create=True, files=files)
    for number in range(300):
        store.publish(f"group{number}/blob", b"%d" % number)
    before = len(open_descriptors())

    found = store.list_heads([f"group{number}" for number in range(300)], "blob", 10)

    assert list(found) == [b"%d" % number for number in range(300)]
    assert files.most <= before + 40
    assert len(open_descriptors()) == before


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.EMFILE, errno.ENOSYS, errno.ESTALE, errno.EXDEV])
def test_what_fails_at_once_is_tried_alone(run: Path, store: PosixStore, number: int) -> None:
    class Failing(Files):
        def open_starts(self, root: int, groups: Sequence[str], name: str, size_bytes: int) -> list[Start] | None:
            found = Files().open_starts(root, groups, name, size_bytes)
            return found and [number, *found[1:]]

    for group in ("one", "two"):
        store.publish(f"{group}/blob", group.encode())

    assert list(PosixStore(run, files=Failing()).list_heads(["one", "two"], "blob", 9)) == [b"one", b"two"]


def test_a_process_without_descriptors_left_takes_nothing_for_absent(store: PosixStore) -> None:
    store.publish("group/blob", b"x")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = os.dup(0)

    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, limits[1]))
    try:
        with pytest.raises(StorageError, match="EMFILE"):
            store.list_heads(["group"], "blob", 9)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        os.close(highest)


def test_what_fails_alone_too_is_told(run: Path, store: PosixStore) -> None:
    class Failing(Files):
        def open_starts(self, root: int, groups: Sequence[str], name: str, size_bytes: int) -> list[Start] | None:
            found = Files().open_starts(root, groups, name, size_bytes)
            return found and [(*found[0][:3], errno.EIO)]

        def read_at(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
            raise OSError(errno.EIO, "bad sector")

    store.publish("group/blob", b"x")
    before = len(open_descriptors())

    with pytest.raises(StorageError, match="EIO"):
        PosixStore(run, files=Failing()).list_heads(["group"], "blob", 9)

    assert len(open_descriptors()) <= before + 1  # that of the run
