"""A save in the background, from the copy to the durable checkpoint, in a process and in a thread."""

import logging
import os
from pathlib import Path

import numpy as np
import pytest

import holdfast
from holdfast import Checkpointer
from holdfast.core.errors import NoCheckpointError, RunBusyError, SaveFailedError, UsageError
from holdfast.testing import FakeClock
from tests.background.rig import agents_of, arenas, events, garbage, run_program, steps
from tests.descriptors import open_descriptors, wait_for_no_more


@pytest.fixture(params=["process", "thread"])
def background(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def weights() -> np.ndarray:
    return np.arange(1000, dtype=np.float64)


def test_a_save_is_staged_when_it_returns_and_durable_after_wait(run, root, background, weights):
    with Checkpointer(run, {"w": weights}, background=background) as ckpt:
        pending = ckpt.save(step=7, epoch=2, metrics={"loss": 0.5})
        was_staged = pending.staged
        weights[:] = -1
        checkpoint_id = pending.wait(60)

        assert was_staged
        assert (pending.durable, pending.settled, pending.error, pending.id) == (True, True, None, checkpoint_id)
        assert ckpt.status().durable_step == ckpt.status().staged_step == 7
        assert "durable: step 7" in str(ckpt.status())
        (found,) = ckpt.checkpoints()
    assert (found.id, found.step, found.epoch, dict(found.metrics)) == (checkpoint_id, 7, 2, {"loss": 0.5})
    assert [event["id"] for event in events(run, "committed")] == [checkpoint_id]
    assert holdfast.load(run)["w"].tolist() == list(range(1000))


def test_nothing_is_left_after_close(run, root, background, weights):
    before = open_descriptors()
    with Checkpointer(run, {"w": weights}, background=background) as ckpt:
        for step in range(5):
            ckpt.save(step=step)

    assert arenas(root) == []
    assert agents_of(os.getpid()) == []
    assert garbage(run) == []
    wait_for_no_more(before)


def test_retention_is_applied_by_the_agent(run, root, background, weights):
    with Checkpointer(run, {"w": weights}, background=background, keep=holdfast.keep(last=2)) as ckpt:
        for step in range(6):
            ckpt.save(step=step)

    assert steps(run) == [4, 5]
    assert len(events(run, "pruned")) >= 4


def test_close_makes_the_last_save_durable(run, root, background, weights):
    ckpt = Checkpointer(run, {"w": weights}, background=background)
    pending = ckpt.save(step=1)
    ckpt.close()

    assert pending.durable
    assert steps(run) == [1]
    assert events(run)[-1]["clean"] is True


def test_a_run_given_by_a_relative_path_is_found_by_the_agent(tmp_path, root, background, weights, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ckpt = Checkpointer("runs/one", {"w": weights}, background=background)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    ckpt.save(step=1).wait(60)

    ckpt.close()
    assert steps(tmp_path / "runs/one") == [1]


def test_two_in_one_process_save_side_by_side(tmp_path, root, background, weights):
    with Checkpointer(tmp_path / "a", {"w": weights}, background=background) as one:
        with Checkpointer(tmp_path / "b", {"w": weights + 1}, background=background) as other:
            for step in range(4):
                one.save(step=step)
                other.save(step=10 + step)

    assert steps(tmp_path / "a") == [1, 2, 3]
    assert steps(tmp_path / "b") == [11, 12, 13]
    assert holdfast.load(tmp_path / "b")["w"][0] == 1


def test_a_second_one_on_the_same_run_is_refused_and_the_first_goes_on(run, root, background, weights):
    with Checkpointer(run, {"w": weights}, background=background) as ckpt:
        ckpt.save(step=1)
        with pytest.raises(RunBusyError):
            Checkpointer(run, {"w": weights}, background=background)
        ckpt.save(step=2).wait(60)
    with Checkpointer(run, {"w": weights}, background=background) as ckpt:
        assert ckpt.restore().step == 2


def test_steps_are_counted_and_saved_when_due(run, root, background, weights):
    with Checkpointer(run, {"w": weights}, background=background, every=3, keep=holdfast.KEEP_ALL) as ckpt:
        saved = []
        for _ in range(9):
            pending = ckpt.step(loss=0.1)
            if pending is not None:
                saved.append(pending.step)
                pending.wait(60)

    assert saved == steps(run) == [3, 6, 9]


def test_states_may_change_their_size_type_and_leaves_between_saves(run, root, background):
    states = [
        {"a": np.zeros(10)},
        {"a": np.ones(3_000_000)},
        {"a": np.ones(10, dtype=np.int8)},
        {"a": "a text", "b": np.arange(5)},
        {"b": np.arange(6)},
        {"b": np.arange(900_000), "c": {"d": [np.float32(1)]}},
    ]
    with Checkpointer(run, background=background, keep=holdfast.KEEP_ALL) as ckpt:
        for step, state in enumerate(states):
            ckpt.save(step=step, tree=state)
        ckpt.wait(60)
        for step, state in enumerate(states):
            found = ckpt.load(step)
            assert repr(found) == repr(state)


def test_one_worker_is_enough(run, root, background):
    with Checkpointer(run, {"w": np.arange(3_000_000)}, background=background, workers=1) as ckpt:
        ckpt.save(step=1).wait(60)
        assert ckpt.restore().step == 1


def test_a_rollback_waits_for_the_save_on_its_way_and_goes_on_in_a_new_attempt(run, root, background, weights):
    with Checkpointer(run, {"w": weights}, background=background, keep=holdfast.KEEP_ALL) as ckpt:
        for step in (1, 2, 3):
            weights[:] = step
            pending = ckpt.save(step=step)
        restored = ckpt.restore(which=1)
        assert pending.durable
        assert (restored.step, weights[0], ckpt.attempt) == (1, 1, 2)
        weights[:] = 20
        ckpt.save(step=2).wait(60)
        assert ckpt.restore().step == 2
        assert weights[0] == 20
    with Checkpointer(run, {"w": weights}, background=background) as ckpt:
        assert ckpt.restore().step == 2
    assert weights[0] == 20


def test_a_rollback_reads_what_is_still_in_memory_from_there(run, root, background, weights):
    with Checkpointer(run, {"w": weights}, background=background) as ckpt:
        ckpt.save(step=1).wait(60)
        weights[:] = 0
        assert ckpt.restore().where == "memory"
    assert weights[5] == 5


def test_a_clock_that_jumps_changes_names_only(run, root, weights):
    clock = FakeClock()
    with Checkpointer(run, {"w": weights}, background="thread", clock=clock, keep=holdfast.KEEP_ALL) as ckpt:
        for step, jump_s in enumerate([0, 1e6, -3e6, 0.5, -1e7, 5e8]):
            clock.advance(jump_s)
            ckpt.save(step=step).wait(60)
        assert ckpt.restore().step == 5
    assert steps(run) == list(range(6))


def test_a_clock_that_jumps_is_no_matter_to_an_agent_process(run, root, weights):
    clock = FakeClock()
    with Checkpointer(run, {"w": weights}, background="process", clock=clock) as ckpt:
        for step, jump_s in enumerate([0, 1e6, -3e6]):
            clock.advance(jump_s)
            ckpt.save(step=step).wait(60)
    assert steps(run) == [0, 1, 2]


def test_saves_from_several_threads_are_all_made(run, root):
    out = run_program(
        """
import threading
w = np.zeros(1000)
with Checkpointer(RUN, {"w": w}, keep=holdfast.KEEP_ALL) as ckpt:
    lock, count, saved = threading.Lock(), iter(range(100)), []
    def work():
        for _ in range(5):
            with lock:
                saved.append(ckpt.save(step=next(count)))
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert all(pending.wait(60) for pending in saved)
say(len(saved))
""",
        run,
        root,
    )
    assert out.split() == ["20"]
    assert steps(run) == list(range(20))


def test_an_agent_that_cannot_be_started_is_replaced_by_one_thread(run, root, weights, monkeypatch, caplog):
    monkeypatch.setattr("sys.executable", "")
    with Checkpointer(run, {"w": weights}, background="process") as ckpt:
        ckpt.save(step=1).wait(60)
    monkeypatch.undo()

    # Whatever still held the attempt would make the next one wait for it.
    assert not [record for record in caplog.records if "waiting for the agent" in record.message]
    assert len([record for record in caplog.records if "by a thread" in record.message]) == 1
    assert steps(run) == [1]


def test_without_process_and_thread_saves_are_made_in_the_foreground(run, root, weights, monkeypatch, caplog):
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("sys.executable", "")
    monkeypatch.setattr("holdfast.agent.client.Work", refuse)
    with Checkpointer(run, {"w": weights}, background="process") as ckpt:
        for step in range(3):
            assert ckpt.save(step=step).durable
    assert steps(run) == [0, 1, 2]
    assert any("in the foreground" in record.message for record in caplog.records)


def test_a_wait_that_is_too_short_says_so(run, root, background, weights):
    with Checkpointer(run, {"w": weights}, background=background) as ckpt:
        ckpt.save(step=0).wait(60)
        with ckpt._stager.background._session.store.exclusive(1):  # nobody can commit now
            pending = ckpt.save(step=1)
            with pytest.raises(SaveFailedError, match="not durable yet"):
                pending.wait(0.05)
        pending.wait(60)


def test_bad_input_is_refused_before_anything_is_staged(run, root, background, weights):
    with Checkpointer(run, {"w": weights}, background=background) as ckpt:
        ckpt.save(step=5)
        with pytest.raises(UsageError):
            ckpt.save(step=4)
        with pytest.raises(NoCheckpointError):
            ckpt.restore(which=99)
        ckpt.save(step=6).wait(60)
    assert steps(run) == [5, 6]


def test_logging_is_quiet_when_all_goes_well(run, root, background, weights, caplog):
    with caplog.at_level(logging.INFO), Checkpointer(run, {"w": weights}, background=background) as ckpt:
        for step in range(3):
            ckpt.save(step=step)
    assert caplog.records == []


def test_the_copy_of_a_run_goes_its_own_way(tmp_path, root, weights):
    import shutil

    original, copy = tmp_path / "original", tmp_path / "copy"
    with Checkpointer(original, {"w": weights}, background="process") as ckpt:
        ckpt.save(step=1)
    shutil.copytree(original, copy)
    kill_after = """
w = np.full(1000, 9.0)
ckpt = Checkpointer(RUN, {"w": w}, keep=holdfast.keep(last=5))
ckpt.restore()
ckpt.save(step=500)
os.kill(os.getpid(), signal.SIGKILL)
"""
    from tests.background.rig import Program

    with Program(kill_after, original, root) as program:
        assert program.end()[0] < 0
    left = arenas(root)

    with Checkpointer(copy, {"w": weights}, background="process") as ckpt:
        assert ckpt.restore().step == 1
        ckpt.save(step=2).wait(60)

    assert left == arenas(root) != []
    assert isinstance(left[0], Path)
