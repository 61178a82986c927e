"""Files as the state of a checkpoint."""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.core.errors import BlobExistsError, FormatError, IntegrityError, StateError, UsageError
from holdfast.core.values import Checkpoint
from holdfast.engine.blocks import BlockPool
from holdfast.engine.file_state import SavedFile, files_of, put_files, restore_files, save_files
from holdfast.engine.loading import Source
from holdfast.engine.saving import Document
from holdfast.engine.session import Session
from holdfast.policy.keep import KEEP_ALL
from holdfast.storage.posix import PosixStore
from holdfast.testing import FakeClock


@pytest.fixture
def session(store: PosixStore, clock: FakeClock) -> Iterator[Session]:
    opened = Session(store, clock, takeover=False, fresh=True, workers=2)
    yield opened
    opened.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    return made


def save(session: Session, folder: Path, *names: str, growing: tuple[str, ...] = ()) -> Checkpoint:
    document = Document(1, None, {}, "", (), {}, {})
    return save_files(session, str(folder), names, document, KEEP_ALL, growing=growing)


def source_of(session: Session) -> Source:
    return Source(session.store, session.run_id, BlockPool(), 2)


def test_files_come_back_with_their_bytes_permissions_and_times(session: Session, folder: Path, tmp_path: Path) -> None:
    big = os.urandom(3_000_000)
    (folder / "sub").mkdir()
    (folder / "sub" / "big.bin").write_bytes(big)
    (folder / "empty").write_bytes(b"")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o750)
    os.utime(folder / "run.sh", ns=(5, 1_700_000_000_123_456_789))
    names = ["sub/big.bin", "empty", "run.sh"]

    checkpoint = save(session, folder, *names)
    restored = restore_files(source_of(session), checkpoint.id, str(tmp_path / "back"))

    assert restored == names
    assert (tmp_path / "back" / "sub" / "big.bin").read_bytes() == big
    assert (tmp_path / "back" / "empty").read_bytes() == b""
    info = os.stat(tmp_path / "back" / "run.sh")
    assert (info.st_mode & 0o777, info.st_mtime_ns) == (0o750, 1_700_000_000_123_456_789)


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "./x", "", "a//b", "x\0y"])
def test_a_name_that_leaves_the_folder_is_refused(session: Session, folder: Path, name: str) -> None:
    with pytest.raises(FormatError):
        save(session, folder, name)


def test_a_link_in_the_folder_does_not_lead_out_of_it(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (folder / "sub").symlink_to(tmp_path / "outside")

    with pytest.raises(FormatError, match="a link leads out of"):
        put_files({"sub/x": SavedFile(np.zeros(3, np.uint8), 0o644, 0)}, str(folder))

    assert list((tmp_path / "outside").iterdir()) == []


def test_what_is_missing_or_no_ordinary_file_is_said_and_nothing_is_written(session: Session, folder: Path) -> None:
    os.mkfifo(folder / "pipe")

    with pytest.raises(StateError, match="nothing is missing"):
        save(session, folder, "nothing")
    with pytest.raises(StateError, match="pipe is not an ordinary file"):
        save(session, folder, "pipe")
    with pytest.raises(UsageError, match="no files"):
        save(session, folder)

    assert session.catalog().checkpoints == []


def test_files_that_never_belong_together_are_refused_unless_they_only_grow(
    session: Session, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("state", "log"):
        (folder / name).write_bytes(b"0")
    write = os.pwrite

    def write_and_log(*arguments: Any) -> int:
        """Whenever a part of a copy is written, the program has written to its log meanwhile."""
        with open(folder / "log", "ab") as log:
            log.write(b"x" * 100)
        return write(*arguments)

    monkeypatch.setattr(os, "pwrite", write_and_log)

    with pytest.raises(StateError, match="log changes while it is copied"):
        save(session, folder, "state", "log")
    with pytest.raises(StateError, match="log, state: they change while they are copied"):
        save_with_log_first(session, folder, monkeypatch, write)
    monkeypatch.setattr(os, "pwrite", write_and_log)
    checkpoint = save(session, folder, "state", "log", growing=("log",))

    assert checkpoint.leaves == 2


def save_with_log_first(
    session: Session, folder: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[..., int]
) -> None:
    """The log is still while it is copied itself, and changes when the state is."""
    count = itertools.count()

    def write_and_log_later(*arguments: Any) -> int:
        if next(count) % 2 == 1:
            with open(folder / "log", "ab") as log:
                log.write(b"x")
        return write(*arguments)

    monkeypatch.setattr(os, "pwrite", write_and_log_later)
    save(session, folder, "log", "state")


def test_a_damaged_checkpoint_writes_no_file(session: Session, folder: Path, tmp_path: Path) -> None:
    (folder / "a").write_bytes(b"first" * 1000)
    checkpoint = save(session, folder, "a")
    shard = next((tmp_path / "run" / checkpoint.id).glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-100] ^= 1
    shard.write_bytes(data)

    with pytest.raises(IntegrityError):
        restore_files(source_of(session), checkpoint.id, str(tmp_path / "back"))

    assert not (tmp_path / "back").exists()


def test_a_file_that_is_there_already_is_only_replaced_where_that_is_asked_for(session: Session, folder: Path) -> None:
    (folder / "a").write_bytes(b"then")
    checkpoint = save(session, folder, "a")
    (folder / "a").write_bytes(b"now")

    with pytest.raises(BlobExistsError, match="a exists already"):
        restore_files(source_of(session), checkpoint.id, str(folder), replace=False)
    kept = (folder / "a").read_bytes()
    restore_files(source_of(session), checkpoint.id, str(folder))

    assert kept == b"now"
    assert (folder / "a").read_bytes() == b"then"


@pytest.mark.parametrize(
    "tree",
    [
        None,
        {"weights": np.zeros(3)},
        {"files": {}},
        {"files": {"a": None}},
        {"files": {"a": {"data": np.zeros(3), "mode": 0, "mtime_ns": 0}}},
        {"files": {"a": {"data": np.zeros(3, np.uint8), "mode": "0", "mtime_ns": 0}}},
        {"files": {"../a": {"data": np.zeros(3, np.uint8), "mode": 0, "mtime_ns": 0}}},
    ],
)
def test_a_tree_that_holds_something_else_is_refused(tree: object) -> None:
    with pytest.raises(FormatError):
        files_of(tree, "000000001")
