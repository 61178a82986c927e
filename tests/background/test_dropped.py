"""A Checkpointer that a program lets go without closing it: what is on its way becomes durable, the run is let go."""

import gc
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import holdfast
from holdfast.agent import exiting
from tests.background.rig import PATH, Program, agents_of, arenas, events, steps, until

_EXIT_NOT_DURABLE = 74
_DESCRIPTORS = "/proc/self/fd"
_LOSES_ITS_LAST = """
import shutil
def main():
    ckpt = Checkpointer(f"{RUN}-before", {"w": np.zeros(1000)})
    ckpt.save(step=1).wait(60)
    shutil.rmtree(f"{RUN}-before")
    ckpt.save(step=2)
main()
"""


@pytest.mark.parametrize("end", ["", "sys.exit(0)"], ids=["returns", "exits"])
@pytest.mark.parametrize("background", ["process", "thread"])
def test_a_function_that_makes_it_and_ends_has_its_last_checkpoint(run, root, background, end):
    code = f"""
def main():
    ckpt = Checkpointer(RUN, {{"w": np.zeros(3_000_000)}}, background={background!r})
    for step in range(3):
        ckpt.save(step=step)
    {end}
main()
"""
    with Program(code, run, root) as program:
        status, _, err = program.end()

    assert (status, err) == (0, "")
    assert steps(run) == [0, 1, 2]
    assert arenas(root) == []
    assert events(run)[-1]["event"] == "closed"


@pytest.mark.parametrize("background", ["process", "thread", "off"])
def test_a_function_whose_last_checkpoint_failed_does_not_let_the_program_end_well(run, root, background):
    code = f"""
import shutil
def main():
    ckpt = Checkpointer(RUN, {{"w": np.zeros(1000)}}, background={background!r})
    ckpt.save(step=1).wait(60)
    shutil.rmtree(RUN)
    ckpt.save(step=2)
main()
say("goes on")
"""
    with Program(code, run, root) as program:
        program.hear("goes")
        status, _, err = program.end()

    assert status == _EXIT_NOT_DURABLE
    assert "the last checkpoint (step 2) did not become durable" in err


def test_one_whose_last_checkpoint_failed_does_not_keep_a_stopped_program_from_coming_back(run, root):
    code = (
        _LOSES_ITS_LAST
        + """
ckpt = Checkpointer(RUN, {"w": np.zeros(1000)}, every=None)
ckpt.step()
ckpt.stop("preempted")
ckpt.step()
"""
    )
    with Program(code, run, root) as program:
        status, _, err = program.end()

    assert status == 85
    assert "the last checkpoint (step 2) did not become durable" in err
    assert steps(run) == [2]


def test_one_whose_last_checkpoint_failed_does_not_let_a_program_end_well_that_has_caught_its_stop(run, root):
    code = (
        _LOSES_ITS_LAST
        + """
ckpt = Checkpointer(RUN, {"w": np.zeros(1000)}, every=None)
ckpt.stop("preempted")
try:
    ckpt.step()
except SystemExit:
    pass
"""
    )
    with Program(code, run, root) as program:
        status, _, err = program.end()

    # Which of the two depends on whether it was noticed in time that the stop was caught.
    assert status in (_EXIT_NOT_DURABLE, 85)
    assert "the last checkpoint (step 2) did not become durable" in err


def test_one_that_was_replaced_does_not_ask_for_a_restart_though_another_one_has_failed(run, root):
    code = (
        _LOSES_ITS_LAST
        + """
from holdfast.core.clock import SystemClock
from holdfast.engine.attempts import begin_attempt
from holdfast.storage.posix import PosixStore
ckpt = Checkpointer(RUN, {"w": np.zeros(1000)}, every=None)
ckpt.step()
begin_attempt(PosixStore(RUN), SystemClock(), takeover=True)
ckpt.stop("preempted")
ckpt.step()
"""
    )
    with Program(code, run, root) as program:
        status, _, err = program.end()

    assert "FencedError" in err
    assert status == _EXIT_NOT_DURABLE


