"""Writing: complete, durable, in order, or refused."""

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.core.errors import HoldfastError, NoSpaceError, StorageError
from holdfast.storage.files import Files
from holdfast.storage.posix import PosixStore
from holdfast.testing import FakeClock, Fault, FaultyFiles, OpKind, RecordingFiles, When
from holdfast.testing.store_check import aligned, pattern

_DATA = pattern(3 * 4096 + 1234)


def _open(run: Path, files: Files, *, direct: bool = True) -> PosixStore:
    return PosixStore(run, create=True, files=files, clock=FakeClock(), direct=direct)


def _save(store: PosixStore, name: str = "blob") -> None:
    writer = store.create(f"group/{name}", len(_DATA))
    try:
        writer.write_at(aligned(_DATA[:8192]), 0)
        writer.write_at(aligned(_DATA[8192:]), 8192)
        writer.finish(len(_DATA))
    except HoldfastError:
        writer.abandon()
        raise


def _publish(store: PosixStore) -> None:
    store.publish("group/blob", _DATA)


def _append(store: PosixStore) -> None:
    store.append("journal", b"line", durable=True)


def _numbers(run: Path, use: Callable[[PosixStore], None], method: str) -> list[int]:
    """The numbers of the calls of that method when nothing fails, counted from the opened store on."""
    files = FaultyFiles()
    store = _open(run / "probe", files)
    files.calls.clear()
    use(store)
    numbers = [number for number, called in files.calls if called == method]
    store.close()
    return numbers


def _with_fault(run: Path, fault: Fault) -> PosixStore:
    files = FaultyFiles()
    store = _open(run / f"run-{fault.at}", files)
    files.calls.clear()
    files.plan.append(fault)
    return store


def _leftovers(store: PosixStore) -> list[str]:
    return sorted(path.name for path in Path(store.location).rglob("*") if path.is_file())


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("use", [_save, _publish])
def test_short_writes_are_continued(run: Path, use: Callable[[PosixStore], None], direct: bool) -> None:
    store = _open(run, FaultyFiles(plan=[Fault(at=0, short=True, lasting=True, methods={"write_at"})]), direct=direct)

    use(store)

    assert (run / "group" / "blob").read_bytes() == _DATA


@pytest.mark.parametrize("use", [_save, _publish])
def test_a_short_or_interrupted_write_at_any_call_changes_nothing(run: Path, use: Callable[[PosixStore], None]) -> None:
    numbers = _numbers(run, use, "write_at")

    for number in numbers:
        for fault in (Fault(at=number, short=True), Fault(at=number, error=errno.EINTR)):
            store = _with_fault(run / str(fault.error), fault)
            use(store)
            assert store.read("group/blob", 1 << 20) == _DATA
            store.close()

    assert numbers


def test_a_line_that_is_taken_in_parts_is_whole(run: Path) -> None:
    store = _open(run, FaultyFiles(plan=[Fault(at=0, short=True, lasting=True, methods={"append"})]))

    store.append("journal", b"a line of some length", durable=True)

    assert store.read_tail("journal", 100) == b"a line of some length\n"


def test_interruptions_without_end_are_an_error(run: Path) -> None:
    store = _open(run, FaultyFiles(plan=[Fault(at=0, error=errno.EINTR, lasting=True, methods={"write_at"})]))

    with pytest.raises(StorageError, match="EINTR"):
        _save(store)


@pytest.mark.parametrize("use", [_save, _publish, _append])
def test_a_write_without_progress_is_an_error(run: Path, use: Callable[[PosixStore], None]) -> None:
    class Stuck(Files):
        def write_at(self, descriptor: int, data: memoryview, offset: int) -> int:
            return 0

        def append(self, descriptor: int, data: bytes) -> int:
            return 0

    with pytest.raises(StorageError, match="took 0 bytes"):
        use(_open(run, Stuck()))


