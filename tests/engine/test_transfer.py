"""Copies are complete, verified, resumable, and overwrite nothing."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import holdfast
from holdfast.core.errors import IntegrityError, RunBusyError, RunError
from holdfast.engine.blocks import BlockPool
from holdfast.engine.catalog import read_catalog
from holdfast.engine.identity import identify
from holdfast.engine.loading import Source
from holdfast.engine.marks import set_mark
from holdfast.engine.transfer import copy_checkpoints, copy_journal
from holdfast.storage.files import Files
from holdfast.storage.memory import MemoryStore
from holdfast.storage.posix import PosixStore
from holdfast.testing import FakeClock


def _make(path: Path, steps: tuple[int, ...], clock: FakeClock | None = None) -> None:
    state = {"model": {"w": np.arange(400_000.0)}}
    with holdfast.Checkpointer(path, state, keep=holdfast.KEEP_ALL, clock=clock) as ckpt:
        ckpt.restore()
        for step in steps:
            state["model"]["w"] += 1
            ckpt.save(step=step)


def _source(path: Path) -> Source:
    store = PosixStore(str(path), readonly=True)
    return Source(store, identify(store), BlockPool(), 2)


def _copy(path: Path, target, **changes):
    source = _source(path)._replace(**changes)
    checkpoints = read_catalog(source.store, source.run_id).checkpoints
    return copy_checkpoints(source, target, checkpoints, FakeClock())


@pytest.fixture
def run(tmp_path):
    _make(tmp_path / "run", (1, 2))
    return tmp_path / "run"


@pytest.fixture
def target(tmp_path):
    store = PosixStore(str(tmp_path / "copy"), create=True)
    yield store
    store.close()


def test_a_copy_has_the_same_files_and_is_marked_verified(run, target, tmp_path):
    progress: list[int] = []

    done = _copy(run, target, progress=progress.append)

    assert len(done.copied) == 2
    assert sum(progress) == 2 * done.size_bytes  # once read, once read back
    for path in [*run.glob("0*/*"), run / "holdfast.json", *run.glob("attempts/*")]:
        assert (tmp_path / "copy" / path.relative_to(run)).read_bytes() == path.read_bytes()
    assert all(c.verified for c in read_catalog(target, identify(target)).checkpoints)


def test_any_store_can_be_the_target(run):
    store = MemoryStore()

    _copy(run, store)

    assert len(read_catalog(store, identify(store)).checkpoints) == 2


def test_pins_and_the_journal_come_along(run, target):
    source = _source(run)
    checkpoints = [c._replace(pinned=True) for c in read_catalog(source.store, source.run_id).checkpoints]

    copy_checkpoints(source, target, checkpoints, FakeClock())
    copy_journal(source.store, target)
    copy_journal(source.store, target)

    assert all(c.pinned for c in read_catalog(target, source.run_id).checkpoints)
    assert target.read_tail("journal.jsonl", 1 << 20) == (run / "journal.jsonl").read_bytes()


@pytest.mark.parametrize("kind", ["damaged", "quarantined"])
def test_what_was_said_of_a_copy_that_was_removed_by_hand_is_not_said_of_the_next(run, target, tmp_path, kind):
    first, _ = _copy(run, target).copied
    set_mark(target, first, kind, reason="chunk 0", clock=FakeClock())
    shutil.rmtree(tmp_path / "copy" / first)

    assert _copy(run, target).copied == [first]

    again = next(c for c in read_catalog(target, identify(target)).checkpoints if c.id == first)
    assert again.is_sound
    assert again.verified


def test_copying_again_copies_nothing(run, target):
    _copy(run, target)

    done = _copy(run, target)

    assert done.copied == []
    assert len(done.already_there) == 2


def test_new_checkpoints_are_added_to_an_earlier_copy(run, target):
    _copy(run, target)
    _make(run, (3,))

    done = _copy(run, target)

    assert len(done.copied) == 1
    assert len(read_catalog(target, identify(target)).checkpoints) == 3


class _DiesAt(Files):
    """Fails at the n-th write, as a full disk or a killed process would."""

    def __init__(self, index: int) -> None:
        self.left = index

    def write_at(self, descriptor, data, offset):
        self.left -= 1
        if self.left < 0:
            raise OSError(28, "No space left on device")
        return super().write_at(descriptor, data, offset)


@pytest.mark.parametrize("index", range(8))
def test_an_interrupted_copy_is_never_a_checkpoint_and_is_finished_by_the_next(run, tmp_path, index):
    failing = PosixStore(str(tmp_path / "copy"), create=True, files=_DiesAt(index))

    with pytest.raises(holdfast.NoSpaceError):
        _copy(run, failing)
    failing.close()
    store = PosixStore(str(tmp_path / "copy"), create=True)
    _copy(run, store)

    for path in run.glob("0*/*"):
        assert (tmp_path / "copy" / path.relative_to(run)).read_bytes() == path.read_bytes()
    store.close()


def test_a_half_copied_shard_is_written_again(run, target, tmp_path):
    _copy(run, target)
    folder = next(run.glob("000000001-*"))
    (tmp_path / "copy" / folder.name / "manifest.json").unlink()
    copied = tmp_path / "copy" / folder.name / "rank-00000.safetensors"
    os.truncate(copied, 1_500_000)

    _copy(run, target)

    assert copied.read_bytes() == (folder / "rank-00000.safetensors").read_bytes()


def test_damage_at_the_source_is_found_before_a_manifest_is_written(run, target, tmp_path):
    shard = next(run.glob("000000001-*/rank-00000.safetensors"))
    with open(shard, "r+b") as file:
        file.seek(2_000_000)
        file.write(b"\xff")

    with pytest.raises(IntegrityError, match="chunk 1 differs from its digest"):
        _copy(run, target)

    assert not list((tmp_path / "copy").glob("000000001-*/manifest.json"))


class _Forgetful(Files):
    """Says that it wrote, and wrote something else."""

    def write_at(self, descriptor, data, offset):
        if len(data) > 100_000:
            changed = bytearray(data)
            changed[100] ^= 1
            super().write_at(descriptor, memoryview(changed), offset)
            return len(data)
        return super().write_at(descriptor, data, offset)


def test_a_target_that_does_not_keep_what_was_written_is_found_out(run, tmp_path):
    store = PosixStore(str(tmp_path / "copy"), create=True, files=_Forgetful(), direct=False)

    with pytest.raises(IntegrityError, match="what was read back is not what was written"):
        _copy(run, store)

    assert read_catalog(store, identify(store)).checkpoints == []
    store.close()


def test_a_damaged_copy_that_is_there_already_is_neither_skipped_nor_overwritten(run, target, tmp_path):
    _copy(run, target)
    shard = next((tmp_path / "copy").glob("000000001-*/rank-00000.safetensors"))
    os.truncate(shard, 10)

    with pytest.raises(IntegrityError, match="is there already, but is not a complete copy"):
        _copy(run, target)

    assert shard.stat().st_size == 10


@pytest.mark.parametrize("kind", ["damaged", "quarantined"])
def test_a_copy_that_was_found_damaged_does_not_count_as_one_that_is_there(run, target, kind):
    first, _ = _copy(run, target).copied
    set_mark(target, first, kind, reason="chunk 0", clock=FakeClock())

    with pytest.raises(IntegrityError, match=f"{first} is there already, but was found damaged") as refused:
        _copy(run, target)

    assert "holdfast rm" in refused.value.hint


def test_another_run_and_a_foreign_directory_are_refused(run, tmp_path):
    _make(tmp_path / "other", (1,))
    (tmp_path / "foreign").mkdir(mode=0o700)
    (tmp_path / "foreign" / "thesis.tex").touch()

    for name, message in (("other", "is another run"), ("foreign", "neither empty nor a run")):
        store = PosixStore(str(tmp_path / name))
        with pytest.raises(RunError, match=message):
            _copy(run, store)
        store.close()


def test_copies_that_went_on_separately_are_not_mixed(run, target, tmp_path):
    _copy(run, target)
    _make(run, (3,))
    _make(tmp_path / "copy", (4,), FakeClock())

    with pytest.raises(RunError, match="went on separately: attempt 2 is not the same"):
        _copy(run, target)


def test_a_run_that_somebody_writes_takes_no_copy(run, target, tmp_path):
    _copy(run, target)
    _make(run, (3,))

    with holdfast.Checkpointer(tmp_path / "copy", {}, takeover=True):
        pass
    os.unlink(tmp_path / "copy" / "attempts" / "000002.json")
    with holdfast.Checkpointer(tmp_path / "copy", {}), pytest.raises((RunBusyError, RunError)):
        _copy(run, target)


def test_what_is_pruned_at_the_source_meanwhile_is_reported_not_an_error(run, target):
    source = _source(run)
    checkpoints = read_catalog(source.store, source.run_id).checkpoints
    folder = run / checkpoints[0].id
    for path in (folder / "manifest.json", folder / "rank-00000.safetensors"):
        path.unlink()

    done = copy_checkpoints(source, target, checkpoints, FakeClock())

    assert done.gone == [checkpoints[0].id]
    assert done.copied == [checkpoints[1].id]
