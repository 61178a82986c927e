"""The front class: what a user sees of save, restore, keep and failure."""

import dataclasses
import enum
import errno
import json
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

import holdfast
from holdfast.engine.attempts import begin_attempt
from holdfast.engine.commit import pin, remove_checkpoint
from holdfast.storage.posix import PosixStore
from holdfast.testing import FakeClock, Fault, FaultyFiles


def new_state() -> dict[str, object]:
    return {"w": np.zeros(1000), "progress": {"step": 0}}


def fill(state: dict[str, object], value: float) -> None:
    state["w"][:] = value
    state["progress"]["step"] = int(value)


def open_run(path: Path, state: dict[str, object] | None = None, **options: object) -> holdfast.Checkpointer:
    return holdfast.Checkpointer(path / "run", new_state() if state is None else state, **options)


def make_run(path: Path, *steps: int, **options: object) -> list[str]:
    """A run with checkpoints at these steps, each full of its step's number; their ids."""
    state = new_state()
    options.setdefault("keep", holdfast.KEEP_ALL)
    with open_run(path, state, **options) as ckpt:
        ckpt.restore()
        ids = []
        for step in steps:
            fill(state, step)
            ids.append(ckpt.save(step=step, metrics={"loss": 1 / step}).wait())
    return ids


def shard_of(path: Path, checkpoint_id: str) -> Path:
    return path / "run" / checkpoint_id / "rank-00000.safetensors"


def flip_bit(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)


def fail_from_now_on(files: FaultyFiles, method: str, error: int) -> None:
    files.plan.append(Fault(at=len(files.calls), error=error, lasting=True, methods={method}))


def fail_once(files: FaultyFiles, method: str, error: int) -> None:
    """The next call of the method fails, and none after it."""

    def strike() -> None:
        if not struck:
            struck.append(True)
            raise OSError(error, os.strerror(error))

    struck: list[bool] = []
    files.plan.append(Fault(at=len(files.calls), action=strike, lasting=True, methods={method}))


def test_a_new_run_has_nothing_to_restore(tmp_path):
    with open_run(tmp_path) as ckpt:
        assert ckpt.restore() is None


def test_what_was_saved_comes_back_in_place(tmp_path):
    make_run(tmp_path, 1, 2)
    state = new_state()
    array, progress = state["w"], state["progress"]

    with open_run(tmp_path, state) as ckpt:
        restored = ckpt.restore()

    assert (restored.step, restored.metrics) == (2, {"loss": 0.5})
    assert state["w"] is array
    assert state["progress"] is progress
    assert (array == 2).all()
    assert progress == {"step": 2}


def test_a_save_says_when_it_is_durable(tmp_path):
    with open_run(tmp_path) as ckpt:
        pending = ckpt.save(step=1)

    assert pending.staged
    assert pending.durable
    assert pending.error is None
    assert (tmp_path / "run" / pending.wait() / "manifest.json").exists()


@pytest.mark.parametrize(
    ("mode", "said"), [("min", "step 4: the smallest loss (0.25)"), ("max", "step 1: the largest loss (1)")]
)
def test_a_restore_of_the_best_says_by_what_it_is_the_best(tmp_path, caplog, mode, said):
    make_run(tmp_path, 1, 2, 4)
    caplog.set_level(logging.INFO, logger="holdfast")

    with open_run(tmp_path) as ckpt:
        ckpt.restore("best", mode=mode)

    assert f"best is {said}" in caplog.text


@pytest.mark.parametrize("which", ["latest", "best", 2, "id"])
def test_any_checkpoint_can_be_asked_for(tmp_path, which):
    ids = make_run(tmp_path, 1, 2, 3)
    state = new_state()

    with open_run(tmp_path, state, keep=holdfast.KEEP_ALL) as ckpt:
        restored = ckpt.restore(ids[1] if which == "id" else which, **({"by": "loss"} if which == "best" else {}))

    expected = {"latest": 3, "best": 3, 2: 2, "id": 2}[which]
    assert restored.step == expected
    assert (state["w"] == expected).all()


@pytest.mark.parametrize("ask", ["restore", "load", "pin"])
def test_asking_for_a_step_that_is_not_there_says_what_is_and_in_which_run(tmp_path, ask):
    make_run(tmp_path, 1, 2)

    with open_run(tmp_path) as ckpt, pytest.raises(holdfast.NoCheckpointError) as caught:
        getattr(ckpt, ask)(7)

    run = tmp_path / "run"
    assert caught.value.message == f"{run}: there is no checkpoint of step 7; the nearest of 2: 1, 2"
    assert caught.value.hint == f"`holdfast ls {run}` lists what there is"


def test_a_state_that_does_not_fit_is_told_with_the_run_and_the_step_it_was_compared_with(tmp_path):
    make_run(tmp_path, 1, 2)

    with open_run(tmp_path, {"w": np.zeros(3)}) as ckpt, pytest.raises(holdfast.StateMismatchError) as caught:
        ckpt.restore(1)

    assert caught.value.message.startswith(f"step 1 of {tmp_path / 'run'} does not fit the program (")


class Phase(enum.Enum):
    WARM = 1


class Sample(NamedTuple):
    number: int
    phase: Phase


@dataclasses.dataclass
class Note:
    text: str


