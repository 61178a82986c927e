"""Which directories are accepted as a run."""

import os
import stat
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.core.errors import RunError, UsageError
from holdfast.storage.files import Files
from holdfast.storage.posix import PosixStore
from holdfast.testing import Fault, FaultyFiles, MemoryFiles, OpKind, RecordingFiles
from tests.descriptors import open_descriptors

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    old = os.umask(mask)
    try:
        yield
    finally:
        os.umask(old)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_missing_directory_is_refused_and_not_made(run: Path) -> None:
    with pytest.raises(RunError, match="no such directory") as caught:
        PosixStore(run)

    assert caught.value.hint
    assert not run.exists()


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o277, 0o777])
def test_directories_and_files_are_private_whatever_the_umask(run: Path, mask: int) -> None:
    path = run / "deep" / "er"

    with _umask(mask):
        store = PosixStore(path, create=True)
        store.publish("group/published", b"x")
        writer = store.create("group/written", 1)
        writer.write_at(memoryview(b"x"), 0)
        writer.finish(1)
        store.append("journal", b"x", durable=True)
        with store.exclusive(1.0):
            pass
        store.close()

    assert [_mode(place) for place in (run, run / "deep", path, path / "group")] == [0o700] * 4
    assert [_mode(path / name) for name in ("group/published", "group/written", "journal", "lock")] == [0o600] * 4


def test_each_new_directory_is_durable_before_the_next_is_made() -> None:
    files = RecordingFiles(MemoryFiles.from_tree({"home": None}))

    PosixStore("/home/a/b", create=True, files=files)

    kinds = [(operation.kind, operation.name) for operation in files.operations]
    made_a, made_b = kinds.index((OpKind.MAKE_DIR, "a")), kinds.index((OpKind.MAKE_DIR, "b"))
    assert files.operations[made_a + 1][:2] == (OpKind.SYNC_DIR, files.operations[made_a].inode)
    assert files.operations[made_b + 1][:2] == (OpKind.SYNC_DIR, files.operations[made_b].inode)


def test_a_directory_that_was_made_by_hand_is_made_durable_too() -> None:
    files = RecordingFiles(MemoryFiles.from_tree({"home/run": None}))

    PosixStore("/home/run", create=True, files=files)

    home = files.inner.info(files.inner.open_root("/home")).inode
    assert [operation[:2] for operation in files.operations] == [(OpKind.SYNC_DIR, home)]


def test_a_failed_sync_of_the_parent_is_an_error(run: Path) -> None:
    probe = FaultyFiles()
    PosixStore(run, create=True, files=probe).close()
    sync = next(call for call in probe.calls if call.method == "sync_dir")

    with pytest.raises(RunError, match="EIO"):
        PosixStore(run.with_name("other"), create=True, files=FaultyFiles(plan=[Fault(at=sync.number, error=5)]))


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("path", ["file", "file/below"])
def test_a_file_in_the_place_of_a_directory_is_refused(tmp_path: Path, path: str, create: bool) -> None:
    (tmp_path / "file").write_bytes(b"mine")

    with pytest.raises(RunError, match="not a directory"):
        PosixStore(tmp_path / path, create=create)

    assert (tmp_path / "file").read_bytes() == b"mine"


@pytest.mark.parametrize("mode", [0o770, 0o720, 0o702, 0o777, 0o1777])
def test_a_directory_that_others_can_write_is_refused(run: Path, mode: int) -> None:
    run.mkdir()
    run.chmod(mode)

    with pytest.raises(RunError, match="others may write") as caught:
        PosixStore(run, create=True)

    assert "chmod go-w" in caught.value.hint


def test_reading_is_refused_only_where_everybody_can_write(run: Path) -> None:
    run.mkdir()
    run.chmod(0o775)
    PosixStore(run, readonly=True).close()

    run.chmod(0o777)

    with pytest.raises(RunError, match="others may write"):
        PosixStore(run, readonly=True)


@needs_root
def test_a_foreign_run_can_be_read_but_not_written(run: Path) -> None:
    own = PosixStore(run, create=True)
    own.publish("blob", b"theirs")
    own.close()
    os.chown(run, 12345, 12345)

    with pytest.raises(RunError, match="belongs to user 12345"):
        PosixStore(run, create=True)

    assert PosixStore(run, readonly=True).read("blob", 100) == b"theirs"


@needs_root
def test_a_read_only_mount_is_refused_for_writing_only(tiny_disk: Path) -> None:
    PosixStore(tiny_disk / "run", create=True).close()
    subprocess.run(["mount", "-o", "remount,ro", tiny_disk], check=True)

    with pytest.raises(RunError, match="cannot be written"):
        PosixStore(tiny_disk / "run")

    assert PosixStore(tiny_disk / "run", readonly=True).list() == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_write_permission_is_refused(run: Path) -> None:
    run.mkdir(mode=0o500)

    with pytest.raises(RunError, match="cannot be written"):
        PosixStore(run)


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="not a path"):
        PosixStore(path, create=True)


def test_a_working_directory_that_is_gone_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    with pytest.raises(RunError):
        PosixStore("run", create=True)


def test_a_store_for_reading_changes_nothing(run: Path) -> None:
    PosixStore(run, create=True).publish("group/blob", b"x")
    store = PosixStore(run, readonly=True)
    changes = [
        lambda: store.create("group/new", 1),
        lambda: store.publish("new", b"y"),
        lambda: store.append("journal", b"y", durable=True),
        lambda: store.remove("group/blob"),
        lambda: store.remove_group("group"),
        lambda: store.hold("group/blob"),
        lambda: store.exclusive(1.0).__enter__(),
    ]

    for change in changes:
        with pytest.raises(UsageError, match="for reading only"):
            change()

    assert sorted(path.name for path in run.rglob("*")) == ["blob", "group"]


def test_a_closed_store_says_so(store: PosixStore) -> None:
    store.close()

    for use in (store.list, store.space, lambda: store.publish("x", b""), lambda: store.exclusive(0.0)):
        with pytest.raises(UsageError, match="closed"):
            use()


class HangingFiles(Files):
    """A file system that does not answer to appending for a while."""

    def __init__(self) -> None:
        self.hangs = threading.Event()
        self.answers = threading.Event()

    def open_append(self, parent: int, name: str, mode: int) -> int:
        self.hangs.set()
        self.answers.wait()
        return super().open_append(parent, name, mode)


def test_an_operation_that_hangs_while_the_store_is_closed_does_not_end_up_in_files_of_others(run: Path) -> None:
    before = open_descriptors()
    files = HangingFiles()
    store = PosixStore(run, create=True, files=files)
    thread = threading.Thread(target=store.append, args=("journal", b"late"), kwargs={"durable": True})
    thread.start()
    files.hangs.wait()

    store.close()
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
    files.answers.set()
    thread.join()

    for descriptor in others:
        os.close(descriptor)
    assert (run / "journal").read_bytes() == b"late\n"
    assert open_descriptors() == before
