"""What a system refuses, and what a program does that nobody expects: clocks, limits, states and threads."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import holdfast
from holdfast import Checkpointer
from holdfast.agent.client import Agent
from tests.background.rig import PATH, Program, arenas, events, garbage, run_program, steps

# Every look at the clock finds it an hour earlier than the one before.
BACKWARDS = """
import sys, time
from itertools import count
now_s, looks = time.time(), count()
time.time = lambda: now_s - 3600 * next(looks)
from holdfast.agent.main import run
run(sys.argv[1:])
"""


def test_an_agent_whose_clock_goes_backwards_writes_in_order_and_keeps_the_newest(run, root, monkeypatch):
    monkeypatch.setitem(Agent.__init__.__kwdefaults__, "program", ("-c", BACKWARDS))
    weights = np.zeros(1000)
    with Checkpointer(run, {"w": weights}, background="process") as ckpt:
        for step in range(6):
            weights[:] = step
            ckpt.save(step=step).wait(60)
    kept = steps(run)

    with Checkpointer(run, {"w": weights}, background="process") as ckpt:
        restored = ckpt.restore()
    written = [event["time"] for event in events(run, "committed")]
    assert written == sorted(written, reverse=True) != sorted(written)
    assert kept == [3, 4, 5]
    assert (restored.step, weights[0]) == (5, 5)


def test_states_may_change_their_size_type_and_leaves_between_overlapped_saves(run, root):
    torch = pytest.importorskip("torch")
    torch.manual_seed(1)

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(1000))

    def grow() -> None:
        model.weight = torch.nn.Parameter(torch.randn(700_000))

    def shrink_and_halve() -> None:
        model.weight = torch.nn.Parameter(torch.randn(10, dtype=torch.bfloat16))

    def add() -> None:
        model.second = torch.nn.Parameter(torch.randn(3, 3))
        extra["count"] = torch.arange(5)

    def become_plain() -> None:
        del model.second
        extra["count"] = 5

    def delete() -> None:
        del extra["count"]

    def resize_in_place() -> None:
        with torch.no_grad():
            model.weight.data = torch.randn(2000, dtype=torch.float64)

    def step_of_optimizer() -> None:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()

    model, extra = Module(), {}
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    state = {"model": model, "optimizer": optimizer, "extra": extra}
    expected = {}
    with Checkpointer(run, state, background="process", capture="overlapped", keep=holdfast.KEEP_ALL) as ckpt:
        changes = [lambda: None, grow, shrink_and_halve, add, become_plain, delete, resize_in_place, lambda: None]
        for step, change in enumerate(changes):
            with ckpt.updating():
                change()
                optimizer.state.clear()
                optimizer.param_groups[0]["params"] = list(model.parameters())
            step_of_optimizer()
            weights = {name: value.clone() for name, value in model.state_dict().items()}
            moments = optimizer.state[model.weight]["exp_avg"].clone()
            expected[step] = weights, moments, dict(extra)
            assert ckpt.save(step=step).error is None
            step_of_optimizer()  # waits for the copy, and is not in it
        ckpt.wait(60)

    for step, (weights, moments, others) in expected.items():
        found = holdfast.load(run, step)
        assert found["model"].keys() == weights.keys()
        assert all(same(found["model"][name], weight) for name, weight in weights.items())
        assert same(found["optimizer"]["state"][0]["exp_avg"], moments)
        assert repr(found["extra"]) == repr(others)
    assert steps(run) == list(range(len(changes)))
    assert arenas(root) == []


def same(found: object, expected: object) -> bool:
    """The same bits, of the same type and shape."""
    import torch

    return found.dtype == expected.dtype and torch.equal(found, expected)


def test_a_fork_in_the_middle_of_an_overlapped_capture_harms_neither_side(run, root):
    pytest.importorskip("torch")
    out = run_program(
        """
import threading
import torch
torch.set_num_threads(1)
parameter = torch.nn.Parameter(torch.zeros(16 << 20))
parameter.grad = torch.full_like(parameter, -1.0)
optimizer = torch.optim.SGD([parameter], lr=1.0)
ckpt = Checkpointer(RUN, {"w": parameter, "optimizer": optimizer}, capture="overlapped", keep=holdfast.KEEP_ALL)
ckpt.save(step=0).wait(60)
meanwhile = 0
for step in range(1, 6):
    optimizer.step()
    pending = ckpt.save(step=step)
    child = os.fork()
    if child == 0:
        # Its copy of the program goes on computing, and neither waits for a copier that is not there, nor saves.
        with torch.no_grad():
            parameter[:10] = -1
        try:
            ckpt.save(step=99)
        except holdfast.UsageError:
            os._exit(0)
        os._exit(1)
    meanwhile += not pending.staged
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
ckpt.wait(60)
ckpt.close()
say("same", meanwhile, *[bool((holdfast.load(RUN, step)["w"] == step).all()) for step in range(6)])
""",
        run,
        root,
    )
    word, meanwhile, *found = out.split()
    assert (word, found) == ("same", ["True"] * 6)
    assert int(meanwhile) > 0, "no fork came in the middle"
    assert steps(run) == list(range(6))
    assert arenas(root) == []


def test_threads_that_save_without_a_word_to_each_other_are_served_one_after_the_other(run, root):
    out = run_program(
        """
