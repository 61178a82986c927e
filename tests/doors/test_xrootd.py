"""Files on a real XRootD server: whole and verified, or refused; down, slow and full servers."""

import errno
import os
import sys
import time
import zlib
from pathlib import Path

import pytest

from holdfast.core.errors import BlobMissingError, IntegrityError, NoSpaceError, StorageError, UsageError
from holdfast.storage.xrootd import XRootDServer
from tests.doors.xrootd_server import XRootD

_PATIENCE_S = 60.0
_SOON_S = 1.0


def _file(folder: Path, data: bytes) -> str:
    path = folder / "file.bin"
    path.write_bytes(data)
    return str(path)


@pytest.mark.parametrize("size_bytes", [0, 1, (8 << 20) + 7])
def test_a_file_comes_back_as_it_was_sent(xrootd: XRootD, tmp_path: Path, size_bytes: int) -> None:
    data = os.urandom(size_bytes)
    server = XRootDServer(xrootd.name)

    server.put(_file(tmp_path, data), "/data/new-folder/model.pt", within_s=_PATIENCE_S)
    server.get("/data/new-folder/model.pt", str(tmp_path / "back"), within_s=_PATIENCE_S)

    assert (tmp_path / "back").read_bytes() == data
    assert [path.name for path in (xrootd.data / "new-folder").iterdir()] == ["model.pt"]
    (xrootd.data / "new-folder" / "model.pt").unlink()
    (xrootd.data / "new-folder").rmdir()


def test_a_file_that_is_sent_again_replaces_the_older_one(xrootd: XRootD, tmp_path: Path) -> None:
    server = XRootDServer(xrootd.name)
    server.put(_file(tmp_path, b"old"), "/data/a", within_s=_PATIENCE_S)

    server.put(_file(tmp_path, b"newer"), "/data/a", within_s=_PATIENCE_S)

    assert (xrootd.data / "a").read_bytes() == b"newer"
    assert server.exists("/data/a", within_s=_PATIENCE_S)


def test_what_is_not_there_is_missing_and_not_an_error_of_the_server(xrootd: XRootD, tmp_path: Path) -> None:
    server = XRootDServer(xrootd.name)

    assert not server.exists("/data/none", within_s=_PATIENCE_S)
    with pytest.raises(BlobMissingError):
        server.get("/data/none", str(tmp_path / "back"), within_s=_PATIENCE_S)


def test_a_path_that_the_server_does_not_export_is_refused_and_says_so(xrootd: XRootD, tmp_path: Path) -> None:
    server = XRootDServer(xrootd.name)

    with pytest.raises(StorageError, match="/elsewhere/a") as caught:
        server.put(_file(tmp_path, b"x"), "/elsewhere/a", within_s=_PATIENCE_S)

    assert "may write" in caught.value.hint


def test_bytes_that_are_not_what_was_sent_are_refused_at_either_end(
    xrootd: XRootD, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = XRootDServer(xrootd.name)
    server.put(_file(tmp_path, b"good"), "/data/a", within_s=_PATIENCE_S)

    with monkeypatch.context() as patch:
        # As if a wire had flipped a bit: what this end has counted is not what the other end has.
        patch.setattr(zlib, "adler32", lambda data, value=1: 0xBAD)
        with pytest.raises(IntegrityError, match="adler32"):
            server.put(_file(tmp_path, b"better"), "/data/a", within_s=_PATIENCE_S)
        with pytest.raises(IntegrityError, match="adler32"):
            server.get("/data/a", str(tmp_path / "back"), within_s=_PATIENCE_S)

    assert {path.name: path.read_bytes() for path in xrootd.data.iterdir()} == {"a": b"good"}


@pytest.mark.slow
def test_a_server_that_is_down_is_an_error_within_the_deadline(own_xrootd: XRootD, tmp_path: Path) -> None:
    server = XRootDServer(own_xrootd.name)
    own_xrootd.kill()

    with pytest.raises(StorageError) as sending:
        server.put(_file(tmp_path, b"x"), "/data/a", within_s=_SOON_S)
    with pytest.raises(StorageError):
        server.exists("/data/a", within_s=_SOON_S)
    own_xrootd.start()
    server.put(_file(tmp_path, b"x"), "/data/a", within_s=_PATIENCE_S)

    assert "down or slow" in sending.value.hint
    assert (own_xrootd.data / "a").read_bytes() == b"x"


def test_a_server_that_does_not_answer_is_an_error_and_the_older_file_stays(own_xrootd: XRootD, tmp_path: Path) -> None:
    server = XRootDServer(own_xrootd.name)
    server.put(_file(tmp_path, b"old"), "/data/a", within_s=_PATIENCE_S)
    own_xrootd.freeze()

    with pytest.raises(StorageError) as caught:
        server.put(_file(tmp_path, b"new"), "/data/a", within_s=_SOON_S)
    own_xrootd.thaw()
    server.get("/data/a", str(tmp_path / "back"), within_s=_PATIENCE_S)

    assert caught.value.errno == errno.ETIMEDOUT
    assert (tmp_path / "back").read_bytes() == b"old"


def test_a_server_that_answers_too_slowly_gets_no_more_time_than_was_given(
    xrootd: XRootD, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = XRootDServer(xrootd.name)
    now_s = iter(range(0, 10_000, 2))
    # Every look at the clock finds it two seconds later.
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now_s)))

    with pytest.raises(StorageError, match="over"):
        server.put(_file(tmp_path, b"x" * (60 << 20)), "/data/a", within_s=9.0)

    assert not (xrootd.data / "a").exists()


def test_a_server_that_is_full_says_so_and_the_older_file_stays(full_xrootd: XRootD, tmp_path: Path) -> None:
    server = XRootDServer(full_xrootd.name)
    server.put(_file(tmp_path, b"old"), "/data/a", within_s=_PATIENCE_S)

    with pytest.raises(NoSpaceError):
        server.put(_file(tmp_path, os.urandom(2 << 20)), "/data/a", within_s=_PATIENCE_S)

    assert {path.name: path.read_bytes() for path in full_xrootd.data.iterdir()} == {"a": b"old"}


@pytest.mark.parametrize("name", ["", "root://", "host/../../etc", "root://a b", "$(reboot)", 7])
def test_a_name_that_is_none_of_a_server_is_refused(name: object) -> None:
    with pytest.raises(UsageError):
        XRootDServer(name)  # type: ignore[arg-type]


def test_a_client_that_is_not_installed_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "XRootD", None)

    with pytest.raises(UsageError) as caught:
        XRootDServer("root://host")

    assert "holdfast[xrootd]" in caught.value.hint
