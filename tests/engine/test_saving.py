"""Making room, writing elsewhere after an error, and what a failed save leaves behind."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import holdfast
from holdfast.engine.commit import commit
from holdfast.format.manifest import ShardRecord
from holdfast.storage.files import Files, Space
from holdfast.storage.memory import MemoryStore
from holdfast.testing import Fault, FaultyFiles


class SmallDisk(Files):
    """A file system that says how little is left."""

    def __init__(self, free_bytes: int, free_inodes: int = 1000) -> None:
        self.left = Space(free_bytes, free_inodes, 1 << 30)

    def space(self, descriptor: int) -> Space:
        return self.left


def open_run(tmp_path, files=None, **options) -> holdfast.Checkpointer:
    return holdfast.Checkpointer(tmp_path / "run", {"w": np.zeros(1000)}, files=files, **options)


def directories(tmp_path) -> list[str]:
    return sorted(name for name in os.listdir(tmp_path / "run") if name[0].isdigit())


@pytest.mark.parametrize("disk", [SmallDisk(1000), SmallDisk(1 << 30, free_inodes=2)])
def test_a_checkpoint_that_does_not_fit_is_skipped_before_anything_is_written(tmp_path, disk):
    with open_run(tmp_path) as ckpt:
        kept = ckpt.save(step=1).wait()
    ckpt = open_run(tmp_path, disk)
    ckpt.restore()

    pending = ckpt.save(step=2)

    assert isinstance(pending.error, holdfast.NoSpaceError)
    assert "free are" in pending.error.message
    assert directories(tmp_path) == [kept]
    with pytest.raises(holdfast.SaveFailedError):
        ckpt.close()


def test_what_retention_gave_up_makes_room_and_nothing_else(tmp_path):
    with open_run(tmp_path, keep=holdfast.KEEP_ALL) as ckpt:
        ids = [ckpt.save(step=step).wait() for step in (1, 2, 3)]
    ckpt = open_run(tmp_path, SmallDisk(1000), keep=holdfast.keep(last=2))
    ckpt.restore()

    pending = ckpt.save(step=4)

    assert not pending.durable
    assert directories(tmp_path) == ids[1:]
    with pytest.raises(holdfast.SaveFailedError):
        ckpt.close()


@pytest.mark.parametrize("method", ["write_at", "sync", "rename", "create", "make_dir"])
def test_a_failed_save_leaves_no_directory_behind(tmp_path, method):
    files = FaultyFiles()
    ckpt = open_run(tmp_path, files, on_error="raise")
    before = len(files.calls)
    files.plan.append(Fault(at=before, error=errno.ENOSPC, lasting=True, methods={method}))

    with pytest.raises(holdfast.NoSpaceError):
        ckpt.save(step=1)

    files.plan.clear()
    assert directories(tmp_path) == []
    assert ckpt.save(step=1).durable
    ckpt.close()


def test_what_a_dying_disk_leaves_behind_is_removed_by_the_next_save(tmp_path):
    files = FaultyFiles()
    ckpt = open_run(tmp_path, files)
    files.plan.append(Fault(at=len(files.calls), error=errno.ENOSPC, lasting=True, methods={"sync_dir", "unlink"}))
    assert not ckpt.save(step=1).durable
    left = directories(tmp_path)

    files.plan.clear()
    saved = ckpt.save(step=1).wait()

    assert left
    assert directories(tmp_path) == [saved]
    ckpt.close()


def test_an_error_after_the_manifest_appeared_does_not_leave_an_unacknowledged_checkpoint(tmp_path):
    files = FaultyFiles()
    ckpt = open_run(tmp_path, files, on_error="raise")
    ckpt.save(step=1)
    rename = max(call.number for call in files.calls if call.method == "rename")
    renamed = files.calls[rename].number
    per_save = len(files.calls)
    ckpt.save(step=2)
    rename = next(call.number for call in files.calls if call.method == "rename" and call.number >= per_save)
    offset = rename - per_save
    start = len(files.calls)
    files.plan.append(Fault(at=start + offset + 1, error=errno.ENOSPC, methods={"sync_dir"}))
    assert renamed < rename

    with pytest.raises(holdfast.NoSpaceError):
        ckpt.save(step=3)

    assert [name[:9] for name in directories(tmp_path)] == ["000000001", "000000002"]
    ckpt.close()


def test_steps_of_any_size_are_saved(tmp_path):
    with open_run(tmp_path, keep=holdfast.KEEP_ALL) as ckpt:
        for step in (0, 999_999_999, 1_000_000_000, 10**15):
            ckpt.save(step=step).wait()

    with open_run(tmp_path) as ckpt:
        assert ckpt.restore().step == 10**15


class CleanedUp(Files):
    """A file system from which somebody removes every unfinished checkpoint as soon as its shard is durable."""

    def __init__(self, run: Path) -> None:
        self.run = run

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        for shard in self.run.glob("*-a*/rank-*"):
            if not (shard.parent / "manifest.json").exists():
                shutil.rmtree(shard.parent)


def test_a_checkpoint_whose_shard_was_removed_before_the_commit_never_exists(tmp_path):
    ckpt = open_run(tmp_path, CleanedUp(tmp_path / "run"))

    pending = ckpt.save(step=1)

    assert isinstance(pending.error, holdfast.StorageError)
    assert "somebody removed it" in pending.error.message
    assert directories(tmp_path) == []
    with pytest.raises(holdfast.SaveFailedError):
        ckpt.close()


class LostSync(Files):
    """The directory of a manifest cannot be synced; `meanwhile` is called when the run's lock is free again."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self._meanwhile = meanwhile
        self._fails = self._has_failed = False

    def rename(self, parent: int, old: str, new: str) -> None:
        super().rename(parent, old, new)
        self._fails = new == "manifest.json"

    def sync_dir(self, descriptor: int) -> None:
        if self._fails:
            self._fails, self._has_failed = False, True
            raise OSError(errno.EDQUOT, "the quota is used up")
        super().sync_dir(descriptor)

    def unlock(self, descriptor: int) -> None:
        super().unlock(descriptor)
        if self._has_failed:
            self._has_failed = False
            self._meanwhile()


