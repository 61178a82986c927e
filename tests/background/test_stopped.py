"""Either process stands still for a minute (SIGSTOP, a suspended job): that is neither a death nor a loss."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import holdfast
from holdfast import Checkpointer
from tests.background.rig import Program, agents_of, arenas, command_of, events, garbage, steps, until

MINUTE_S = 60

# Much less than a minute, and more than a busy machine takes.
PATIENCE = """
from holdfast.agent import background
background._PATIENCE_S = 20.0
"""

TRAIN_NOW = (
    PATIENCE
    + """
w = np.random.default_rng(1).standard_normal(4 << 20)
ckpt = Checkpointer(RUN, {"w": w}, keep=holdfast.KEEP_ALL)
for step in range(12):
    w += 1
    say("step", step)
    assert ckpt.save(step=step).error is None
"""
)

TRAIN_OVERLAPPED = (
    PATIENCE
    + """
import torch
torch.set_num_threads(1)
parameter = torch.nn.Parameter(torch.zeros(4 << 20))
optimizer = torch.optim.SGD([parameter], lr=1.0)
parameter.grad = torch.full_like(parameter, -1.0)
state = {"w": parameter, "optimizer": optimizer}
ckpt = Checkpointer(RUN, state, keep=holdfast.KEEP_ALL, capture="overlapped")
for step in range(12):
    optimizer.step()
    say("step", step)
    assert ckpt.save(step=step).error is None
"""
)

END = """
ckpt.wait(60)
status = ckpt.status()
ckpt.close()
say("end", status.durable_step, status.saved, status.failed, status.skipped)
"""


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")


@pytest.mark.slow
def test_a_training_whose_agent_is_stopped_for_a_minute_is_held_up_once_and_saves_again_after_it(
    run, root, usual_patience, caplog
):
    weights = np.zeros(1000)
    with Checkpointer(run, {"w": weights}, background="process", every=1, keep=holdfast.KEEP_ALL) as ckpt:
        assert ckpt.step().wait(60)
        (agent,) = agents_of(os.getpid())
        stop(agent)
        try:
            left_out, refused = 0, []
            end_s = time.monotonic() + MINUTE_S
            while time.monotonic() < end_s:
                weights += 1
                if ckpt.step() is None:
                    left_out += 1
                if left_out % 20 == 1:  # now and then one that the program itself wants
                    pending = ckpt.save(step=ckpt.status().staged_step)
                    refused += [pending] if pending.error is not None else []
                time.sleep(0.05)
            stopped = ckpt.status()
        finally:
            os.kill(agent, signal.SIGCONT)
        last_staged = stopped.staged_step
        until(lambda: ckpt.status().durable_step == last_staged)
        until(lambda: ckpt.status().doing == "agent idle")
        assert ckpt.step().wait(60)
        resumed = ckpt.status()

    # Two places in memory were filled, then all were left out, or refused with a reason.
    assert (stopped.durable_step, stopped.saved, stopped.skipped) == (1, 3, left_out)
    assert left_out > 100
    assert len(refused) > 5
    assert all("no sign of life" in pending.error.message for pending in refused)
    assert stopped.doing == "writing step 2: 0 %, 1 waiting"
    # A second is promised, for all of them together; the rest is for a machine that is busy.
    assert stopped.stall_s < 5
    assert (resumed.saved, resumed.failed) == (4, len(refused))
    assert agents_of(os.getpid()) == []
    assert not events(run, "agent_lost")
    assert len(events(run, "save_failed")) == len(refused)
    assert steps(run) == [1, 2, last_staged, resumed.durable_step]
    assert (holdfast.load(run)["w"] == weights).all()
    assert garbage(run) == []
    assert arenas(root) == []


@pytest.mark.slow
@pytest.mark.parametrize("code", [TRAIN_NOW, TRAIN_OVERLAPPED], ids=["now", "overlapped"])
def test_a_training_that_is_stopped_for_a_minute_loses_nothing_and_takes_nobody_for_dead(run, root, code):
    if code is TRAIN_OVERLAPPED:
        pytest.importorskip("torch")
    with Program(code + END, run, root) as program:
        for _ in range(5):
            program.hear("step")
        (agent,) = agents_of(program.pid)
        stop(program.pid)
        time.sleep(MINUTE_S)
        was_there = b"holdfast.agent" in command_of(agent)
        staged = [event["step"] for event in events(run, "committed")]
        program.kill(signal.SIGCONT)
        status, out, err = program.end()

    assert was_there
    assert staged[-1] >= 2  # the agent wrote on
    assert (status, err) == (0, "")
    assert out.splitlines()[-1] == "end 11 12 0 0"
    assert not events(run, "agent_lost")
    assert not events(run, "save_failed")
    assert steps(run) == list(range(12))
    assert garbage(run) == []
    assert arenas(root) == []


WAITS_FOR_A_PLACE = """
from holdfast.agent import background
background._BUSY_DEADLINE_S = 3.0
w = np.zeros(8 << 20)
ckpt = Checkpointer(RUN, {"w": w})
for step in range(16):
    w += 1
    say("step", step)
    assert ckpt.save(step=step).error is None
"""

WAITS_FOR_A_COPY = """
import torch
from holdfast.engine.gate import Gate
Gate.__init__.__kwdefaults__["deadline_s"] = 3.0
torch.set_num_threads(1)
parameter = torch.nn.Parameter(torch.zeros(48 << 20))
parameter.grad = torch.full_like(parameter, -1.0)
optimizer = torch.optim.SGD([parameter], lr=1.0)
ckpt = Checkpointer(RUN, {"w": parameter, "optimizer": optimizer}, capture="overlapped")
ckpt.save(step=0).wait(60)
for step in range(1, 7):
    pending = ckpt.save(step=step)
    say("step", step)
    optimizer.step()
    pending.wait(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("code", "apart"), [(WAITS_FOR_A_PLACE, 4), (WAITS_FOR_A_COPY, 2)], ids=["place", "copy"])
def test_time_in_which_the_training_is_stopped_does_not_count_against_a_save(run, root, code, apart):
    if code is WAITS_FOR_A_COPY:
        pytest.importorskip("torch")
    with Program(code + "ckpt.close()\n", run, root) as program:
        for _ in range(2):
            for _ in range(apart):
                program.hear("step")
            time.sleep(0.01)  # it waits by now, most of the time
            stop(program.pid)
            time.sleep(4)  # longer than the deadline of the program above
            program.kill(signal.SIGCONT)
        status, _, err = program.end()

    assert (status, err) == (0, "")