def test_objects_that_come_back_as_records_are_told_of_once_with_the_remedy(tmp_path, caplog):
    history = {"kept": [Sample(1, Phase.WARM), Sample(2, Phase.WARM)], "notes": {(Phase.WARM, 1): Note("slow")}}
    with open_run(tmp_path / "run", {"history": history, "seen": {Phase.WARM}}) as ckpt:
        ckpt.save(step=1)
    state = {"history": {}, "seen": set()}

    with open_run(tmp_path / "run", state) as ckpt:
        ckpt.restore()

    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    message = warning.getMessage()
    assert type(state["history"]["kept"][0]) is holdfast.Record
    assert (
        message.count("Sample (at history.kept[0])") == message.count("Phase (at ") == message.count("Note (at ") == 1
    )
    assert "@holdfast.register" in message


def test_classes_that_are_known_only_from_keys_are_told_of_too(tmp_path, caplog):
    with open_run(tmp_path / "run", {"seen": {Phase.WARM}, "by": {(1, Sample(1, Phase.WARM)): 2}}) as ckpt:
        ckpt.save(step=1)

    with open_run(tmp_path / "run", {"seen": set(), "by": {}}) as ckpt:
        ckpt.restore()

    assert "Phase (at seen), " in caplog.text
    assert "Sample (at by)" in caplog.text


def test_objects_whose_class_the_program_shows_are_not_told_of(tmp_path, caplog):
    with open_run(tmp_path / "run", {"history": [Sample(1, Phase.WARM)], "seen": {Phase.WARM}}) as ckpt:
        ckpt.save(step=1)
    state = {"history": [Sample(0, Phase.WARM)], "seen": {Phase.WARM}}

    with open_run(tmp_path / "run", state) as ckpt:
        ckpt.restore()

    assert state["history"] == [Sample(1, Phase.WARM)]
    assert "Record" not in caplog.text


def test_random_state_continues_where_it_was(tmp_path):
    random.seed(1)
    np.random.seed(1)
    with open_run(tmp_path) as ckpt:
        ckpt.save(step=1)
        expected = (random.random(), np.random.random())
    random.seed(99)
    np.random.seed(99)

    with open_run(tmp_path) as ckpt:
        ckpt.restore()

    assert (random.random(), np.random.random()) == expected


def test_random_state_is_left_alone_if_asked(tmp_path):
    with open_run(tmp_path, random=False) as ckpt:
        ckpt.save(step=1)
    random.seed(5)
    expected = random.Random(5).random()

    with open_run(tmp_path, random=False) as ckpt:
        ckpt.restore()

    assert random.random() == expected


