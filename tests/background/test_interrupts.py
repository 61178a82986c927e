"""Ctrl-C at every line of a save and of close(): the program that catches it can go on saving, and let the run go."""

import gc
import linecache
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import holdfast
from holdfast import Checkpointer
from tests.background.rig import Program, steps

SOURCES = str(Path(holdfast.__file__).parent)
# What takes the state apart has nothing to give back, and by far the most lines.
INERT = (str(Path(SOURCES, "format")), str(Path(SOURCES, "core")))
BOUND_LINES = 5000
ENOUGH = 5
# Only where something is left behind does the test wait this long: a disk that others use may be slow.
SETTLED_S = 30.0


@pytest.fixture(autouse=True)
def raising_ctrl_c() -> Iterator[None]:
    """As in a program at a terminal: one that a shell starts in the background ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class WorkerKilledError(Exception):
    """What the handlers of some libraries raise when one of their processes has ended."""


@pytest.fixture
def raising_at_ends_of_children() -> Iterator[None]:
    def look(number: int, frame: FrameType | None) -> None:
        if killed_workers:  # not where it was another process
            killed_workers.clear()
            raise WorkerKilledError

    before = signal.signal(signal.SIGCHLD, look)
    yield
    signal.signal(signal.SIGCHLD, before)


killed_workers: list[bool] = []


class Interrupt:
    """Sends SIGINT, or another signal, before the n-th line of holdfast that this thread runs.

    Not at the lines of `with`: Python takes no signal between the end of a block and the call of `__exit__`, but calls
    tracers there.
    """

    def __init__(self, count: int, number: int = signal.SIGINT) -> None:
        self._left = count
        self._number = number
        self._before: Any = None
        self.where = ""

    def __enter__(self) -> "Interrupt":
        self._before = sys.gettrace()  # that of a coverage measurement, which would be over
        sys.settrace(self._enter)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        sys.settrace(self._before)
        return kind in (KeyboardInterrupt, WorkerKilledError)

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        name = frame.f_code.co_filename
        return self._line if name.startswith(SOURCES) and not name.startswith(INERT) else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        name, line = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and not linecache.getline(name, line).lstrip().startswith("with "):
            self._left -= 1
            if self._left == 0:
                self.where = f"{Path(name).relative_to(SOURCES)}:{line}"
                killed_workers[:] = [True] if self._number == signal.SIGCHLD else []
                signal.raise_signal(self._number)
        return self._line


def numpy_state() -> tuple[dict[str, object], Any]:
    weights = np.zeros(1000)
    return {"w": weights}, lambda: weights.__iadd__(1)


def torch_state() -> tuple[dict[str, object], Any]:
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.zeros(1000))
    parameter.grad = torch.full_like(parameter, -1.0)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    return {"w": parameter, "optimizer": optimizer}, optimizer.step


STATES = {"now": numpy_state, "overlapped": torch_state}


@pytest.mark.slow
@pytest.mark.parametrize("capture", ["now", "overlapped"])
def test_after_a_save_that_was_interrupted_anywhere_nothing_of_it_is_left(run, root, capture):
    state, change = STATES[capture]()
    wrong = []
    with Checkpointer(
        run, state, background="thread", capture=capture, keep=holdfast.keep(last=2), signals=None
    ) as ckpt:
        ckpt.save(step=0).wait(60)
        background = ckpt._stager.background
        step = 0
        for count in range(1, BOUND_LINES):
            step += 1
            change()
            with Interrupt(count) as interrupt:
                ckpt.save(step=step)
            if not gc.isenabled():
                gc.enable()
                wrong.append((interrupt.where, "the collector is off"))
            background.settle(SETTLED_S, patience_s=SETTLED_S)
            gate = ckpt._stager._gate
            held = (0, None) if gate is None else (gate._waiting, gate._capturer)
            left = (len(background._filling), len(background._jobs), len(background._client.outstanding), *held)
            if left != (0, 0, 0, 0, None):
                wrong.append((interrupt.where, left))
            if wrong:  # given back by force, so that more places are looked at
                background._filling.clear()
                background._jobs.clear()
                background._client._outstanding.clear()
                if gate is not None:
                    gate._start_afresh()
            assert len(wrong) < ENOUGH, wrong
            step += 1
            ckpt.save(step=step).wait(60)
            if not interrupt.where:
                break
        assert not interrupt.where, f"a save has more than {BOUND_LINES} lines"
        assert count > 100
    assert wrong == []
    assert bool((holdfast.load(run)["w"] == step // 2).all())


def test_ctrl_c_in_the_last_lines_of_a_close_that_hears_signals_lets_the_run_go(tmp_path, root):
    state, _ = numpy_state()
    ckpt = Checkpointer(tmp_path / "run", state, background="thread")
    ckpt.save(step=1)
    close = ckpt._session.close

    def close_interrupted():
        signal.raise_signal(signal.SIGINT)
        close()

    ckpt._session.close = close_interrupted

    with pytest.raises(KeyboardInterrupt):
        ckpt.close()

    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with Checkpointer(tmp_path / "run", state, background="thread") as following:
        assert following.restore().step == 1


@pytest.mark.parametrize("ends", ["", "ckpt.save(step=9)\nckpt.close()\n"], ids=["stopped", "closing"])
def test_ctrl_c_three_times_does_not_wait_for_a_storage_that_hangs(run, root, ends):
    code = f"""
