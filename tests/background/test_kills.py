"""Either process is killed or stopped at any moment, and nothing is lost, doubled or left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import holdfast
from holdfast import Checkpointer
from tests.background.rig import PATH, Program, agents_of, arenas, events, garbage, run_program, steps, until

KILL_LOOP = Path(__file__).with_name("kill_loop.py")

KILLED_AFTER_SAVE = """
w = np.full(1000, 3.0)
ckpt = Checkpointer(RUN, {"w": w})
ckpt.save(step=1).wait(60)
(agent,) = agents_of(os.getpid())
os.kill(agent, signal.SIGSTOP)
w[:] = 4
ckpt.save(step=2)
say("saved", agent)
hear()
"""


def kill_again_and_again(run: Path, root: Path, cycles: int, seed: int) -> None:
    done = subprocess.run(
        [sys.executable, str(KILL_LOOP), str(run), str(root), str(cycles), str(seed)],
        env={**os.environ, "PYTHONPATH": PATH},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the training failed" not in done.stderr
    word, _, digest, expected = done.stdout.splitlines()[-1].split()
    assert word == "end"
    assert digest == expected


def test_a_training_killed_30_times_ends_with_the_same_bits_and_leaves_nothing(run, root):
    kill_again_and_again(run, root, 30, seed=1)


@pytest.mark.slow
def test_a_training_killed_1000_times_ends_with_the_same_bits_and_leaves_nothing(run, root):
    kill_again_and_again(run, root, 1000, seed=2)


def held(run: Path, stage: str) -> bool:
    """Whether the agent is at that stage with step 1, or past it."""
    match stage:
        case "order":
            return True
        case "directory":
            return bool(list(run.glob("000000001-*")))
        case "shard":
            return any(shard.stat().st_blocks for shard in run.glob("000000001-*/rank-*"))
        case "commit":
            return bool(list(run.glob("000000001-*/manifest.json")))
        case "journal":
            return bool(events(run, "committed"))
    raise AssertionError(stage)


@pytest.mark.parametrize("stage", ["order", "directory", "shard", "commit", "journal"])
def test_an_agent_killed_at_any_stage_is_replaced_and_the_checkpoint_is_made_once(run, root, stage):
    weights = np.random.default_rng(1).standard_normal(4 << 20)
    with Checkpointer(run, {"w": weights}, background="process", keep=holdfast.KEEP_ALL) as ckpt:
        (agent,) = agents_of(os.getpid())
        os.kill(agent, signal.SIGSTOP)
        pending = ckpt.save(step=1)
        os.kill(agent, signal.SIGCONT)
        until(lambda: held(run, stage))
        os.kill(agent, signal.SIGSTOP)
        os.kill(agent, signal.SIGKILL)

        weights += 1
        following = ckpt.save(step=2)
        assert pending.wait(60)
        assert following.wait(60)
        until(lambda: events(run, "agent_lost"))
    (lost,) = events(run, "agent_lost")
    assert "SIGKILL" in lost["reason"]
    assert steps(run) == [1, 2]
    # An agent that dies between its entry in the journal and its report is not known to have written it.
    assert len({event.get("staged", event["id"]) for event in events(run, "committed")}) == 2
    with Checkpointer(run, {"w": weights}, background="process") as ckpt:
        assert ckpt.restore().step == 2
        ckpt.save(step=3)
    assert garbage(run) == []
    assert arenas(root) == []


def test_an_agent_that_dies_over_and_over_is_replaced_by_a_thread(run, root, caplog):
    with Checkpointer(run, {"w": np.zeros(1000)}, background="process") as ckpt:
        for deaths in (1, 2, 3):
            until(lambda: agents_of(os.getpid()))
            os.kill(agents_of(os.getpid())[0], signal.SIGKILL)
            until(lambda count=deaths: len(events(run, "agent_lost")) == count)
        until(lambda: "by a thread" in caplog.text)
        ckpt.save(step=1).wait(60)
    assert steps(run) == [1]


def test_a_checkpoint_that_was_made_under_a_second_name_is_not_made_again_from_memory(run, root):
    code = """