class TestDamage:
    def test_a_flipped_bit_is_found_quarantined_and_the_older_one_used(self, tmp_path, caplog):
        ids = make_run(tmp_path, 1, 2, 3)
        flip_bit(shard_of(tmp_path, ids[2]), 5000)
        state = new_state()

        with open_run(tmp_path, state) as ckpt:
            restored = ckpt.restore()

        assert restored.step == 2
        assert (state["w"] == 2).all()
        assert "chunk 0 differs" in caplog.text
        assert "fell back" in caplog.text
        assert (tmp_path / "run" / "marks" / f"{ids[2]}.quarantined.json").exists()
        assert shard_of(tmp_path, ids[2]).exists()

    def test_a_quarantined_one_is_not_tried_again_and_said_so(self, tmp_path, caplog):
        ids = make_run(tmp_path, 1, 2)
        flip_bit(shard_of(tmp_path, ids[1]), 5000)
        with open_run(tmp_path) as ckpt:
            ckpt.restore()
        caplog.clear()

        with open_run(tmp_path) as ckpt:
            restored = ckpt.restore()

        assert restored.step == 1
        assert "step 2 is quarantined" in caplog.text

    @pytest.mark.parametrize("damage", ["flip", "empty", "truncate", "missing shard", "manifest", "fifo", "link"])
    def test_if_nothing_is_left_it_raises_instead_of_starting_over(self, tmp_path, damage):
        ids = make_run(tmp_path, 1)
        shard, manifest = shard_of(tmp_path, ids[0]), tmp_path / "run" / ids[0] / "manifest.json"
        if damage == "flip":
            flip_bit(shard, 5000)
        elif damage == "empty":
            manifest.write_bytes(b"")
        elif damage == "truncate":
            manifest.write_bytes(manifest.read_bytes()[:-1])
        elif damage == "missing shard":
            shard.unlink()
        elif damage == "manifest":
            flip_bit(manifest, 50)
        else:
            manifest.unlink()
            os.mkfifo(manifest) if damage == "fifo" else manifest.symlink_to("/dev/zero")

        with open_run(tmp_path) as ckpt, pytest.raises(holdfast.RestoreError, match=ids[0]):
            ckpt.restore()

    def test_a_state_that_was_half_restored_is_not_saved(self, tmp_path):
        ids = make_run(tmp_path, 1)
        flip_bit(shard_of(tmp_path, ids[0]), 5000)

        with open_run(tmp_path) as ckpt:
            with pytest.raises(holdfast.RestoreError, match="must not be used"):
                ckpt.restore()
            with pytest.raises(holdfast.StateError, match="half-way"):
                ckpt.save(step=2)

    @pytest.mark.parametrize("harm", [Path.unlink, lambda shard: os.truncate(shard, 5000)], ids=["missing", "short"])
    def test_a_state_into_which_nothing_was_read_is_not_said_to_be_overwritten(self, tmp_path, harm):
        for name in make_run(tmp_path, 1, 2):
            harm(shard_of(tmp_path, name))
        state = new_state()
        fill(state, 7)

        with open_run(tmp_path, state) as ckpt, pytest.raises(holdfast.RestoreError) as caught:
            ckpt.restore()

        assert "overwritten" not in str(caught.value)
        assert (state["w"] == 7).all()

    def test_an_error_of_the_program_in_the_middle_of_a_restore_says_so_too(self, tmp_path):
        class Broken:
            def state_dict(self) -> dict[str, int]:
                return {"n": 1}

            def load_state_dict(self, state: dict[str, int]) -> None:
                raise ValueError("of my own")

        with open_run(tmp_path, {"broken": Broken()}) as ckpt:
            ckpt.save(step=1)

        with open_run(tmp_path, {"broken": Broken()}) as ckpt, pytest.raises(ValueError, match="of my own") as caught:
            ckpt.restore()

        assert caught.value.__notes__ == ["the state in memory was partly overwritten and must not be used"]

    def test_a_state_without_arrays_that_was_half_restored_is_not_saved(self, tmp_path):
        class Fragile:
            def __init__(self) -> None:
                self.is_broken = False

            def state_dict(self) -> dict[str, int]:
                return {"n": 1}

            def load_state_dict(self, state: dict[str, int]) -> None:
                self.is_broken = True
                raise holdfast.UnsupportedError("no more of this")

        with open_run(tmp_path, {"fragile": Fragile()}, random=False) as ckpt:
            ckpt.save(step=1)
        fragile = Fragile()

        with open_run(tmp_path, {"fragile": fragile}, random=False) as ckpt:
            with pytest.raises(holdfast.RestoreError, match="must not be used"):
                ckpt.restore()
            with pytest.raises(holdfast.StateError, match="half-way"):
                ckpt.save(step=2)
        assert fragile.is_broken

    @pytest.mark.parametrize("step", [1, 2])
    def test_who_named_a_damaged_one_is_told_to_choose_another_and_not_to_start_over(self, tmp_path, step):
        ids = make_run(tmp_path, 1, 2, 3)
        for damaged in ids[:2]:
            flip_bit(shard_of(tmp_path, damaged), 5000)

        with open_run(tmp_path) as ckpt:
            for read in (lambda: holdfast.load(tmp_path / "run", step), lambda: ckpt.restore(step)):
                with pytest.raises(
                    holdfast.RestoreError, match="the checkpoint that was named cannot be used"
                ) as caught:
                    read()
                assert "start over" not in caught.value.hint
                assert f"`holdfast ls {tmp_path / 'run'}` lists what else there is" in caught.value.hint

    @pytest.mark.parametrize("strict", [True, False])
    def test_an_older_one_that_would_leave_parts_of_a_damaged_one_in_the_state_is_refused(self, tmp_path, strict):
        make_run(tmp_path, 1)
        with open_run(tmp_path, new_state() | {"new": np.full(1000, 7.0)}) as ckpt:
            ckpt.restore(strict=False)
            damaged = ckpt.save(step=2).wait()
        flip_bit(shard_of(tmp_path, damaged), -10)

        with (
            open_run(tmp_path, new_state() | {"new": np.zeros(1000)}) as ckpt,
            pytest.raises(holdfast.RestoreError, match=r"new: missing[^~]*must not be used"),
        ):
            ckpt.restore(strict=strict)
        with open_run(tmp_path, new_state() | {"new": np.zeros(1000)}) as ckpt:
            restored = ckpt.restore(strict=False)

        assert restored.step == 1

    def test_what_only_this_program_cannot_load_is_neither_quarantined_nor_passed_over(self, tmp_path):
        def named(*members: str) -> dict[object, int]:
            return dict.fromkeys(enum.Enum("Mode", members, module=__name__, qualname="Mode"), 0)

        with open_run(tmp_path, {"counts": named("A", "B")}) as ckpt:
            ckpt.save(step=1)
            ckpt.save(step=2)

        with open_run(tmp_path, {"counts": named("A")}) as ckpt, pytest.raises(holdfast.UnsupportedError, match="'B'"):
            ckpt.restore()
        with open_run(tmp_path, {"counts": named("A", "B")}) as ckpt:
            restored = ckpt.restore()

        assert restored.step == 2

    def test_a_swapped_shard_is_found(self, tmp_path):
        ids = make_run(tmp_path, 1, 2)
        first, second = shard_of(tmp_path, ids[0]), shard_of(tmp_path, ids[1])
        a, b = first.read_bytes(), second.read_bytes()
        first.write_bytes(b)
        second.write_bytes(a)

        with open_run(tmp_path) as ckpt, pytest.raises(holdfast.RestoreError):
            ckpt.restore()


def crash_after_restore(path: Path, which: str | int = "latest", **options: object) -> int:
    """The step that a program restores which dies before its next save."""
    with pytest.raises(ZeroDivisionError), open_run(path, **options) as ckpt:
        step = ckpt.restore(which).step
        1 / 0  # noqa: B018
    return step