import threading
w = np.zeros(200_000)
with Checkpointer(RUN, {"w": w}, keep=holdfast.KEEP_ALL) as ckpt:
    saved, refused = [], []
    def work(number):
        for step in range(10):
            try:
                saved.append(ckpt.save(step=step, metrics={"thread": number}))
            except holdfast.UsageError:  # another one was faster: steps do not go backwards
                refused.append(step)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    ids = {pending.wait(60) for pending in saved}
    status = ckpt.status()
say(len(saved) + len(refused), len(ids) == len(saved), status.saved == len(saved), status.failed, status.durable_step)
""",
        run,
        root,
    )
    assert out.split() == ["40", "True", "True", "0", "9"]
    assert garbage(run) == []
    assert arenas(root) == []


NO_THREADS = """
import resource
w = np.arange(4 << 20, dtype=np.float64)
soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
def limit():
    resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))
if MOMENT == "before it is made":
    limit()
ckpt = Checkpointer(RUN, {"w": w}, background=BACKGROUND)
if MOMENT == "between saves":
    ckpt.save(step=0).wait(60)
    limit()
for step in (1, 2):
    w += 1
    ckpt.save(step=step).wait(60)
w[:] = 0
say("restored", ckpt.restore().step, w[0])
ckpt.close()
"""


def limited(code: str, run: Path, root: Path) -> str:
    """What a program said in which limits of processes and threads hold: root has none."""
    program = f"from tests.background import rig; exec(rig._PRELUDE + {code!r})"
    command = [sys.executable, "-c", program, str(run), str(root)]
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv not found: for root there is no limit of threads")
        command = ["setpriv", "--ruid", "65534", "--bounding-set=-sys_resource,-sys_admin", *command]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": PATH, "HOLDFAST_BACKGROUND": "process"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("moment", ["before it is made", "between saves"])
@pytest.mark.parametrize("background", ["process", "thread", "off"])
def test_where_no_more_threads_can_be_had_it_saves_and_restores_with_those_it_has(run, root, moment, background):
    out = limited(f"MOMENT, BACKGROUND = {moment!r}, {background!r}\n" + NO_THREADS, run, root)

    assert out == "restored 2 2.0\n"
    assert steps(run)[-1] == 2
    assert arenas(root) == []


@pytest.mark.parametrize("log_s", [0.0, 1.0])
def test_where_neither_agent_nor_thread_can_be_had_the_end_tells_and_memory_stays(run, root, log_s):
    """However long somebody who logs takes to say it: what is not told yet has not been settled (I8)."""
    code = f"""
import logging, threading
from holdfast.agent import client
class Slow(logging.Handler):
    def emit(self, record):
        time.sleep({log_s})
logging.getLogger("holdfast").addHandler(Slow())
def no_more(*_, **__):
    raise RuntimeError("can't start new thread")
ckpt = Checkpointer(RUN, {{"w": np.zeros(1000)}}, every=None)
ckpt.save(step=1).wait(60)
agent = agents_of(os.getpid())[0]
os.kill(agent, signal.SIGSTOP)
pending = ckpt.save(step=2)
client.MAX_DEATHS, client.Work = 1, no_more
threading.Timer(0.3, lambda: os.kill(agent, signal.SIGKILL)).start()
try:
    ckpt.close()
except holdfast.SaveFailedError:
    say("told", pending.durable)
"""
    with Program(code, run, root) as program:
        assert program.hear("told") == ["False"]
        program.end()

    assert steps(run) == [1]
    assert len(arenas(root)) == 1
    with holdfast.Checkpointer(run, {"w": np.zeros(1000)}, background="process") as ckpt:
        assert ckpt.restore().step == 2


def test_one_that_is_complete_when_nobody_writes_any_more_stays_in_memory(run, root, monkeypatch):
    weights = np.zeros(1000)
    ckpt = holdfast.Checkpointer(run, {"w": weights}, background="process", every=None)
    ckpt.save(step=1).wait(60)
    weights[:] = 2
    monkeypatch.setattr(ckpt._stager.background, "_is_broken", True)
    monkeypatch.setattr(ckpt._stager.background, "has_room", lambda _: True)  # it broke after this was asked

    ckpt.save(step=2)
    with pytest.raises(holdfast.SaveFailedError):
        ckpt.close()

    assert steps(run) == [1]
    with holdfast.Checkpointer(run, {"w": weights}, background="process") as ckpt:
        weights[:] = 0
        assert (ckpt.restore().step, weights[0]) == (2, 2)
