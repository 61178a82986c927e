"""Storage that is full, hangs, or belongs to somebody else meanwhile; and how a program ends then."""

import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import holdfast
from holdfast import Checkpointer
from holdfast.core.errors import FencedError, NoSpaceError, RunError, SaveFailedError, StorageError
from holdfast.engine import failures
from holdfast.testing import FakeClock
from tests.background.rig import Program, agents_of, arenas, events, run_program, steps, until
from tests.crash.loop_image import LoopImage, why_not

EXIT_NOT_DURABLE = 74


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    reason = why_not() or ("" if shutil.which("fsfreeze") else "fsfreeze not found")
    if reason:
        pytest.skip(reason)
    with LoopImage("data=ordered") as image:
        yield Path(image.path)
        subprocess.run(["fsfreeze", "-u", image.path], capture_output=True, check=False)


def freeze(disk: Path) -> None:
    subprocess.run(["fsfreeze", "-f", str(disk)], check=True)


def thaw(disk: Path) -> None:
    subprocess.run(["fsfreeze", "-u", str(disk)], check=True)


def test_a_disk_that_hangs_costs_the_training_little_and_is_used_again_when_it_moves(disk, root):
    run = disk / "run"
    code = """
import time
w = np.zeros(1000)
ckpt = Checkpointer(RUN, {"w": w})
ckpt.save(step=0).wait(60)
from holdfast.agent import background
background._PATIENCE_S = 1.0
say("ready"); hear()
began = time.monotonic()
saves = [ckpt.save(step=step) for step in range(1, 31)]
say("stalled", time.monotonic() - began, sum(pending.error is not None for pending in saves)); hear()
saves[0].wait(60)
saves[1].wait(60)
ckpt.save(step=40).wait(60)
ckpt.close()
"""
    with Program(code, run, root) as program:
        program.hear("ready")
        freeze(disk)
        program.say()
        stall_s, skipped = map(float, program.hear("stalled"))
        print(f"30 saves with a disk that hangs: {stall_s:.2f} s")
        thaw(disk)
        program.say()
        status, _, err = program.end()
    assert (stall_s < 10, skipped) == (True, 28)
    assert "no sign of life" in err
    assert status == 0
    assert steps(run)[-1] == 40
    assert [event["step"] for event in events(run, "save_failed")] == list(range(3, 31))


def test_a_program_can_end_while_the_disk_hangs_and_goes_on_from_memory(disk, root):
    run = disk / "run"
    code = """
from holdfast.agent import staging
staging._CLOSE_PATIENCE_S = 0.5
w = np.zeros(1000)
ckpt = Checkpointer(RUN, {"w": w})
ckpt.save(step=0).wait(60)
say("ready", *agents_of(os.getpid())); hear()
w[:] = 7
ckpt.save(step=1)
try:
    ckpt.close()
except holdfast.SaveFailedError as error:
    say("closed", error.hint)
"""
    with Program(code, run, root) as program:
        (agent,) = map(int, program.hear("ready"))
        freeze(disk)
        program.say()
        assert "memory," in program.hear("closed")
        assert program.end()[0] == 0
        subprocess.run(["kill", "-9", str(agent)], check=True)
    thaw(disk)
    until(lambda: not Path(f"/proc/{agent}").exists())

    out = run_program(
        """
w = np.zeros(1000)
with Checkpointer(RUN, {"w": w}) as ckpt:
    say(ckpt.restore().step, w[0])
""",
        run,
        root,
    )
    assert out.split() == ["1", "7.0"]
    assert steps(run) == [0, 1]
    assert arenas(root) == []