class TestSuspicion:
    def test_a_checkpoint_that_never_leads_anywhere_is_skipped_after_three_times(self, tmp_path, caplog):
        make_run(tmp_path, 1, 2)

        steps = [crash_after_restore(tmp_path) for _ in range(4)]

        assert steps == [2, 2, 2, 1]
        assert "suspected" in caplog.text

    def test_a_newer_checkpoint_clears_the_suspicion(self, tmp_path):
        make_run(tmp_path, 1, 2)
        for step in (3, 4, 5, 6, 7):
            assert crash_after_restore(tmp_path) == step - 1
            with open_run(tmp_path) as ckpt:
                assert ckpt.restore().step == step - 1
                ckpt.save(step=step)

    def test_a_finished_training_that_is_started_again_is_not_suspect(self, tmp_path):
        make_run(tmp_path, 1, 2)

        for _ in range(6):
            with open_run(tmp_path) as ckpt:
                assert ckpt.restore().step == 2

    def test_neither_is_one_that_had_no_time_to_go_on(self, tmp_path):
        make_run(tmp_path, 1, 2)

        for _ in range(6):
            with pytest.raises(ZeroDivisionError), open_run(tmp_path) as ckpt:
                assert ckpt.restore().step == 2
                ckpt._session.tell("stopped", step=2)
                1 / 0  # noqa: B018

    def test_it_can_be_switched_off_or_overruled(self, tmp_path):
        ids = make_run(tmp_path, 1, 2)

        assert [crash_after_restore(tmp_path, suspect_after=None) for _ in range(5)] == [2] * 5
        assert crash_after_restore(tmp_path, ids[1]) == 2

    def test_the_only_checkpoint_is_used_however_suspect(self, tmp_path):
        make_run(tmp_path, 1)

        assert [crash_after_restore(tmp_path) for _ in range(5)] == [1] * 5


class TestLineage:
    def test_after_a_rollback_the_newer_branch_is_abandoned_not_lost(self, tmp_path):
        ids = make_run(tmp_path, 1, 2, 3)

        with open_run(tmp_path, keep=holdfast.KEEP_ALL) as ckpt:
            ckpt.restore(1)
            ckpt.save(step=2, note="another way")
        with open_run(tmp_path, keep=holdfast.KEEP_ALL) as ckpt:
            restored = ckpt.restore()

        assert (restored.step, restored.note) == (2, "another way")
        assert restored.checkpoint.origin == ids[0]
        assert (tmp_path / "run" / ids[2] / "manifest.json").exists()

    def test_the_tip_of_an_abandoned_branch_stays_however_often_the_job_restarts(self, tmp_path):
        ids = make_run(tmp_path, 10, 20, 30, 40)
        with open_run(tmp_path) as ckpt:
            ckpt.restore(20)
            ckpt.save(step=30)

        for _start in range(5):
            with open_run(tmp_path) as ckpt:
                step = ckpt.restore().step
                for _ in range(4):
                    step += 10
                    ckpt.save(step=step)

        assert (tmp_path / "run" / ids[3] / "manifest.json").exists()
        assert not (tmp_path / "run" / ids[2]).exists()

    def test_a_rollback_in_the_same_process_begins_a_new_attempt(self, tmp_path):
        state = new_state()
        with open_run(tmp_path, state, keep=holdfast.KEEP_ALL) as ckpt:
            first = ckpt.attempt
            ckpt.save(step=1)
            ckpt.save(step=2)

            ckpt.restore(1)
            ckpt.save(step=1)

            assert ckpt.attempt == first + 1

    def test_a_step_that_goes_backwards_is_refused_and_nothing_is_written(self, tmp_path):
        with open_run(tmp_path) as ckpt:
            ckpt.save(step=5)
            before = sorted(os.listdir(tmp_path / "run"))

            with pytest.raises(holdfast.UsageError, match="backwards"):
                ckpt.save(step=4)

            assert sorted(os.listdir(tmp_path / "run")) == before

    def test_the_same_step_can_be_saved_twice_in_one_second(self, tmp_path):
        with open_run(tmp_path, clock=FakeClock(), keep=holdfast.KEEP_ALL) as ckpt:
            ids = {ckpt.save(step=5).wait() for _ in range(3)}

        assert len(ids) == 3


class TestNeverSilentlyFromScratch:
    def test_saving_without_restoring_what_is_there_is_refused(self, tmp_path):
        make_run(tmp_path, 1)
        before = sorted(os.listdir(tmp_path / "run"))

        with open_run(tmp_path) as ckpt, pytest.raises(holdfast.UsageError, match="none of them was restored"):
            ckpt.save(step=1)

        assert sorted(os.listdir(tmp_path / "run")) == before

    def test_starting_over_on_purpose_leaves_the_old_ones_as_an_abandoned_branch(self, tmp_path):
        ids = make_run(tmp_path, 1, 2)

        with open_run(tmp_path, fresh=True, keep=holdfast.KEEP_ALL) as ckpt:
            ckpt.save(step=0)
        with open_run(tmp_path) as ckpt:
            assert ckpt.restore().step == 0

        assert all((tmp_path / "run" / name).exists() for name in ids)

    def test_a_run_that_lost_its_checkpoints_says_so(self, tmp_path, caplog):
        ids = make_run(tmp_path, 7)
        shutil.rmtree(tmp_path / "run" / ids[0])

        with open_run(tmp_path) as ckpt:
            assert ckpt.restore() is None

        assert "the last at step 7: starting from scratch" in caplog.text


