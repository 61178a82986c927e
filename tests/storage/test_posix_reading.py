"""Reading: every byte that was asked for, from the page cache or past it, or an error."""

import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import native
from holdfast.core.errors import IntegrityError, StorageError
from holdfast.format.checksum import checksum_hex
from holdfast.storage.files import Files
from holdfast.storage.posix import PosixStore
from holdfast.testing import FakeClock, Fault, FaultyFiles
from holdfast.testing.store_check import aligned, pattern
from tests.descriptors import open_descriptors

_DATA = pattern((1 << 20) + 777)


class _Watching(Files):
    """Says which reads went past the page cache, and what is cached."""

    def __init__(self, *, cached: bool) -> None:
        self._cached = cached
        self._direct: set[int] = set()
        self.direct_bytes = 0

    def open_read(self, parent: int, name: str, *, direct: bool = False) -> int:
        descriptor = super().open_read(parent, name, direct=direct)
        (self._direct.add if direct else self._direct.discard)(descriptor)
        return descriptor

    def read_at(self, descriptor: int, buffers: list[memoryview], offset: int) -> int:
        done = super().read_at(descriptor, buffers, offset)
        self.direct_bytes += done if descriptor in self._direct else 0
        return done

    def is_cached_at(self, descriptor: int, offset: int) -> bool:
        return self._cached


@pytest.fixture
def blob(run: Path) -> Path:
    """The file of `group/blob`, which holds the test's data."""
    store = PosixStore(run, create=True)
    store.publish("group/blob", _DATA)
    store.close()
    return run / "group" / "blob"


def _read(run: Path, files: Files, *, memory: memoryview | None = None, direct: bool = True) -> bytes:
    memory = aligned(bytes(len(_DATA))) if memory is None else memory
    store = PosixStore(run, files=files, clock=FakeClock(), direct=direct)
    reader = store.open("group/blob")
    try:
        reader.read_at([memory], 0)
    finally:
        reader.close()
        store.close()
    return bytes(memory)


def test_what_is_not_cached_is_read_past_the_page_cache_but_for_the_last_part_of_a_page(run: Path, blob: Path) -> None:
    files = _Watching(cached=False)

    found = _read(run, files)

    assert found == _DATA
    assert files.direct_bytes == 1 << 20


@pytest.mark.parametrize(("cached", "direct"), [(True, True), (False, False)])
def test_what_is_cached_or_not_wanted_directly_is_read_through_the_page_cache(
    run: Path, blob: Path, cached: bool, direct: bool
) -> None:
    files = _Watching(cached=cached)

    found = _read(run, files, direct=direct)

    assert found == _DATA
    assert files.direct_bytes == 0


def test_memory_that_is_not_aligned_is_filled_too(run: Path, blob: Path) -> None:
    memory = memoryview(bytearray(len(_DATA) + 1))[1:]

    assert _read(run, _Watching(cached=False), memory=memory) == _DATA


def test_buffers_that_split_pages_are_filled_too(run: Path, blob: Path) -> None:
    store = PosixStore(run, files=_Watching(cached=False))
    buffers = [aligned(bytes(size)) for size in (1 << 18, 1 << 17, 5, 4096, 300_000)]
    reader = store.open("group/blob")

    reader.read_at(buffers, 4096)

    found = b"".join(bytes(buffer) for buffer in buffers)
    assert found == _DATA[4096 : 4096 + len(found)]
    reader.close()


def test_more_buffers_than_the_system_takes_at_once_are_filled(run: Path, blob: Path) -> None:
    store = PosixStore(run)
    buffers = [memoryview(bytearray(300)) for _ in range(3000)]
    reader = store.open("group/blob")

    reader.read_at(buffers, 0)

    assert b"".join(bytes(buffer) for buffer in buffers) == _DATA[:900_000]
    reader.close()


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_a_refused_direct_read_goes_through_the_page_cache(run: Path, blob: Path, number: int) -> None:
    class Refusing(_Watching):
        def read_at(self, descriptor: int, buffers: list[memoryview], offset: int) -> int:
            if descriptor in self._direct:
                raise OSError(number, "no direct I/O")
            return super().read_at(descriptor, buffers, offset)

    assert _read(run, Refusing(cached=False)) == _DATA


