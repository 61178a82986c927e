"""A notebook, with a real kernel: cells that are interrupted and run again, kernels that are restarted and killed."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import holdfast
from tests.background.rig import DEADLINE_S, PATH, agents_of, arenas, events, garbage, steps, until

pytest.importorskip("ipykernel", reason="ipykernel is not installed: there is no kernel to try it with")
jupyter_client = pytest.importorskip("jupyter_client", reason="jupyter_client is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: nothing can run a notebook")
nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: nothing can run a notebook")

START = """
import os, sys, time
from pathlib import Path
import numpy as np
import holdfast
from tests.background.rig import agents_of, use_root
use_root(Path({root!r}))
w = np.zeros(300_000)
"""
MAKE = 'ckpt = holdfast.Checkpointer("run", {"w": w})'
TRAIN = """
restored = ckpt.restore()
step = 0 if restored is None else restored.step
while True:
    step += 1
    w += 1
    ckpt.save(step=step)
    if step % 5 == 0:
        print("reached", step, flush=True)
"""
MAKE_OVERLAPPED = """
import torch
torch.set_num_threads(1)
parameter = torch.nn.Parameter(torch.zeros(2_000_000))
optimizer = torch.optim.SGD([parameter], lr=1.0)
parameter.grad = torch.full_like(parameter, -1.0)
state = {"w": parameter, "optimizer": optimizer}
ckpt = holdfast.Checkpointer("run", state, capture="overlapped")
"""
TRAIN_OVERLAPPED = TRAIN.replace("w += 1", "optimizer.step()")


class Cell:
    """What a cell said, and how it ended."""

    def __init__(self) -> None:
        self.said = ""
        self.error = ""

    def ended_well(self) -> str:
        assert self.error == "", self.error
        return self.said


class Notebook:
    """A kernel, and cells run in it, as the page of a notebook does."""

    def __init__(self, place: Path, root: Path) -> None:
        self._root = root
        self._manager = jupyter_client.KernelManager(kernel_name="python3")
        self._manager.start_kernel(cwd=str(place), env=environment())
        self._connect()

    @property
    def pid(self) -> int:
        return int(self._manager.provisioner.pid)

    def run(self, code: str, *, interrupt: bool = False) -> Cell:
        """Run a cell; with `interrupt`, press the button when it prints something."""
        request = self._client.execute(code)
        cell = Cell()
        while True:
            message = self._client.get_iopub_msg(timeout=DEADLINE_S)
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            match message["msg_type"]:
                case "stream":
                    cell.said += content["text"]
                    if interrupt and content["name"] == "stdout":
                        self._manager.interrupt_kernel()
                        interrupt = False
                case "error":
                    cell.error = f"{content['ename']}: {content['evalue']}"
                case "status" if content["execution_state"] == "idle":
                    return cell

    def restart(self, *, kill: bool) -> None:
        """Another kernel in the place of this one, which is asked to end, or killed."""
        self._client.stop_channels()
        self._manager.restart_kernel(now=kill)
        self._connect()

    def end(self) -> None:
        """What closing the page does: the kernel is asked to end, and killed if it does not in time."""
        if self._manager.has_kernel:
            self._client.stop_channels()
            self._manager.shutdown_kernel()

    def _connect(self) -> None:
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(DEADLINE_S)
        self.run(START.format(root=str(self._root))).ended_well()


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [PATH, os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "HOLDFAST_BACKGROUND": "process"}


def is_gone(pid: int) -> bool:
    """Also where nobody has reaped it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def notebook(tmp_path: Path, root: Path) -> Iterator[Notebook]:
    made = Notebook(tmp_path, root)
    yield made
    made.end()


def test_a_notebook_is_run_from_top_to_bottom_and_its_kernel_ends(tmp_path, run, root):
    cells = [START.format(root=str(root)), MAKE, "for step in range(5):\n    w += 1\n    ckpt.save(step=step)"]
    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])

    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(page, kernel_name="python3", timeout=DEADLINE_S, resources=place).execute(env=environment())

    # Nobody called close(): the kernel did, at its end.
    assert steps(run) == [2, 3, 4]
    assert events(run, "closed")
    assert (holdfast.load(run)["w"] == 5).all()
    assert arenas(root) == []


@pytest.mark.parametrize(
    ("make", "train"), [(MAKE, TRAIN), (MAKE_OVERLAPPED, TRAIN_OVERLAPPED)], ids=["now", "overlapped"]
)
def test_a_cell_that_is_interrupted_in_the_middle_of_saves_can_be_run_again(notebook, run, root, make, train):
    if make is MAKE_OVERLAPPED and find_spec("torch") is None:
        pytest.skip("torch is not installed")
    notebook.run(make).ended_well()
    (agent,) = agents_of(notebook.pid)

    for _ in range(3):
        assert notebook.run(train, interrupt=True).error.startswith("Interrupted")

    said = notebook.run("print(ckpt.save(step=step + 1).wait(60) is not None, step + 1, ckpt.status().failed)")
    durable, last, failed = said.ended_well().split()
    assert (durable, failed) == ("True", "0")
    assert agents_of(notebook.pid) == [agent]
    assert steps(run)[-1] == int(last)
    notebook.run("ckpt.close()").ended_well()
    assert agents_of(notebook.pid) == []
    assert garbage(run) == []
    assert arenas(root) == []