TAKEOVER = """
import sys, numpy, holdfast
with holdfast.Checkpointer(sys.argv[1], {"w": numpy.zeros(1000)}, takeover=True, background="off") as ckpt:
    print(ckpt.restore().id)
"""


def test_what_a_newer_attempt_has_restored_is_not_removed_by_the_one_whose_save_failed(tmp_path):
    restored = []

    def take_over() -> None:
        command = [sys.executable, "-c", TAKEOVER, str(tmp_path / "run")]
        restored.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())

    ckpt = open_run(tmp_path, LostSync(take_over))

    pending = ckpt.save(step=1)

    assert pending.error is not None
    assert directories(tmp_path) == restored
    with pytest.raises(holdfast.SaveFailedError):
        ckpt.close()


def test_a_checkpoint_whose_directory_could_not_be_synced_is_removed_again(tmp_path):
    ckpt = open_run(tmp_path, LostSync(lambda: None))

    pending = ckpt.save(step=1)

    assert pending.error is not None
    assert directories(tmp_path) == []
    with pytest.raises(holdfast.SaveFailedError):
        ckpt.close()


def test_a_checkpoint_whose_shard_was_cut_off_before_the_commit_never_exists():
    store = MemoryStore()
    store.publish("group/rank-00000.safetensors", b"half")
    whole = ShardRecord(name="rank-00000.safetensors", size_bytes=8, chunk_bytes=8, xxh3=[], blake3=[])

    with pytest.raises(holdfast.StorageError, match="has 4 bytes, 8 were written"):
        commit(store, "group", b"manifest", shards=[whole], attempt=1, run_id="run")

    assert [entry.name for entry in store.list("group")] == ["rank-00000.safetensors"]