@pytest.mark.parametrize("cached", [True, False])
def test_short_reads_are_continued(run: Path, blob: Path, cached: bool) -> None:
    files = FaultyFiles(_Watching(cached=cached), [Fault(at=0, short=True, lasting=True, methods={"read_at"})])

    assert _read(run, files) == _DATA


_READS: dict[str, Callable[[PosixStore], object]] = {
    "read": lambda store: store.read("group/blob", 1 << 21),
    "read_tail": lambda store: store.read_tail("group/blob", 1 << 21),
    "list_heads": lambda store: store.list_heads(["group"], "blob", 1 << 21)[0],
    "list": lambda store: [entry.name for entry in store.list("group")],
}


@pytest.mark.parametrize("use", _READS.values(), ids=_READS)
@pytest.mark.parametrize("number", [errno.ESTALE, errno.EAGAIN, errno.EINTR])
def test_an_error_that_passes_is_tried_again_at_any_call(
    run: Path, blob: Path, number: int, use: Callable[[PosixStore], object]
) -> None:
    probe = FaultyFiles()
    store = PosixStore(run, files=probe)
    begin = len(probe.calls)
    expected = use(store)

    for at in range(begin, len(probe.calls)):
        clock = FakeClock()
        again = PosixStore(run, files=FaultyFiles(plan=[Fault(at=at, error=number)]), clock=clock)
        assert use(again) == expected
        assert len(clock.slept_s) <= 1


@pytest.mark.parametrize("use", _READS.values(), ids=_READS)
def test_retries_end_after_three_tries_with_growing_pauses(
    run: Path, blob: Path, use: Callable[[PosixStore], object]
) -> None:
    clock = FakeClock()
    files = FaultyFiles(plan=[Fault(at=0, error=errno.ESTALE, lasting=True, methods={"open_dir"})])

    with pytest.raises(StorageError, match="ESTALE"):
        use(PosixStore(run, files=files, clock=clock))

    assert [method for _, method in files.calls].count("open_dir") == 3
    assert clock.slept_s == sorted(clock.slept_s)


def test_a_read_error_is_not_tried_again(run: Path, blob: Path) -> None:
    files = FaultyFiles(plan=[Fault(at=0, error=errno.EIO, lasting=True, methods={"read_at"})])

    with pytest.raises(StorageError, match="EIO"):
        PosixStore(run, files=files).read("group/blob", 1 << 21)

    assert [method for _, method in files.calls].count("read_at") == 1


def test_a_reader_whose_handle_became_stale_opens_the_blob_again(run: Path, blob: Path) -> None:
    class Stale(_Watching):
        first: int | None = None

        def read_at(self, descriptor: int, buffers: list[memoryview], offset: int) -> int:
            self.first = descriptor if self.first is None else self.first
            if descriptor == self.first:
                raise OSError(errno.ESTALE, "stale file handle")
            return super().read_at(descriptor, buffers, offset)

    assert _read(run, Stale(cached=True)) == _DATA


def test_a_blob_that_shrinks_while_it_is_read_is_an_integrity_error(run: Path, blob: Path) -> None:
    store = PosixStore(run)
    reader = store.open("group/blob")

    os.truncate(blob, 5000)

    with pytest.raises(IntegrityError, match="ends at byte 5000"):
        reader.read_at([aligned(bytes(10_000))], 0)
    reader.close()


def test_a_closed_reader_says_so(run: Path, blob: Path) -> None:
    store = PosixStore(run)
    reader = store.open("group/blob")

    reader.close()
    reader.close()

    with pytest.raises(StorageError, match="closed"):
        reader.read_at([memoryview(bytearray(1))], 0)


