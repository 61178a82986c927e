"""The fault injector itself: counts everything, fails exactly where it is told to."""

import errno
import inspect
from pathlib import Path

import pytest

from holdfast.storage.files import Files
from holdfast.testing import CHANGING_METHODS, READING_METHODS, Call, FakeClock, Fault, FaultyFiles, When

_METHODS = {name for name, _ in inspect.getmembers(Files, inspect.isfunction) if not name.startswith("_")}


def _make_file(files: FaultyFiles, place: Path) -> int:
    return files.create(files.open_root(str(place)), "file", 0o600)


def test_every_file_operation_is_counted() -> None:
    assert {name for name in _METHODS if name in vars(FaultyFiles)} == _METHODS
    assert CHANGING_METHODS | READING_METHODS | {"close"} == _METHODS
    assert not CHANGING_METHODS & READING_METHODS


def test_calls_are_numbered_in_order(tmp_path: Path) -> None:
    files = FaultyFiles()

    files.sync(_make_file(files, tmp_path))

    assert files.calls == [Call(0, "open_root"), Call(1, "create"), Call(2, "sync")]


def test_a_fault_strikes_once_at_its_number(tmp_path: Path) -> None:
    files = FaultyFiles(plan=[Fault(at=2, error=errno.EIO)])
    descriptor = _make_file(files, tmp_path)

    with pytest.raises(OSError, match="injected at call 2, sync"):
        files.sync(descriptor)

    files.sync(descriptor)


def test_a_lasting_fault_strikes_its_methods_from_its_number_on(tmp_path: Path) -> None:
    files = FaultyFiles(plan=[Fault(at=3, error=errno.EROFS, lasting=True, methods=CHANGING_METHODS)])
    descriptor = _make_file(files, tmp_path)
    files.sync(descriptor)

    for _ in range(2):
        with pytest.raises(OSError, match="Read-only"):
            files.truncate(descriptor, 5)

    assert files.info(descriptor).size_bytes == 0
    files.close(descriptor)


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (Fault(at=2, short=True), b"half"),
        (Fault(at=2, error=errno.EIO), b""),
        (Fault(at=2, error=errno.EIO, when=When.MIDDLE), b"half"),
        (Fault(at=2, error=errno.EIO, when=When.AFTER), b"halfhalf"),
    ],
)
def test_a_write_is_short_lost_torn_or_complete(tmp_path: Path, fault: Fault, found: bytes) -> None:
    files = FaultyFiles(plan=[fault])
    descriptor = _make_file(files, tmp_path)

    try:
        written = files.write_at(descriptor, memoryview(b"halfhalf"), 0)
    except OSError as error:
        written = -error.errno

    assert (tmp_path / "file").read_bytes() == found
    assert written == (4 if fault.short else -errno.EIO)


def test_an_action_runs_in_the_middle_of_a_write(tmp_path: Path) -> None:
    seen: list[bytes] = []
    look = Fault(at=2, action=lambda: seen.append((tmp_path / "file").read_bytes()), when=When.MIDDLE)
    files = FaultyFiles(plan=[look])

    files.write_at(_make_file(files, tmp_path), memoryview(b"halfhalf"), 0)

    assert seen == [b"half"]
    assert (tmp_path / "file").read_bytes() == b"halfhalf"


def test_a_failing_close_closes_all_the_same(tmp_path: Path) -> None:
    files = FaultyFiles(plan=[Fault(at=2, error=errno.EIO)])
    descriptor = _make_file(files, tmp_path)

    with pytest.raises(OSError, match="injected"):
        files.close(descriptor)

    with pytest.raises(OSError, match="Bad file descriptor"):
        files.info(descriptor)


def test_the_fake_clock_goes_on_only_when_somebody_sleeps() -> None:
    clock = FakeClock(utc_s=100.0)

    clock.sleep(2.5)
    clock.advance(1.5)

    assert (clock.utc_s(), clock.monotonic_s(), clock.slept_s) == (104.0, 4.0, [2.5])