class TestOneWriter:
    def test_a_second_writer_is_told_who_holds_the_run(self, tmp_path):
        with open_run(tmp_path), pytest.raises(holdfast.RunBusyError, match=f"pid {os.getpid()}"):
            open_run(tmp_path)

    def test_the_older_writer_can_neither_commit_nor_delete_after_a_takeover(self, tmp_path):
        old = open_run(tmp_path, keep=holdfast.keep(last=1))
        first = old.save(step=1).wait()
        with open_run(tmp_path, takeover=True, keep=holdfast.KEEP_ALL) as new:
            new.restore()

            with pytest.raises(holdfast.FencedError):
                old.save(step=2)

            assert new.restore().id == first
        old.close()

    @pytest.mark.parametrize("background", ["off", "thread", "process"])
    def test_the_older_writer_cannot_take_the_run_back_by_a_rollback(self, tmp_path, background):
        weights = np.zeros(3)
        old = holdfast.Checkpointer(tmp_path / "run", {"w": weights}, background=background)
        old.save(step=1).wait()
        weights += 1
        with holdfast.Checkpointer(tmp_path / "run", {"w": np.zeros(3)}, takeover=True, background=background) as new:
            new.restore()

            with pytest.raises(holdfast.FencedError, match="attempt 1 may no longer write"):
                old.restore(1)

            assert weights.tolist() == [1, 1, 1]
            new.save(step=2).wait()
        old.close()

    @pytest.mark.parametrize("background", ["off", "process"])
    def test_a_writer_whose_directory_was_emptied_writes_nothing_into_the_run_that_begins_there(
        self, tmp_path, background
    ):
        old = open_run(tmp_path, background=background)
        old.save(step=10).wait()
        for entry in (tmp_path / "run").iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        with open_run(tmp_path, background=background) as new:
            new.save(step=1).wait()

            with pytest.raises(holdfast.FencedError, match="is another run by now"):
                old.save(step=11).wait()
            with pytest.raises(holdfast.FencedError, match="is another run by now"):
                old.save(step=12)

            assert [(found.step, found.quarantined) for found in new.checkpoints()] == [(1, "")]
        if background == "off":
            old.close()
        else:
            with pytest.raises(holdfast.SaveFailedError):
                old.close()

    def test_a_writer_whose_directory_was_emptied_does_not_fence_the_run_off_that_begins_there(self, tmp_path):
        old = open_run(tmp_path, background="off")
        old.save(step=10)
        marker = (tmp_path / "run" / "holdfast.json").read_bytes()
        with holdfast.Checkpointer(tmp_path / "other", new_state(), background="off"):
            (tmp_path / "run" / "holdfast.json").write_bytes((tmp_path / "other" / "holdfast.json").read_bytes())

            with pytest.raises(holdfast.FencedError, match="is another run by now"):
                old.restore()

        assert [path.name for path in (tmp_path / "run" / "attempts").iterdir()] == ["000001.json"]
        (tmp_path / "run" / "holdfast.json").write_bytes(marker)
        old.close()

    def test_a_writer_whose_marker_was_lost_goes_on(self, tmp_path):
        with open_run(tmp_path, background="off") as ckpt:
            (tmp_path / "run" / "holdfast.json").unlink()

            assert ckpt.save(step=1).durable

    def test_a_forked_child_may_not_use_it(self, tmp_path):
        program = tmp_path / "program.py"
        program.write_text(FORKING_PROGRAM)

        # A process of its own: forking this one, with whatever the other tests have imported, is another matter.
        done = subprocess.run(
            [sys.executable, str(program), str(tmp_path / "run")], capture_output=True, text=True, check=True
        )

        assert "forked child" in done.stdout
        assert done.stdout.endswith("durable in the parent: True\n")


FORKING_PROGRAM = """
import os, sys
import numpy as np
import holdfast

ckpt = holdfast.Checkpointer(sys.argv[1], {"w": np.zeros(3)})
child = os.fork()
if child == 0:
    try:
        ckpt.save(step=1)
    except holdfast.UsageError as error:
        print(error.message, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print("durable in the parent:", ckpt.save(step=1).durable)
"""


class TestFailure:
    def test_a_failing_storage_is_a_warning_and_the_old_checkpoint_stays(self, tmp_path, caplog):
        make_run(tmp_path, 1)
        files = FaultyFiles()
        state = new_state()
        ckpt = open_run(tmp_path, state, files=files)
        ckpt.restore()
        fail_from_now_on(files, "write_at", errno.ENOSPC)

        pending = ckpt.save(step=2)

        assert isinstance(pending.error, holdfast.NoSpaceError)
        assert not pending.durable
        assert "was not saved" in caplog.text
        with pytest.raises(holdfast.NoSpaceError):
            pending.wait()
        with pytest.raises(holdfast.SaveFailedError, match="step 2"):
            ckpt.close()
        with open_run(tmp_path, new_state()) as again:
            assert again.restore().step == 1

    def test_a_failing_storage_raises_if_asked(self, tmp_path):
        files = FaultyFiles()
        with open_run(tmp_path, files=files, on_error="raise") as ckpt:
            fail_from_now_on(files, "sync", errno.EIO)

            with pytest.raises(holdfast.StorageError):
                ckpt.save(step=1)

    def test_one_failed_fsync_is_not_retried_on_that_file_but_elsewhere(self, tmp_path):
        files = FaultyFiles()
        with open_run(tmp_path, files=files) as ckpt:
            fail_once(files, "sync", errno.EIO)

            pending = ckpt.save(step=1)

        assert pending.durable
        events = [json.loads(line) for line in (tmp_path / "run" / "journal.jsonl").read_text().splitlines()]
        assert "retry" in [event["event"] for event in events]

    def test_a_later_success_makes_up_for_a_failure(self, tmp_path):
        files = FaultyFiles()
        with open_run(tmp_path, files=files) as ckpt:
            fail_once(files, "write_at", errno.ENOSPC)
            assert ckpt.save(step=1).error is not None

            assert ckpt.save(step=2).durable

    def test_the_programs_own_exception_is_not_replaced(self, tmp_path, caplog):
        files = FaultyFiles()
        with pytest.raises(ZeroDivisionError), open_run(tmp_path, files=files) as ckpt:
            fail_from_now_on(files, "write_at", errno.ENOSPC)
            ckpt.save(step=1)
            1 / 0  # noqa: B018

        assert "did not become durable" in caplog.text