def test_a_signal_after_its_last_step_is_answered_by_what_the_program_trains_next(run, root):
    code = """
def main(run):
    ckpt = Checkpointer(run, {"w": np.zeros(10)}, every=None)
    ckpt.step()
    return ckpt
ckpt = main(RUN)
os.kill(os.getpid(), signal.SIGUSR1)
until(lambda: ckpt._pace.is_asked_to_stop)
del ckpt
main(f"{RUN}-next")
say("goes on")
"""
    with Program(code, run, root) as program:
        status, out, _ = program.end()

    assert (status, out) == (85, "")
    assert steps(run.with_name(f"{run.name}-next")) == [1]


def test_one_that_is_collected_by_a_thread_of_ours_is_finished(run, root, monkeypatch):
    """The collector finds a cycle in whatever thread allocates: here in one that holds the lock of its own event."""
    beats = root / "beats"
    beats.mkdir()
    monkeypatch.setenv("HOLDFAST_BEATS", str(beats))
    code = """
import gc, threading
gc.disable()
class Trainer:
    pass
trainer = Trainer()
trainer.me, trainer.ckpt = trainer, Checkpointer(RUN, {"w": np.zeros(10)}, every=None)
trainer.ckpt.save(step=1).wait(60)
real, begun, collected = threading._allocate_lock, [], []
def allocate():
    if threading.current_thread().name == "holdfast-beats" and not begun:
        begun.append(True)
        gc.collect()
        collected.append(True)
    return real()
del trainer
threading._allocate_lock = allocate
until(lambda: collected)
"""
    with Program(code, run, root) as program:
        status, _, err = program.end()

    assert (status, err) == (0, "")
    assert events(run)[-1]["event"] == "closed"


def _train(run: Path, step: int, background: Literal["process", "thread", "off"] = "process") -> None:
    ckpt = holdfast.Checkpointer(run, {"w": np.zeros(1000)}, background=background)
    ckpt.restore()
    ckpt.save(step=step)


@pytest.mark.parametrize("background", ["process", "thread", "off"])
def test_many_leave_nothing_behind_and_the_same_run_can_be_opened_at_once(run, root, background):
    _train(run, 0, background)
    exiting.wait_for_dropped()
    before = len(os.listdir(_DESCRIPTORS))
    for step in range(1, 6):
        _train(run, step, background)
    exiting.wait_for_dropped()
    gc.collect()

    assert steps(run) == [3, 4, 5]
    assert arenas(root) == []
    assert len(os.listdir(_DESCRIPTORS)) <= before
    until(lambda: not agents_of(os.getpid()))
    with holdfast.Checkpointer(run, {"w": np.zeros(1000)}, background="off") as ckpt:
        assert ckpt.restore().step == 5


def test_signals_are_let_go_at_once(run, root):
    _train(run, 1)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    exiting.wait_for_dropped()


def test_without_more_threads_it_is_finished_at_the_end(run, root):
    code = """
import _thread
from holdfast.agent import exiting
def no_more(*_):
    raise RuntimeError("can't start new thread")
def main():
    ckpt = Checkpointer(RUN, {"w": np.zeros(1000)})
    ckpt.save(step=1)
    _thread.start_new_thread = no_more
main()
assert len(exiting._dropped) == 1
"""
    with Program(code, run, root) as program:
        status, _, err = program.end()

    assert (status, err) == (0, "")
    assert steps(run) == [1]
    assert events(run)[-1]["event"] == "closed"


def test_a_child_does_not_wait_for_what_its_parent_has_let_go(run, root):
    code = """
from holdfast.agent import exiting
def main():
    ckpt = Checkpointer(RUN, {"w": np.zeros(1000)})
    ckpt.save(step=1)
    ckpt._lock.acquire()  # so that it cannot be finished yet
    return ckpt._lock
lock = main()
assert len(exiting._dropped) == 1
child = os.fork()
if not child:
    sys.exit(7)
say("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
lock.release()
"""
    with Program(code, run, root) as program:
        assert program.hear("child") == ["7"]
        status, _, err = program.end()

    assert (status, err) == (0, "")
    assert steps(run) == [1]


def test_one_that_could_not_be_made_is_no_matter(run, root):
    """Not even in the middle of a collection, where an exception would be printed."""
    run.mkdir()
    (run / "run.json").mkdir()
    code = (
        "import holdfast, sys\ntry:\n    holdfast.Checkpointer(sys.argv[1])\nexcept holdfast.HoldfastError:\n    pass"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(run)], env={**os.environ, "PYTHONPATH": PATH}, capture_output=True, text=True
    )
    shutil.rmtree(run)

    assert (done.returncode, done.stderr) == (0, "")
