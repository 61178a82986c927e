"""Children of a training process: they neither use nor keep what belongs to their parent."""

import os
import subprocess
import sys

import numpy as np
import pytest

from holdfast import Checkpointer
from tests.background.rig import PATH, Program, arenas, run_program, steps, until


def run_script(script: object, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": PATH},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


USED_IN_A_CHILD = """
import threading
w = np.zeros(1000)
ckpt = Checkpointer(RUN, {"w": w}, every=1)
pending = ckpt.save(step=1)
inside, leave = threading.Event(), threading.Event()
def hold():
    with ckpt._lock, ckpt._stager.background._changed:
        inside.set(); leave.wait()
threading.Thread(target=hold).start(); inside.wait()  # a fork in the middle of a save
child = os.fork()
if child == 0:
    refused = 0
    uses = [lambda: ckpt.save(step=2), lambda: ckpt.step(), lambda: ckpt.restore(), lambda: ckpt.wait(), ckpt.status,
            lambda: ckpt.load(), ckpt.checkpoints, ckpt.pin, ckpt.prune]
    for use in uses:
        try:
            use()
        except holdfast.UsageError as error:
            refused += "forked child" in str(error)
    ckpt.close()
    links = [os.readlink(f"/proc/self/fd/{name}") for name in range(3, 64) if os.path.exists(f"/proc/self/fd/{name}")]
    kept = [link for link in links if "holdfast" in link or "socket:" in link or "eventfd" in link]
    mapped = [line for line in open("/proc/self/maps") if str(ROOT) in line]
    say("child", refused == len(uses), kept, mapped)
    sys.exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
leave.set()
ckpt.save(step=3).wait(60)
ckpt.close()
say("parent", status)
"""


def test_a_forked_child_may_not_use_it_and_ends_well(run, root):
    out = run_program(USED_IN_A_CHILD, run, root)
    assert out.splitlines() == ["child True [] []", "parent 0"]
    assert steps(run) == [1, 3]
    assert arenas(root) == []


def test_a_child_that_outlives_the_training_keeps_neither_agent_nor_run(run, root):
    code = """
w = np.zeros(1000)
ckpt = Checkpointer(RUN, {"w": w})
ckpt.save(step=1)
child = os.fork()
if child == 0:
    time.sleep(3600)
ckpt.save(step=2)
say("forked", child, *agents_of(os.getpid()))
hear()
"""
    with Program(code, run, root) as program:
        child, agent = map(int, program.hear("forked"))
        program.kill()
        until(lambda: not os.path.exists(f"/proc/{agent}"))
        weights = np.zeros(1000)
        with Checkpointer(run, {"w": weights}, background="process") as ckpt:
            assert ckpt.restore().step == 2
            ckpt.save(step=3)
        assert os.path.exists(f"/proc/{child}")
    assert arenas(root) == []


def test_a_fork_in_the_middle_of_a_capture_harms_neither_side(run, root):
    out = run_program(
        """
import threading
w = np.random.default_rng(1).standard_normal(8 << 20)
ckpt = Checkpointer(RUN, {"w": w}, keep=holdfast.KEEP_ALL)
ckpt.save(step=0).wait(60)
done = threading.Event()
def fork():
    while not done.is_set():
        child = os.fork()
        if child == 0:
            os._exit(0 if ckpt._stager.background.arena.slots == [] else 1)
        assert os.waitpid(child, 0)[1] == 0
        say("forked")
thread = threading.Thread(target=fork); thread.start()
for step in range(1, 6):
    ckpt.save(step=step)
ckpt.wait(60)
done.set(); thread.join()
found = holdfast.load(RUN)
say("same", (found["w"] == w).all())
ckpt.close()
""",
        run,
        root,
    )
    assert out.splitlines()[-1] == "same True"
    assert "forked" in out
    assert steps(run) == list(range(6))


def test_workers_of_multiprocessing_come_and_go(tmp_path, root):
    script = tmp_path / "script.py"
    script.write_text("""
import multiprocessing, sys
from pathlib import Path
import numpy as np
from holdfast import Checkpointer
from tests.background.rig import use_root

def double(x):
    return 2 * x

def train(run, root):
    use_root(Path(root))
    with Checkpointer(run, {"w": np.ones(10)}, background="process") as own:
        own.save(step=5).wait(60)

if __name__ == "__main__":
    run, root = sys.argv[1:]
    use_root(Path(root))
    with Checkpointer(run, {"w": np.zeros(1000)}, background="process") as ckpt:
        ckpt.save(step=1)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            for step in range(2, 8):
                assert pool.map(double, range(4)) == [0, 2, 4, 6]
                ckpt.save(step=step)
        for method in ("spawn", "fork"):
            process = multiprocessing.get_context(method).Process(target=train, args=(f"{run}-{method}", root))
            process.start()
            ckpt.save(step=step + 1)
            process.join(60)
            assert process.exitcode == 0, (method, process.exitcode)
    print("done")
""")
    run = tmp_path / "run"
    out = run_script(script, run, root)
    assert out == "done\n"
    assert steps(run) == [7, 8, 8]
    assert steps(tmp_path / "run-spawn") == steps(tmp_path / "run-fork") == [5]
    assert arenas(root) == []


def test_workers_of_a_data_loader_come_and_go(run, root):
    pytest.importorskip("torch")
    out = run_program(
        """
import torch
torch.set_num_threads(1)
data = torch.utils.data.TensorDataset(torch.arange(64.0))
model = torch.nn.Linear(1, 1)
step = 0
with Checkpointer(RUN, {"model": model}) as ckpt:
    for epoch in range(2):
        for (batch,) in torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, multiprocessing_context="fork"):
            step += 1
            assert ckpt.save(step=step, epoch=epoch).error is None
say("done", step)
""",
        run,
        root,
    )
    assert out == "done 16\n"
    assert steps(run) == [14, 15, 16]
    assert arenas(root) == []