class TestKeep:
    def test_the_last_three_stay_by_default(self, tmp_path):
        state = new_state()
        with open_run(tmp_path, state) as ckpt:
            for step in range(1, 6):
                ckpt.save(step=step)

        assert steps_on_disk(tmp_path) == [3, 4, 5]

    def test_the_best_stay(self, tmp_path):
        rule = holdfast.keep(last=1) | holdfast.keep(best=1, by="loss")
        with open_run(tmp_path, keep=rule) as ckpt:
            for step, loss in enumerate([0.5, 0.1, 0.4, 0.3], 1):
                ckpt.save(step=step, metrics={"loss": loss})

        assert steps_on_disk(tmp_path) == [2, 4]

    def test_the_one_that_was_restored_stays_until_a_newer_one_is_verified(self, tmp_path):
        make_run(tmp_path, 1)
        with open_run(tmp_path, keep=holdfast.keep(last=1)) as ckpt:
            ckpt.restore()
            for step in (2, 3, 4):
                ckpt.save(step=step)

        assert steps_on_disk(tmp_path) == [1, 4]

    def test_the_best_stays_also_after_a_rollback_behind_it(self, tmp_path):
        make_run(tmp_path, 1, 2, 3)
        with open_run(tmp_path, keep=holdfast.keep(last=1, best=1, by="loss")) as ckpt:
            ckpt.restore(2)
            for step in (3, 4, 5):
                ckpt.save(step=step, metrics={"loss": 10.0})

            assert ckpt.restore("best", by="loss").metrics == {"loss": 1 / 3}

    def test_a_misspelt_metric_costs_nothing_and_is_said(self, tmp_path, caplog):
        with open_run(tmp_path, keep=holdfast.keep(last=1, best=1, by="los")) as ckpt:
            for step in (1, 2, 3):
                ckpt.save(step=step, metrics={"loss": 1.0})

        assert steps_on_disk(tmp_path) == [1, 2, 3]
        assert caplog.text.count("no checkpoint has the metric 'los'") == 1

    def test_a_pinned_one_stays_and_a_dry_run_says_why(self, tmp_path):
        with open_run(tmp_path, keep=holdfast.keep(last=1)) as ckpt:
            ckpt.save(step=1)
            ckpt.pin(1, note="for the paper")
            ckpt.save(step=2)
            ckpt.save(step=3)

            verdicts = ckpt.prune(dry_run=True)

            assert [(checkpoint.step, checkpoint.pinned) for checkpoint in ckpt.checkpoints()] == [
                (1, True),
                (3, False),
            ]
            assert [(verdict.keep, "pinned" in verdict.reason) for verdict in verdicts] == [(True, True), (True, False)]

    def test_what_is_pinned_while_a_prune_runs_is_spared(self, tmp_path):
        ids = make_run(tmp_path, 1, 2, 3)
        store = PosixStore(tmp_path / "run")
        begin_attempt(store, FakeClock())
        pin(store, ids[0], reason="just in time", clock=FakeClock())

        removed = [remove_checkpoint(store, name, attempt=2) for name in ids[:2]]

        assert removed == [False, True]
        assert steps_on_disk(tmp_path) == [1, 3]
        store.close()

    def test_leftovers_of_a_crash_are_removed(self, tmp_path):
        make_run(tmp_path, 1)
        leftover = tmp_path / "run" / "000000009-e000-20200101T000000Z-a0001"
        leftover.mkdir()
        (leftover / "rank-00000.safetensors").write_bytes(b"half")

        with open_run(tmp_path) as ckpt:
            ckpt.restore()
            ckpt.save(step=2)

        assert not leftover.exists()


def steps_on_disk(path: Path) -> list[int]:
    return sorted(int(file.parent.name[:9]) for file in (path / "run").glob("*/manifest.json"))