class _Refusing(FaultyFiles):
    """A file system that does not do direct I/O, and says so at open or at the first write."""

    def __init__(self, number: int, *, at_open: bool) -> None:
        super().__init__()
        self._number = number
        self._at_open = at_open
        self._direct: set[int] = set()

    def open_update(self, parent: int, name: str, *, direct: bool = False) -> int:
        if direct and self._at_open:
            raise OSError(self._number, "no direct I/O")
        descriptor = super().open_update(parent, name)
        self._direct.add(descriptor)
        return descriptor

    def write_at(self, descriptor: int, data: memoryview, offset: int) -> int:
        if descriptor in self._direct:
            raise OSError(self._number, "no direct I/O")
        return super().write_at(descriptor, data, offset)


@pytest.mark.parametrize("at_open", [True, False])
@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_refuses_direct_io_is_written_through_the_page_cache(
    run: Path, number: int, at_open: bool
) -> None:
    store = _open(run, _Refusing(number, at_open=at_open))

    _save(store)

    assert (run / "group" / "blob").read_bytes() == _DATA


def test_whole_pages_go_past_the_page_cache_and_the_rest_through_it(run: Path) -> None:
    class Watching(Files):
        def __init__(self) -> None:
            self.direct: set[int] = set()
            self.written: list[tuple[bool, int]] = []

        def open_update(self, parent: int, name: str, *, direct: bool = False) -> int:
            descriptor = super().open_update(parent, name, direct=direct)
            self.direct |= {descriptor} if direct else set()
            return descriptor

        def write_at(self, descriptor: int, data: memoryview, offset: int) -> int:
            self.written.append((descriptor in self.direct, len(data)))
            return super().write_at(descriptor, data, offset)

    files = Watching()
    _save(_open(run, files))

    assert files.written == [(True, 8192), (True, 4096), (False, 1234)]


def _kinds(files: RecordingFiles) -> list[tuple[str, str]]:
    names = {files.inner.info(files.inner.open_root(".")).inode: "."}
    names |= {operation.child: operation.name for operation in files.operations if operation.child}
    return [(operation.kind, operation.name or names.get(operation.inode, "run")) for operation in files.operations]


def test_a_blob_is_durable_before_its_name_and_its_name_before_it_counts(run: Path) -> None:
    files = RecordingFiles(Files())
    store = _open(run, files)
    files.operations.clear()

    _save(store)

    assert _kinds(files) == [
        (OpKind.MAKE_DIR, "group"),
        (OpKind.CREATE, "blob"),
        *[(OpKind.WRITE, "blob")] * 3,
        (OpKind.SYNC, "blob"),
        (OpKind.SYNC_DIR, "group"),
    ]


def test_a_published_blob_appears_when_it_is_durable_and_counts_when_its_group_is(run: Path) -> None:
    files = RecordingFiles(Files())
    store = _open(run, files)
    files.operations.clear()

    _publish(store)

    kinds = [kind for kind, _ in _kinds(files)]
    assert kinds == [
        OpKind.MAKE_DIR,
        OpKind.CREATE,
        OpKind.WRITE,
        OpKind.SYNC,
        OpKind.RENAME,
        OpKind.SYNC_DIR,
        OpKind.SYNC_DIR,
    ]
    assert files.operations[4].new_name == "blob"
    assert [name for _, name in _kinds(files)[-2:]] == ["group", "run"]


def test_a_durable_line_is_durable_under_its_name_even_after_one_that_was_not(run: Path) -> None:
    files = RecordingFiles(Files())
    store = _open(run, files)
    store.append("journal", b"first", durable=False)
    files.operations.clear()

    store.append("journal", b"second", durable=True)

    assert [operation.kind for operation in files.operations] == [OpKind.WRITE, OpKind.SYNC, OpKind.SYNC_DIR]