signal.signal(signal.SIGINT, signal.default_int_handler)
import logging
logging.basicConfig(format="%(message)s", stream=sys.stdout)
w = np.zeros(1000)
ckpt = Checkpointer(RUN, {{"w": w}}, every=None, sensors="off")
ckpt.save(step=0).wait(60)
say("agent", *agents_of(os.getpid()))
hear()
{ends}
while True:
    time.sleep(0.01)
    ckpt.step()
"""
    with Program(code, run, root) as program:
        (agent,) = map(int, program.hear("agent"))
        os.kill(agent, signal.SIGSTOP)
        try:
            program.say()
            time.sleep(0.2)
            program.kill(signal.SIGINT)
            program.hear("SIGINT:")
            time.sleep(1)  # it waits for its last checkpoint by then
            program.kill(signal.SIGINT)
            program.hear("SIGINT:")
            program.kill(signal.SIGINT)
            status, out, err = program.end()
        finally:
            os.kill(agent, signal.SIGCONT)

    assert status == 130, (out, err)
    assert "asked to quit" in out


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGCHLD], ids=["ctrl-c", "a worker killed"])
@pytest.mark.usefixtures("raising_at_ends_of_children")
def test_a_close_that_was_interrupted_anywhere_can_be_called_again_and_lets_the_run_go(tmp_path, root, number):
    wrong = []
    for count in range(1, BOUND_LINES, 40):
        run = tmp_path / str(count)
        state, change = numpy_state()
        ckpt = Checkpointer(run, state, background="thread", signals=None)
        change()
        ckpt.save(step=1)

        with Interrupt(count, number) as interrupt:
            ckpt.close()
        ckpt.close()

        try:
            with Checkpointer(run, state, background="thread") as following:
                assert following.restore().step == 1
        except holdfast.RunBusyError:
            wrong.append(interrupt.where)
        if not interrupt.where:
            break
    assert not interrupt.where
    assert wrong == []


@pytest.mark.parametrize("capture", ["now", "overlapped"])
def test_no_condition_is_entered_where_an_interrupt_would_leave_it_locked(tmp_path, monkeypatch, capture):
    """That is code in Python: Ctrl-C between its lock and the block behind it, and nobody gets the lock any more."""
    enter, entered = threading.Condition.__enter__, []

    def noted(condition: threading.Condition) -> bool:
        caller = sys._getframe(1).f_code.co_filename
        if caller.startswith(SOURCES):
            entered.append(caller)
        return enter(condition)

    monkeypatch.setattr(threading.Condition, "__enter__", noted)
    weights = np.zeros(1_000_000)
    with Checkpointer(tmp_path / "run", {"w": weights}, capture=capture, time_left=lambda: 3600.0) as ckpt:
        for step in range(5):
            with ckpt.updating():
                weights += 1
            assert ckpt.save(step=step).wait(60)
            ckpt.step()

    assert entered == []


def test_a_handler_that_closes_in_the_middle_of_lines_that_hold_the_lock_waits_for_nobody_who_needs_it(run, root):
    ckpt = holdfast.Checkpointer(run, {"w": np.zeros(1000)}, background="process", every=None)
    ckpt.save(step=1)

    def close_inside():
        with ckpt._stager.background._lock:
            ckpt.close()

    thread = threading.Thread(target=close_inside, daemon=True)
    thread.start()
    thread.join(SETTLED_S)

    assert not thread.is_alive()
    assert steps(run) == [1]