class TestBadInput:
    @pytest.mark.parametrize(
        "options",
        [
            {"keep": 3},
            {"on_error": "ignore"},
            {"suspect_after": 0},
            {"suspect_after": "3"},
            {"tags": "abc"},
            {"tags": 3},
            {"workers": 0},
            {"workers": "two"},
            {"hyperparameters": 3},
            {"hyperparameters": {"f": print}},
            {"hyperparameters": {"seed": 1 << 20_000}},
            {"kepp": 3},
        ],
    )
    def test_options_that_make_no_sense_are_refused_before_anything_is_made(self, tmp_path, options):
        with pytest.raises(holdfast.UsageError):
            open_run(tmp_path, **options)

        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize(
        "state", [{"a": 3}, {"a": (1, 2)}, {"a": "text"}, {"tree": {}}, {3: {}}, {"a": object()}, "abc"]
    )
    def test_state_that_could_never_be_restored_is_refused_before_anything_is_made(self, tmp_path, state):
        with pytest.raises((holdfast.UsageError, holdfast.StateError)):
            open_run(tmp_path, state)

        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize(
        "arguments",
        [
            {"step": -1},
            {"step": 1.5},
            {"step": 1, "epoch": "x"},
            {"step": 1, "metrics": {"a": "b"}},
            {"step": 1, "note": 7},
            {"step": 1, "tags": "abc"},
            {"step": 1, "tags": 3},
            {
                "step": 1,
                "metrics": {"\N{SNOWMAN}" * 97 + f"{number:03}": 1.0 for number in range(200)},
                "note": "\0" * 4000,
            },
            {"step": 1, "metricks": {}},
        ],
    )
    def test_saves_that_make_no_sense_leave_the_disk_as_it_was(self, tmp_path, arguments):
        with open_run(tmp_path) as ckpt:
            before = sorted(os.listdir(tmp_path / "run"))

            with pytest.raises(holdfast.UsageError):
                ckpt.save(**arguments)

            assert sorted(os.listdir(tmp_path / "run")) == before

    def test_a_state_that_cannot_be_represented_is_refused_by_path_before_anything_is_written(self, tmp_path):
        state = {"progress": {"hooks": [lambda: None]}}
        with open_run(tmp_path, state) as ckpt:
            before = sorted(os.listdir(tmp_path / "run"))

            with pytest.raises(holdfast.StateError, match=r"progress\.hooks\[0\]"):
                ckpt.save(step=1)

            assert sorted(os.listdir(tmp_path / "run")) == before

    def test_two_leaves_of_the_same_name_are_refused(self, tmp_path):
        state = {"a": {"b.c": np.zeros(1), "b": {"c": np.ones(1)}}}
        with open_run(tmp_path, state) as ckpt, pytest.raises(holdfast.StateError, match=r"a\.b\.c"):
            ckpt.save(step=1)

    @pytest.mark.parametrize("path", [None, 3, b"run", "", "a\0b"])
    def test_what_is_no_path_is_refused(self, path):
        with pytest.raises(holdfast.UsageError, match="path"):
            holdfast.Checkpointer(path)
        with pytest.raises(holdfast.UsageError, match="path"):
            holdfast.load(path)

    @pytest.mark.parametrize("arguments", [{"rename": "w"}, {"rename": {"w": 3}}, {"which": "9" * 5000}])
    def test_restores_that_make_no_sense_are_refused(self, tmp_path, arguments):
        make_run(tmp_path, 1)

        with open_run(tmp_path) as ckpt, pytest.raises((holdfast.UsageError, holdfast.NoCheckpointError)):
            ckpt.restore(**arguments)

    def test_a_file_in_the_place_of_the_run_is_refused(self, tmp_path):
        (tmp_path / "run").write_text("mine")

        with pytest.raises(holdfast.RunError):
            open_run(tmp_path)

        assert (tmp_path / "run").read_text() == "mine"

    def test_a_run_of_a_newer_format_is_refused_and_not_changed(self, tmp_path):
        make_run(tmp_path, 1)
        marker = tmp_path / "run" / "holdfast.json"
        marker.write_bytes(marker.read_bytes().replace(b'"format": 1', b'"format": 9'))
        before = sorted(str(p) for p in (tmp_path / "run").rglob("*"))

        with pytest.raises(holdfast.FormatVersionError):
            open_run(tmp_path)

        assert sorted(str(p) for p in (tmp_path / "run").rglob("*")) == before

    def test_a_model_in_the_place_of_a_mapping_is_refused_with_the_hint(self, tmp_path):
        with pytest.raises(holdfast.UsageError, match='"model": model'):
            open_run(tmp_path, np.zeros(3))

    def test_a_run_whose_marker_was_deleted_goes_on(self, tmp_path, caplog):
        make_run(tmp_path, 1)
        (tmp_path / "run" / "holdfast.json").unlink()

        with open_run(tmp_path) as ckpt:
            assert ckpt.restore().step == 1

        assert "all checkpoints agree" in caplog.text

    def test_a_closed_one_is_of_no_use(self, tmp_path):
        ckpt = open_run(tmp_path)
        ckpt.close()
        ckpt.close()

        with pytest.raises(holdfast.UsageError, match="closed"):
            ckpt.save(step=1)

    def test_nothing_to_save_is_said(self, tmp_path):
        with open_run(tmp_path, {}) as ckpt, pytest.raises(holdfast.UsageError, match="nothing to save"):
            ckpt.save(step=1)


class TestMismatch:
    def test_all_differences_are_listed_and_nothing_is_touched(self, tmp_path):
        with open_run(tmp_path, {"m": {"a": np.ones(3), "b": np.ones(2), "c": np.ones(1)}}) as ckpt:
            ckpt.save(step=1)
        other = {"m": {"a": np.zeros(4), "b": np.zeros(2, np.float32), "d": np.zeros(1)}}

        with open_run(tmp_path, other) as ckpt, pytest.raises(holdfast.StateMismatchError) as caught:
            ckpt.restore()

        text = str(caught.value)
        assert all(name in text for name in ("m.a", "m.b", "m.c", "m.d"))
        assert all((array == 0).all() for array in other["m"].values())

    def test_a_changed_model_loads_what_fits_if_asked(self, tmp_path):
        with open_run(tmp_path, {"m": {"a": np.ones(3), "old": np.ones(2)}}) as ckpt:
            ckpt.save(step=1)
        other = {"m": {"a": np.zeros(3), "new": np.zeros(2)}}

        with open_run(tmp_path, other) as ckpt:
            restored = ckpt.restore(strict=False)

        assert (other["m"]["a"] == 1).all()
        assert (other["m"]["new"] == 0).all()
        assert restored.skipped

    def test_a_renamed_part_is_found(self, tmp_path):
        with open_run(tmp_path, {"m": {"old": np.ones(2)}}) as ckpt:
            ckpt.save(step=1)
        other = {"m": {"new": np.zeros(2)}}

        with open_run(tmp_path, other) as ckpt:
            ckpt.restore(rename={"m.old": "m.new"})

        assert (other["m"]["new"] == 1).all()

    def test_of_nested_renames_the_more_exact_one_wins(self, tmp_path):
        with open_run(tmp_path, {"m": {"a": np.ones(1), "b": np.full(1, 2.0)}}) as ckpt:
            ckpt.save(step=1)
        other = {"n": {"x": np.zeros(1), "b": np.zeros(1)}}

        with open_run(tmp_path, other) as ckpt:
            ckpt.restore(rename={"m": "n", "m.a": "n.x"})

        assert (other["n"]["x"][0], other["n"]["b"][0]) == (1, 2)