def test_a_full_disk_is_told_everywhere_and_older_checkpoints_stay(disk, root):
    run = disk / "run"
    weights = np.zeros(200_000)
    ckpt = Checkpointer(run, {"w": weights}, background="process")
    ckpt.save(step=1).wait(60)
    filler = disk / "filler"
    subprocess.run(["fallocate", "-l", "17M", str(filler)], check=True)

    with pytest.raises(NoSpaceError):
        for step in range(2, 9):
            pending = ckpt.save(step=step)
            pending.wait(60)

    assert isinstance(pending.error, NoSpaceError)
    kept = steps(run)
    assert kept
    with pytest.raises(SaveFailedError, match="needs"):
        ckpt.close()
    assert [event["event"] for event in events(run) if event["event"] == "save_failed"]
    filler.unlink()
    again = np.ones(200_000)
    with Checkpointer(run, {"w": again}, background="process") as ckpt:
        # The failed one is still in memory.
        assert (ckpt.restore().step, again[0]) == (pending.step, 0)
    assert steps(run)[-1] == pending.step
    assert arenas(root) == []


def test_a_failed_save_in_the_only_slot_can_be_restored_and_made_durable_from_there(disk, root):
    run = disk / "run"
    weights = np.zeros(200_000)
    with Checkpointer(run, {"w": weights}, background="process", memory_bytes=2_000_000) as ckpt:
        ckpt.save(step=1).wait(60)
        subprocess.run(["fallocate", "-l", "19M", str(disk / "filler")], check=True)
        weights[:] = 2
        pending = ckpt.save(step=2)
        until(lambda: pending.settled)
        assert isinstance(pending.error, NoSpaceError)
        (disk / "filler").unlink()
        weights[:] = 3
        assert (ckpt.restore().step, weights[0]) == (2, 2)
        ckpt.wait(60)
    assert steps(run) == [1, 2]
    assert arenas(root) == []


def test_on_error_raise_raises_at_the_next_save(disk, root):
    weights = np.zeros(200_000)
    ckpt = Checkpointer(disk / "run", {"w": weights}, background="process", on_error="raise")
    ckpt.save(step=1).wait(60)
    subprocess.run(["fallocate", "-l", "19M", str(disk / "filler")], check=True)
    with pytest.raises(NoSpaceError):
        for step in range(2, 9):
            ckpt.save(step=step)
            ckpt._stager.settle()
    subprocess.run(["rm", str(disk / "filler")], check=True)
    ckpt.save(step=9).wait(60)
    ckpt.close()


def test_what_has_failed_is_on_its_way_until_that_was_told(disk, root, monkeypatch):
    """Else the save after the next would hear of it: a log may be slow."""
    monkeypatch.setattr(failures._log, "warning", lambda *_: time.sleep(0.5))
    weights = np.zeros(200_000)
    with Checkpointer(disk / "run", {"w": weights}, background="process", on_error="raise") as ckpt:
        subprocess.run(["fallocate", "-l", "19M", str(disk / "filler")], check=True)
        ckpt.save(step=1)
        ckpt._stager.settle()
        with pytest.raises(NoSpaceError):
            ckpt.save(step=2)
        (disk / "filler").unlink()
        ckpt.save(step=3).wait(60)


