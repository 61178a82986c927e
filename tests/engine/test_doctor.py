"""The doctor sees what a storage cannot do."""

import errno
import os

import pytest

import holdfast
from holdfast.core.errors import RunError
from holdfast.engine.checkup import examine_run
from holdfast.engine.doctor import FAIL, OK, WARN, examine_directory
from holdfast.engine.identity import identify
from holdfast.storage.files import Files, Space
from holdfast.storage.posix import PosixStore
from holdfast.testing import FakeClock


@pytest.fixture
def examine(tmp_path):
    """Examines a directory of ours; what was found, by what was tested."""
    (tmp_path / "place").mkdir(mode=0o700)

    def findings(files=None, clock=None):
        found = examine_directory(
            str(tmp_path / "place"), clock or FakeClock(), files=files, speed_bytes=8 << 20, progress=lambda _: None
        )
        by_name = {finding.what: finding for finding in found}
        assert os.listdir(tmp_path / "place") == []
        return by_name

    return findings


def test_an_ordinary_directory_is_fine_and_nothing_stays_behind(examine):
    found = examine()

    assert {name for name, finding in found.items() if finding.status == FAIL} == set()
    assert found["locks"].found == "seen by other processes, freed when the holder is killed"


class _NoDirectIo(Files):
    def create(self, parent, name, mode, *, direct=False):
        if direct:
            raise OSError(errno.EINVAL, "Invalid argument")
        return super().create(parent, name, mode)


def test_a_file_system_without_direct_io_gets_a_warning_and_is_measured_through_the_cache(examine):
    found = examine(_NoDirectIo())

    assert found["direct I/O"].status == WARN
    assert "page cache" in found["write speed"].found


class _RenameReplaces(Files):
    def rename(self, parent, old, new):
        os.rename(old, new, src_dir_fd=parent, dst_dir_fd=parent)


def test_a_rename_that_replaces_is_a_failure(examine):
    assert examine(_RenameReplaces())["rename"].status == FAIL


class _NoLocks(Files):
    def lock(self, descriptor):
        raise OSError(errno.ENOLCK, "No locks available")


def test_a_file_system_without_locks_gets_a_warning(examine):
    assert examine(_NoLocks())["locks"].status == WARN


class _LocksOnlyHere(Files):
    """A mount with local locks: other machines do not see them."""

    def lock(self, descriptor):
        return True


def test_locks_that_others_do_not_see_are_a_failure(examine):
    found = examine(_LocksOnlyHere())["locks"]

    assert found.status == FAIL
    assert "another process does not see a lock" in found.found


class _NoFsync(Files):
    def sync(self, descriptor):
        raise OSError(errno.EIO, "Input/output error")


def test_an_fsync_that_fails_is_a_failure(examine):
    found = examine(_NoFsync())

    assert found["fsync"].status == FAIL


class _Full(Files):
    def space(self, descriptor):
        return Space(1 << 20, 3, 1 << 40)


def test_little_space_and_few_inodes_get_warnings(examine):
    found = examine(_Full())

    assert (found["space"].status, found["inodes"].status) == (WARN, WARN)


class _SlowClock(FakeClock):
    """Every look at it takes a second."""

    def monotonic_s(self):
        self.advance(1.0)
        return super().monotonic_s()


def test_a_slow_storage_gets_warnings(examine):
    found = examine(clock=_SlowClock())

    assert (found["fsync"].status, found["write speed"].status, found["read speed"].status) == (WARN, WARN, WARN)


class _ReadOnly(Files):
    def make_dir(self, parent, name, mode):
        raise OSError(errno.EROFS, "Read-only file system")


def test_a_place_that_cannot_be_written_is_a_failure(examine):
    found = examine(_ReadOnly())["writing"]

    assert found.status == FAIL
    assert "read-only" in found.advice


def test_open_permissions_are_a_failure(examine, tmp_path):
    (tmp_path / "place").chmod(0o770)

    assert examine()["owner"].status == FAIL


def test_a_place_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(RunError):
        list(examine_directory(str(tmp_path / "no"), FakeClock(), speed_bytes=0, progress=lambda _: None))


@pytest.fixture
def checkup(tmp_path):
    """A run with two checkpoints, and what the doctor says of its files."""
    with holdfast.Checkpointer(tmp_path / "run", {"x": {"n": 1}}) as ckpt:
        ckpt.save(step=1)
        ckpt.save(step=2)

    def findings():
        store = PosixStore(str(tmp_path / "run"), readonly=True)
        found = {finding.what: finding for finding in examine_run(store, identify(store))}
        store.close()
        return found

    return findings


def test_a_fresh_run_is_fine_except_that_nothing_was_verified_yet(checkup):
    found = checkup()

    assert [name for name, finding in found.items() if finding.status != OK] == ["verified"]


def test_leftovers_strangers_and_torn_journals_are_seen(checkup, tmp_path):
    next((tmp_path / "run").glob("000000001-*/manifest.json")).unlink()
    (tmp_path / "run" / "notes.txt").touch()
    with open(tmp_path / "run" / "journal.jsonl", "a", encoding="ascii") as journal:
        journal.write('{"torn\n{"torn again')

    found = checkup()

    assert found["leftovers"].status == WARN
    assert found["other files"].found == "notes.txt"
    assert found["journal"].status == WARN
    assert found["journal"].found.startswith("2 of ")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda marker: os.truncate(marker, 5), "holdfast.json: the marker is damaged"),
        (lambda marker: marker.unlink(), "holdfast.json is missing"),
    ],
    ids=["damaged", "missing"],
)
def test_a_marker_that_cannot_be_read_is_seen_though_the_run_is_used(checkup, tmp_path, harm, said):
    assert checkup()["marker"].status == OK
    harm(tmp_path / "run" / "holdfast.json")

    found = checkup()["marker"]

    assert found.status == WARN
    assert found.found.startswith(said)
    assert "holdfast cp" in found.advice


def test_a_quarantined_checkpoint_is_seen_with_its_reason(checkup, tmp_path):
    next((tmp_path / "run").glob("000000002-*/manifest.json")).write_bytes(b"")

    found = checkup()["checkpoints"]

    assert found.status == WARN
    assert "step 2: " in found.advice