class TestFunctional:
    def test_a_tree_comes_back_without_any_state(self, tmp_path):
        tree = {"params": [np.arange(3.0), (1, "x")], "none": None}
        with open_run(tmp_path, {}) as ckpt:
            assert ckpt.load() is None
            ckpt.save(step=1, tree=tree)

        with open_run(tmp_path, {}) as ckpt:
            found = ckpt.load()

        assert found["params"][0].tolist() == [0, 1, 2]
        assert found["params"][1] == (1, "x")
        assert found["none"] is None

    def test_a_run_can_be_read_without_a_writer(self, tmp_path):
        make_run(tmp_path, 1, 2)

        tree = holdfast.load(tmp_path / "run", 1)

        assert (tree["w"] == 1).all()
        assert tree["progress"] == {"step": 1}

    def test_a_single_leaf_can_be_read_without_the_rest(self, tmp_path):
        ids = make_run(tmp_path, 1)
        flip_bit(shard_of(tmp_path, ids[0]), 100)

        assert holdfast.load(tmp_path / "run", only="progress.step") == 1

    def test_reading_leaves_no_trace(self, tmp_path):
        ids = make_run(tmp_path, 1, 2)
        flip_bit(shard_of(tmp_path, ids[1]), 5000)
        before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*")}

        tree = holdfast.load(tmp_path / "run")

        assert tree["progress"] == {"step": 1}
        assert {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*")} == before

    def test_a_named_checkpoint_that_is_damaged_is_not_replaced_by_another(self, tmp_path):
        ids = make_run(tmp_path, 1, 2)
        flip_bit(shard_of(tmp_path, ids[1]), 5000)

        for which in (2, ids[1]):
            with pytest.raises(holdfast.RestoreError, match="chunk 0 differs"):
                holdfast.load(tmp_path / "run", which)

    def test_an_empty_run_has_nothing_to_load(self, tmp_path):
        open_run(tmp_path).close()

        with pytest.raises(holdfast.NoCheckpointError):
            holdfast.load(tmp_path / "run")


class TestDocuments:
    def test_a_restore_says_what_drifted(self, tmp_path, caplog):
        with open_run(tmp_path, hyperparameters={"lr": 0.1, "layers": [1, 2]}) as ckpt:
            ckpt.save(step=1)

        with open_run(tmp_path, hyperparameters={"lr": 0.2, "layers": [1, 2]}) as ckpt:
            with caplog.at_level(logging.INFO, "holdfast"):
                restored = ckpt.restore()

        assert [str(drift) for drift in restored.drift] == ["hyperparameters.lr: 0.1 → 0.2"]
        assert "0.1 → 0.2" in caplog.text

    def test_no_secret_of_the_environment_reaches_the_disk(self, tmp_path, monkeypatch):
        monkeypatch.setenv("MY_TOKEN", "hunter2-canary")
        monkeypatch.setattr("sys.argv", ["train.py", "--password", "argv-canary"])
        make_run(tmp_path, 1)

        written = b"".join(p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file())

        assert b"canary" not in written

    def test_pickle_takes_the_opt_in_on_both_sides(self, tmp_path):
        state = {"box": {"odd": complex}}
        with open_run(tmp_path, state, pickle=True) as ckpt:
            ckpt.save(step=1)
        assert b'"pickle":true' in next((tmp_path / "run").glob("*/manifest.json")).read_bytes()

        with open_run(tmp_path, {"box": {}}) as ckpt, pytest.raises(holdfast.StateMismatchError, match="pickle"):
            ckpt.restore()
        loaded = {"box": {}}
        with open_run(tmp_path, loaded, pickle=True) as ckpt:
            ckpt.restore()

        assert loaded["box"] == {"odd": complex}


@pytest.mark.parametrize(
    "place", ["s3://bucket/run", Path("s3://bucket/run"), "root://eos.example//run", "~/runs/x", "~colleague/run"]
)
def test_a_place_that_is_no_directory_is_not_made_into_one(tmp_path, monkeypatch, place):
    """Or checkpoints would be called durable that lie on the disk of one node (I8)."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(holdfast.UsageError, match=re.escape(str(place))):
        holdfast.Checkpointer(place, {"w": np.zeros(1)}, background="off")

    assert list(tmp_path.iterdir()) == []


class _Unseeing(holdfast.Trigger):
    """One of a program that does not say what it looks at."""

    watches = None

    def decide(self, moment):
        return holdfast.Decision(due=False, reason=str(moment.step))


@pytest.mark.parametrize(
    "call",
    [
        lambda run: holdfast.Checkpointer(run, signals=True),
        lambda run: holdfast.Checkpointer(run, every=holdfast.auto),
        lambda run: holdfast.Checkpointer(run, every=_Unseeing()),
        lambda run: holdfast.Checkpointer(run, every=_Unseeing() | holdfast.on_stop()),
        lambda run: holdfast.Checkpointer(run, signals=signal.SIGUSR1),
        lambda run: holdfast.Checkpointer(run, tags=np.array(3)),
        lambda run: holdfast.Checkpointer(run, time_left=np.array([1.0, 2.0])),
        lambda run: holdfast.Checkpointer(run, background="off").save(step=torch.tensor(1.5), tree={}),
    ],
)
def test_values_of_another_kind_are_refused_in_our_own_words(tmp_path, call):
    with pytest.raises(holdfast.UsageError):
        call(tmp_path / "run")