def test_the_cell_that_makes_it_is_refused_the_second_time_and_the_first_one_goes_on(notebook, run, root):
    notebook.run(MAKE).ended_well()
    notebook.run("ckpt.save(step=1).wait(60)").ended_well()

    again = notebook.run(MAKE)

    assert again.error.startswith("RunBusyError")
    assert "which is this process" in again.error
    assert "close()" in again.error
    notebook.run("ckpt.save(step=2).wait(60)").ended_well()
    assert len(agents_of(notebook.pid)) == 1
    assert steps(run) == [1, 2]


def test_the_cell_that_makes_it_can_be_run_again_after_close_and_inside_of_with(notebook, run, root):
    notebook.run(MAKE).ended_well()
    notebook.run("ckpt.save(step=1)\nckpt.close()").ended_well()

    for step in (2, 3):
        notebook.run(f"{MAKE}\nwith ckpt:\n    ckpt.restore()\n    ckpt.save(step={step})").ended_well()
    train = TRAIN.strip().replace("\n", "\n    ")
    for _ in range(2):
        assert notebook.run(f"{MAKE}\nwith ckpt:\n    {train}", interrupt=True).error.startswith("Interrupted")

    assert steps(run)[-1] > 3
    assert agents_of(notebook.pid) == []
    assert arenas(root) == []


@pytest.mark.parametrize("kill", [False, True], ids=["asked to end", "killed"])
def test_a_kernel_that_is_restarted_goes_on_where_it_was_and_leaves_no_agent(notebook, run, root, kill):
    notebook.run(MAKE).ended_well()
    notebook.run("w[:] = 7\npending = ckpt.save(step=7)").ended_well()
    (agent,) = agents_of(notebook.pid)

    notebook.restart(kill=kill)

    said = notebook.run(f"{MAKE}\nrestored = ckpt.restore()\nprint(restored.step, w[0], w[-1], ckpt.attempt)")
    assert said.ended_well().split() == ["7", "7.0", "7.0", "2"]
    until(lambda: is_gone(agent))
    notebook.run("ckpt.save(step=8).wait(60)").ended_well()
    (agent,) = agents_of(notebook.pid)
    kernel = notebook.pid
    notebook.end()
    until(lambda: is_gone(kernel) and is_gone(agent))
    assert steps(run) == [7, 8]
    assert arenas(root) == []


def test_warnings_are_shown_below_the_cell(notebook, run, root):
    small = MAKE.replace("})", "}, memory_bytes=0)")
    notebook.run(small).ended_well()
    assert "a save returns when it is written" in notebook.run("ckpt.save(step=1)").ended_well()
    notebook.run("ckpt.close()").ended_well()
    notebook.run(MAKE + "\nckpt.restore()").ended_well()

    # This one is heard by a thread.
    killed = notebook.run("""
(agent,) = agents_of(os.getpid())
os.kill(agent, 9)
while agents_of(os.getpid()) in ([], [agent]):
    time.sleep(0.01)
ckpt.save(step=2).wait(60)
sys.stderr.flush()
""")

    assert "another one has taken over" in killed.ended_well()
    assert (holdfast.load(run)["w"] == np.zeros(300_000)).all()


def test_interrupting_a_cell_that_trains_saves_the_step_and_returns_to_the_prompt(notebook, run):
    notebook.run(MAKE.replace("})", "}, every=1000)")).ended_well()
    train = """
for _ in range(100_000):
    w += 1
    ckpt.step()
    if w[0] % 5 == 0:
        print("reached", w[0], flush=True)
"""

    for _ in range(3):
        assert notebook.run(train, interrupt=True).error.startswith("Interrupted: stopped at step")
        reached = int(float(notebook.run("print(w[0])").ended_well()))
        assert steps(run)[-1] == reached
        assert holdfast.load(run)["w"][0] == reached
    # Neither of these is a step: there is nothing to wait for.
    assert notebook.run("print('begun', flush=True)\ntime.sleep(600)", interrupt=True).error.startswith("Keyboard")
    notebook.run("w += 1; ckpt.step(); assert not ckpt.stopped").ended_well()
    notebook.run("ckpt.close()").ended_well()


def test_a_step_that_takes_too_long_is_interrupted_by_the_second_try(notebook, run):
    notebook.run(MAKE.replace("})", "}, every=1000)")).ended_well()
    long_step = """
import os, signal, threading
def interrupt():
    for _ in range(2):
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)
w += 1
ckpt.step()
threading.Thread(target=interrupt).start()
time.sleep(600)
"""

    assert notebook.run(long_step).error.startswith("KeyboardInterrupt")
    notebook.run("w += 1; ckpt.step(); ckpt.save(step=9).wait()").ended_well()

    assert steps(run)[-1] == 9
    notebook.run("ckpt.close()").ended_well()