@pytest.mark.parametrize("use", [_save, _publish])
@pytest.mark.parametrize("method", ["write_at", "sync", "close", "sync_dir", "rename"])
def test_an_error_of_any_writing_call_is_reported_and_not_retried(
    run: Path, use: Callable[[PosixStore], None], method: str
) -> None:
    # The last close is of the directory: it was only read, and a failure there loses nothing.
    for number in _numbers(run, use, method)[: -1 if method == "close" else None]:
        files = FaultyFiles()
        store = _open(run / f"run-{number}", files)
        files.calls.clear()
        files.plan.append(Fault(at=number, error=errno.EIO))

        with pytest.raises(StorageError, match="EIO"):
            use(store)

        after = [called for at, called in files.calls if at > number]
        assert method in ("close", "sync_dir") or method not in after
        assert "rename" not in after
        store.close()


def test_a_failed_fsync_is_final_for_the_file(run: Path) -> None:
    files = FaultyFiles(plan=[])
    store = _open(run, files)
    writer = store.create("group/blob", 4096)
    writer.write_at(aligned(bytes(4096)), 0)
    files.plan.append(Fault(at=len(files.calls) + 1, error=errno.EIO, methods={"sync"}))

    with pytest.raises(StorageError, match="EIO"):
        writer.finish(4096)
    with pytest.raises(StorageError, match="failed before"):
        writer.finish(4096)
    with pytest.raises(StorageError, match="failed before"):
        writer.write_at(aligned(bytes(4096)), 0)
    writer.abandon()

    assert [method for _, method in files.calls].count("sync") == 1
    assert store.list("group") == []


@pytest.mark.parametrize("use", [_save, _publish])
@pytest.mark.parametrize("when", [When.BEFORE, When.MIDDLE, When.AFTER])
def test_whichever_call_fails_the_blob_is_whole_or_absent_and_nothing_else_is_left(
    run: Path, use: Callable[[PosixStore], None], when: str
) -> None:
    probe = FaultyFiles()
    store = _open(run / "probe", probe)
    probe.calls.clear()
    use(store)
    store.close()

    for number, method in probe.calls:
        store = _with_fault(run / when, Fault(at=number, error=errno.EIO, when=when))
        try:
            use(store)
            failed = False
        except HoldfastError:
            failed = True

        left = _leftovers(store)
        if method == "create" and when == When.AFTER:
            assert failed  # it was made, we were told that it was not: an empty file stays
        elif left:
            assert left == ["blob"]
            assert (Path(store.location) / "group" / "blob").read_bytes() == _DATA
            assert not failed or method in ("rename", "sync_dir")
        else:
            assert failed
        store.close()


def test_a_full_disk_says_how_much_is_left(tiny_disk: Path) -> None:
    store = PosixStore(tiny_disk / "run", create=True)
    writer = store.create("group/blob", 1 << 20)

    with pytest.raises(NoSpaceError, match="no space left") as caught:
        writer.write_at(aligned(bytes(1 << 20)), 0)
    writer.abandon()

    assert caught.value.errno == errno.ENOSPC
    assert "holdfast prune" in caught.value.hint
    store.publish("group/after", b"there is room again")


def test_a_disk_without_inodes_says_that(tiny_disk: Path) -> None:
    store = PosixStore(tiny_disk / "run", create=True)

    with pytest.raises(NoSpaceError, match="no inodes left"):
        for number in range(20):
            store.publish(f"blob-{number}", b"")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
def test_a_mount_that_turns_read_only_is_an_error_with_a_hint(tiny_disk: Path) -> None:
    store = PosixStore(tiny_disk / "run", create=True)
    subprocess.run(["mount", "-o", "remount,ro", tiny_disk], check=True)

    with pytest.raises(StorageError, match="EROFS") as caught:
        store.publish("group/blob", b"x")

    assert "read-only" in caught.value.hint


def test_a_name_is_not_taken_over_where_exclusive_rename_is_missing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.EINVAL, "no RENAME_NOREPLACE here, as on NFS")

    monkeypatch.setattr("holdfast.storage.files._rename_noreplace", unsupported)
    store = _open(run, Files())
    _publish(store)

    with pytest.raises(StorageError, match="exists already"):
        store.publish("group/blob", b"other")

    assert store.read("group/blob", 1 << 20) == _DATA
    assert _leftovers(store) == ["blob"]