def test_a_blob_is_cached_after_it_was_read_and_not_after_it_was_dropped(run: Path, blob: Path) -> None:
    def is_cached() -> bool:
        reader = PosixStore(run).open("group/blob")
        answer = reader.is_cached()
        reader.close()
        return answer

    descriptor = os.open(blob, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    dropped = is_cached()
    blob.read_bytes()
    if is_cached() and dropped:
        pytest.skip("this file system keeps everything in memory")

    assert (dropped, is_cached()) == (False, True)


def test_no_descriptor_stays_open(run: Path, blob: Path) -> None:
    before = open_descriptors()
    store = PosixStore(run, files=_Watching(cached=False))
    for use in _READS.values():
        use(store)
    reader = store.open("group/blob")
    reader.read_at([aligned(bytes(1 << 20))], 0)

    reader.close()
    store.close()

    assert open_descriptors() == before


def test_a_thousand_heads_take_few_calls_each(run: Path) -> None:
    files = FaultyFiles()
    store = PosixStore(run, create=True, files=files)
    store.publish("group/manifest", b"head")
    files.calls.clear()

    store.list_heads(["group"] * 1000, "manifest", 4096)

    assert len(files.calls) <= 7 * 1000  # one more where this process holds a blob


_LARGE = pattern((5 << 20) + 777)


@pytest.fixture
def large(run: Path) -> Path:
    """The file of `group/large`: large enough to be mapped."""
    store = PosixStore(run, create=True)
    store.publish("group/large", _LARGE)
    store.close()
    return run / "group" / "large"


@pytest.mark.skipif(not native.is_built(), reason="the native part is not built")
def test_what_is_cached_is_filled_into_place_and_checked_in_one_pass(run: Path, large: Path) -> None:
    reader = PosixStore(run, files=_Watching(cached=True)).open("group/large")
    buffers = [bytearray(size) for size in (70_000, 0, 3, len(_LARGE) - 70_003 - 99)]

    too_short = reader.read_checked([memoryview(buffer) for buffer in buffers], 99, 1 << 20)
    assert too_short is None  # 678 bytes are left for the last chunk

    buffers[-1] = bytearray((5 << 20) - 70_003)
    found = reader.read_checked([memoryview(buffer) for buffer in buffers], 99, 1 << 20)

    assert b"".join(buffers) == _LARGE[99 : 99 + (5 << 20)]
    assert found == [checksum_hex(_LARGE[99 + begin : 99 + begin + (1 << 20)]) for begin in range(0, 5 << 20, 1 << 20)]
    assert reader.read_checked([memoryview(bytearray(20_000))], len(_LARGE) - 19_999, 20_000) is None
    reader.close()


@pytest.mark.parametrize(("cached", "key"), [(False, "group/large"), (True, "group/blob")])
def test_what_is_not_cached_or_small_is_not_mapped(run: Path, large: Path, blob: Path, cached: bool, key: str) -> None:
    reader = PosixStore(run, files=_Watching(cached=cached)).open(key)

    assert reader.read_checked([memoryview(bytearray(100_000))], 0, 100_000) is None
    reader.close()


@pytest.mark.skipif(not native.is_built(), reason="the native part is not built")
def test_a_cached_file_that_is_cut_short_while_it_is_read_is_an_error_and_not_a_signal(run: Path, large: Path) -> None:
    reader = PosixStore(run, files=_Watching(cached=True), clock=FakeClock()).open("group/large")
    memory = memoryview(bytearray(1 << 20))
    assert reader.read_checked([memory], 0, 1 << 20) is not None

    os.truncate(large, 1 << 20)

    assert reader.read_checked([memory], 2 << 20, 1 << 20) is None
    with pytest.raises(IntegrityError, match="ends at byte"):
        reader.read_at([memory], 2 << 20)
    reader.close()


def test_a_file_that_cannot_be_mapped_is_read_by_calls(run: Path, large: Path) -> None:
    class NoAddresses(_Watching):
        def map(self, descriptor: int, size_bytes: int) -> None:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    reader = PosixStore(run, files=NoAddresses(cached=True)).open("group/large")
    memory = memoryview(bytearray(100_000))

    assert reader.read_checked([memory], 0, 100_000) is None
    reader.read_at([memory], 0)

    assert memory == _LARGE[:100_000]
    reader.close()


@pytest.mark.skipif(not native.is_built(), reason="the native part is not built")
def test_memory_that_the_system_does_not_take_back_is_read_all_the_same(run: Path) -> None:
    class Locked(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    class AllLocked(_Watching):
        def map(self, descriptor: int, size_bytes: int) -> mmap.mmap:
            return Locked(descriptor, size_bytes, access=mmap.ACCESS_READ)

    (run / "group").mkdir(parents=True, mode=0o700)
    run.chmod(0o700)
    with (run / "group" / "sparse").open("wb") as file:
        file.truncate(100 << 20)
    reader = PosixStore(run, files=AllLocked(cached=True)).open("group/sparse")
    memory = memoryview(bytearray(1 << 20))

    assert reader.read_checked([memory], 99 << 20, 1 << 20) == [checksum_hex(memory)]
    reader.close()