def _after_a_save_that_failed(run: Path, **options: object) -> Checkpointer:
    """One whose storage is well again, and that has not saved since."""
    ckpt = Checkpointer(run, {"w": np.ones(200_000)}, background="process", on_error="raise", **options)
    ckpt.step()
    ckpt.save().wait(60)
    agent = ckpt._stager.background._client.pid
    resource.prlimit(agent, resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    ckpt.step()
    assert ckpt.save().settle(60)
    resource.prlimit(agent, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    ckpt.step()
    return ckpt


@pytest.mark.parametrize("stopped", [True, False], ids=["asked to stop", "raises"])
def test_what_one_before_has_come_to_does_not_keep_the_last_one_from_being_saved(run, root, stopped):
    ckpt = _after_a_save_that_failed(run, every=holdfast.every(steps=1000) | holdfast.on_error(), on_stop="return")
    if stopped:
        ckpt.stop("please")
        ckpt.step()
        ckpt.close()
        assert steps(run) == [1, 4]
    else:
        with pytest.raises(ZeroDivisionError), ckpt:
            _ = 1 / 0
        assert steps(run) == [1, 3]


@pytest.mark.parametrize("end", ["ckpt.close()", "ckpt.stop(); ckpt.step()"], ids=["closes", "stops"])
def test_a_storage_that_pauses_while_two_are_on_their_way_has_the_last_one_all_the_same(run, root, end):
    code = f"""
import threading
from holdfast.agent import background
ckpt = Checkpointer(RUN, {{"w": np.zeros(1000)}}, every=1)
ckpt.step()
ckpt.wait(60)
background._PATIENCE_S = 0.1
agent = agents_of(os.getpid())[0]
os.kill(agent, signal.SIGSTOP)
for _ in range(3):
    ckpt.step()
threading.Timer(1.0, lambda: os.kill(agent, signal.SIGCONT)).start()
{end}
"""
    with Program(code, run, root) as program:
        status, _, err = program.end()

    assert "did not become durable" not in err
    assert (status, steps(run)) == ((0, [2, 3, 4]) if "close" in end else (85, [2, 3, 5]))


def test_a_storage_that_hangs_is_waited_for_once_by_all_that_closes(run, root, monkeypatch):
    """The last one waits until there is room for it, close() for all; neither begins anew."""
    patience_s = 1.0
    monkeypatch.setattr("holdfast.agent.staging._CLOSE_PATIENCE_S", patience_s)
    monkeypatch.setattr("holdfast.agent.background._PATIENCE_S", patience_s)
    ckpt = Checkpointer(run, {"w": np.zeros(1000)}, background="process", every=1)
    ckpt.step()
    ckpt.wait(60)
    (agent,) = agents_of(os.getpid())
    os.kill(agent, signal.SIGSTOP)
    for _ in range(3):
        ckpt.step()

    with pytest.raises(SaveFailedError):
        ckpt.close()

    os.kill(agent, signal.SIGCONT)
    assert ckpt._stager.background._waited_s < 2 * patience_s


def test_to_wait_for_those_before_it_is_no_cost_of_the_last_one(run, root, monkeypatch):
    """The profile is kept, and the next attempt would save less often for it."""
    clock = FakeClock()
    ckpt = Checkpointer(run, {"w": np.zeros(1000)}, background="process", every=1000, clock=clock)
    costs_s = []
    note_saved, settle = ckpt._pace.note_saved, ckpt._stager.settle
    monkeypatch.setattr(ckpt, "_is_full", lambda: True)
    monkeypatch.setattr(ckpt._stager, "settle", lambda *within_s: (clock.advance(60.0), settle(*within_s)))
    monkeypatch.setattr(ckpt._pace, "note_saved", lambda *a, **k: (costs_s.append(a[1]), note_saved(*a, **k)))
    ckpt.step()
    ckpt.stop("preempted")

    with pytest.raises(SystemExit):
        ckpt.step()

    assert costs_s == [0.0]


def test_it_is_raised_when_the_end_is_saved(run, root):
    ckpt = _after_a_save_that_failed(run, every="auto")
    with pytest.raises(StorageError, match="File too large"):
        ckpt.close()
    assert steps(run) == [1, 3]


@pytest.mark.parametrize(
    ("end", "status"), [("", 0), ("sys.exit(3)", 3), ("raise KeyboardInterrupt", -signal.SIGINT), ("1 / 0", 1)]
)
def test_a_program_that_ends_without_close_has_its_last_checkpoint(run, root, end, status):
    code = f"""
w = np.zeros(300_000)
ckpt = Checkpointer(RUN, {{"w": w}})
for step in range(3):
    ckpt.save(step=step)
{end}
"""
    with Program(code, run, root) as program:
        found, _, _ = program.end()
    assert found == status
    assert steps(run) == [0, 1, 2]
    assert arenas(root) == []
    assert events(run)[-1]["event"] == "closed"


def test_a_program_whose_last_checkpoint_failed_does_not_end_well(disk, root):
    code = """
w = np.zeros(200_000)
ckpt = Checkpointer(RUN, {"w": w})
ckpt.save(step=1).wait(60)
say("ready"); hear()
for step in range(2, 9):
    ckpt.save(step=step)
"""
    with Program(code, disk / "run", root) as program:
        program.hear("ready")
        subprocess.run(["fallocate", "-l", "19M", str(disk / "filler")], check=True)
        program.say()
        status, _, err = program.end()
    assert status == EXIT_NOT_DURABLE
    assert "the last checkpoint (step 8) did not become durable" in err
    assert steps(disk / "run")


def test_a_training_that_was_fenced_off_is_told_at_every_save(run, root):
    weights = np.zeros(1000)
    old = Checkpointer(run, {"w": weights}, background="process")
    old.save(step=1).wait(60)
    with Checkpointer(run, {"w": weights}, background="process", takeover=True) as new:
        new.restore()
        new.save(step=2).wait(60)
        pending = old.save(step=3)
        with pytest.raises(FencedError):
            pending.wait(60)
        for step in (4, 5):
            with pytest.raises(FencedError):
                old.save(step=step)
        with pytest.raises(SaveFailedError):
            old.close()
        new.save(step=6).wait(60)
    assert steps(run) == [1, 2, 6]


def kill_agents() -> None:
    """And wait until others have taken their place."""
    before = agents_of(os.getpid())
    for agent in before:
        os.kill(agent, signal.SIGKILL)
    until(lambda: agents_of(os.getpid()) and not set(agents_of(os.getpid())) & set(before))


def test_an_agent_that_is_started_again_does_not_follow_a_link_to_another_run(run, root, tmp_path):
    other = make_run(tmp_path / "other")
    run.mkdir(mode=0o700)
    (tmp_path / "latest").symlink_to(run)
    with Checkpointer(tmp_path / "latest", {"w": np.zeros(1000)}, background="process") as ckpt:
        ckpt.save(step=1).wait(60)
        (tmp_path / "latest").unlink()
        (tmp_path / "latest").symlink_to(tmp_path / "other")
        kill_agents()
        ckpt.save(step=2).wait(60)
    assert steps(run) == [1, 2]
    assert files(tmp_path / "other") == other


@pytest.mark.parametrize("is_copy", [False, True])
def test_an_agent_that_is_started_again_leaves_another_run_alone(run, root, tmp_path, is_copy):
    if is_copy:
        make_run(run)
        shutil.copytree(run, tmp_path / "other")
    else:
        make_run(tmp_path / "other")
    other = files(tmp_path / "other")
    ckpt = Checkpointer(run, {"w": np.zeros(1000)}, background="process")
    ckpt.restore()
    ckpt.save(step=2).wait(60)
    run.rename(tmp_path / "moved")
    (tmp_path / "other").rename(run)
    kill_agents()
    pending = ckpt.save(step=3)
    with pytest.raises(RunError, match="does not know attempt 2" if is_copy else "is another run by now"):
        pending.wait(60)
    assert files(run) == other
    with pytest.raises(SaveFailedError):
        ckpt.close()


def make_run(path: Path) -> dict[str, bytes]:
    """A run with a checkpoint, and its files."""
    with Checkpointer(path, {"w": np.zeros(1000)}, background="off") as ckpt:
        ckpt.save(step=1)
    return files(path)


def files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_run_directory_that_is_replaced_is_an_error_and_not_a_crash(run, root):
    weights = np.zeros(1000)
    ckpt = Checkpointer(run, {"w": weights}, background="process")
    ckpt.save(step=1).wait(60)
    shutil.rmtree(run)
    run.write_text("something else")
    pending = ckpt.save(step=2)
    until(lambda: pending.settled)
    assert pending.error is not None
    with pytest.raises(SaveFailedError):
        ckpt.close()