w = np.random.default_rng(1).standard_normal(4 << 20)
ckpt = Checkpointer(RUN, {"w": w})
(agent,) = agents_of(os.getpid())
pending = ckpt.save(step=1)
until(lambda: list(RUN.glob("000000001-*")))
os.kill(agent, signal.SIGKILL)
pending.wait(60)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with Program(code, run, root) as program:
        assert program.end()[0] == -signal.SIGKILL

    with Checkpointer(run, {"w": np.zeros(4 << 20)}, background="process") as ckpt:
        restored = ckpt.restore()
        assert (restored.step, restored.where) in [(1, "disk"), (1, "memory")]
    assert steps(run) == [1]


def test_a_stopped_agent_does_not_stop_the_training(run, usual_patience):
    with Checkpointer(run, {"w": np.zeros(1000)}, background="process") as ckpt:
        ckpt.save(step=0).wait(60)
        (agent,) = agents_of(os.getpid())
        os.kill(agent, signal.SIGSTOP)
        saves = [ckpt.save(step=step) for step in range(1, 10)]
        skipped = [pending.step for pending in saves if pending.error is not None]
        os.kill(agent, signal.SIGCONT)
        assert saves[1].wait(60)
        ckpt.save(step=10).wait(60)

    assert skipped == list(range(3, 10))
    assert not events(run, "agent_lost")
    assert [event["step"] for event in events(run, "save_failed")] == skipped
    assert steps(run)[-1] == 10


def test_a_training_that_is_stopped_for_a_while_goes_on(run, root):
    code = """
w = np.zeros(100_000)
ckpt = Checkpointer(RUN, {"w": w})
from holdfast.agent import background
background._PATIENCE_S = 5.0
say("ready")
for step in range(60):
    w += 1
    assert ckpt.save(step=step).error is None
ckpt.close()
"""
    with Program(code, run, root) as program:
        program.hear("ready")
        for _ in range(2):
            time.sleep(0.03)
            program.kill(signal.SIGSTOP)
            time.sleep(5.3)  # longer than the storage is waited for
            program.kill(signal.SIGCONT)
        status, _, err = program.end()
    assert (status, err) == (0, "")
    assert steps(run) == [57, 58, 59]


def test_what_only_memory_has_is_restored_and_made_durable(run, root):
    with Program(KILLED_AFTER_SAVE, run, root) as program:
        (agent,) = map(int, program.hear("saved"))
        program.kill()
    os.kill(agent, signal.SIGKILL)
    assert steps(run) == [1]

    weights = np.zeros(1000)
    with Checkpointer(run, {"w": weights}, background="process") as ckpt:
        restored = ckpt.restore()
        assert (restored.step, restored.where, weights[0]) == (2, "memory", 4)
        ckpt.wait(60)
        assert steps(run) == [1, 2]
        until(lambda: [path.name.split("-")[-2] for path in arenas(root)] == ["2"])
    assert arenas(root) == []

    weights[:] = 0
    with Checkpointer(run, {"w": weights}, background="process") as ckpt:
        assert ckpt.restore().where == "disk"
    assert weights[0] == 4


def test_the_next_attempt_waits_for_the_agent_that_still_writes(run, root):
    with Program(KILLED_AFTER_SAVE, run, root) as program:
        (agent,) = map(int, program.hear("saved"))
        program.kill()
    waker = subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -CONT {agent}"])
    out = run_program(
        """
ckpt = Checkpointer(RUN, {"w": np.zeros(1000)})
say(ckpt.restore().step, len(list(RUN.glob("0*/manifest.json"))))
""",
        run,
        root,
    )
    waker.wait()
    assert out.split() == ["2", "2"]
    until(lambda: not os.path.exists(f"/proc/{agent}"))


def test_a_start_that_comes_to_nothing_does_not_throw_away_what_memory_has(run, root):
    with Program(KILLED_AFTER_SAVE, run, root) as program:
        (agent,) = map(int, program.hear("saved"))
        program.kill()
    os.kill(agent, signal.SIGKILL)

    Checkpointer(run, {"w": np.zeros(1000)}, background="process").close()

    weights = np.zeros(1000)
    with Checkpointer(run, {"w": weights}, background="process") as ckpt:
        assert (ckpt.restore().step, weights[0]) == (2, 4)
    assert steps(run) == [1, 2]
    assert arenas(root) == []
