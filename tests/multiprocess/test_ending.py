"""Programs that have to end although something is in the way: each is a process, and must end with 85 in time."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import holdfast

PATIENCE_S = 60
PRELUDE = """
import logging, signal, sys, threading, time
import numpy as np
import holdfast
from holdfast.storage.files import Files

run = sys.argv[1]
w = np.zeros(10)
hangs = threading.Event()

class Hanging(Files):
    # From some moment on, nothing that touches the storage comes back.
    def __getattribute__(self, name):
        method = super().__getattribute__(name)
        if not callable(method) or name.startswith("_"):
            return method
        def call(*arguments, **options):
            while hangs.is_set():
                time.sleep(1)
            return method(*arguments, **options)
        return call

def open_run(**options):
    return holdfast.Checkpointer(run, {"w": w}, **{"every": None, "sensors": "off", **options})
"""


def end_of(run: Path, body: str) -> tuple[int, str]:
    """The status, and what it printed."""
    program = PRELUDE + textwrap.dedent(body)
    done = subprocess.run(
        [sys.executable, "-c", program, str(run)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.returncode, done.stdout


def steps_of(run: Path) -> list[int]:
    with holdfast.Checkpointer(run, {}) as ckpt:
        return [checkpoint.step for checkpoint in ckpt.checkpoints()]


def stops_of(run: Path) -> list[dict[str, object]]:
    events = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    return [event for event in events if event["event"] == "stopped"]


@pytest.mark.parametrize("background", ["thread", "off"])
@pytest.mark.parametrize("last", ["ckpt.step()", "time.sleep(1000)"], ids=["at a step", "in the middle of one"])
def test_a_storage_that_hangs_does_not_keep_it_from_ending(tmp_path, background, last):
    status, said = end_of(
        tmp_path / "run",
        f"""
        ckpt = open_run(files=Hanging(), background={background!r}, time_left=1000)
        w += 1
        ckpt.step()
        ckpt.save(step=1)
        ckpt.wait()
        hangs.set()
        ckpt.stop("SIGTERM", grace_s=4)
        {last}
        """,
    )

    assert status == 85, said


@pytest.mark.parametrize("where", ["thread", "pool"])
def test_it_ends_with_the_same_status_where_another_thread_trains(tmp_path, where):
    begin = {
        "thread": "t = threading.Thread(target=train); t.start(); t.join()",
        "pool": "from concurrent.futures import ThreadPoolExecutor; ThreadPoolExecutor(1).submit(train).exception()",
    }[where]
    status, said = end_of(
        tmp_path / "run",
        f"""
        def train():
            ckpt = open_run(background="off")
            for count in range(10**6):
                w[:] += 1
                if count == 4:
                    ckpt.stop("SIGTERM", grace_s=30)
                ckpt.step()

        print("begins", end="")  # without a newline: nothing flushes it but we
        {begin}
        print("goes on as if nothing had happened")
        """,
    )

    assert status == 85, said
    assert "begins" in said
    assert "goes on" not in said
    assert steps_of(tmp_path / "run") == [5]


@pytest.mark.parametrize("metric", ['"low"', "[1, 2]", "object()"])
def test_a_metric_that_is_no_number_does_not_cost_the_last_checkpoint(tmp_path, metric):
    status, said = end_of(
        tmp_path / "run",
        f"""
        ckpt = open_run(background="off")
        ckpt.step(loss=1.0)
        ckpt.stop("SIGTERM", grace_s=30)
        ckpt.step(loss={metric})
        """,
    )

    assert status == 85, said
    assert "without the metrics" in said
    assert steps_of(tmp_path / "run") == [2]


def test_a_state_that_cannot_be_saved_is_said_and_the_status_stays(tmp_path):
    status, said = end_of(
        tmp_path / "run",
        """
        state = {"w": w, "rest": {"a": 1}}
        ckpt = holdfast.Checkpointer(run, state, every=None, sensors="off", background="off")
        ckpt.step()
        state["rest"]["a"] = threading.Lock()
        ckpt.stop("SIGTERM")
        ckpt.step()
        """,
    )

    assert status == 85, said
    assert "no checkpoint could be made" in said
    assert stops_of(tmp_path / "run")[0]["lost_steps"] == 2


def test_a_second_word_does_not_make_it_forget_when_it_will_be_killed(tmp_path):
    status, said = end_of(
        tmp_path / "run",
        """
        ckpt = open_run()
        ckpt.step()
        ckpt.stop("SIGTERM", grace_s=2)
        ckpt.stop("again")
        ckpt.stop("and again", grace_s=500)
        time.sleep(1000)
        """,
    )

    assert status == 85, said


@pytest.mark.parametrize(
    "handler",
    [
        "def flush(self): raise RuntimeError('broken')",
        "def emit(self, record): time.sleep(1000)",
        "def emit(self, record): raise RuntimeError('broken')",
    ],
)
def test_a_log_that_fails_or_hangs_does_not_keep_it_from_ending(tmp_path, handler):
    status, said = end_of(
        tmp_path / "run",
        f"""
        class Odd(logging.Handler):
            {handler}

        logging.getLogger().addHandler(Odd())
        ckpt = open_run()
        ckpt.step()
        ckpt.stop("SIGTERM", grace_s=5)
        time.sleep(1000)
        """,
    )

    assert status == 85, said
    assert stops_of(tmp_path / "run")[0]["lost_steps"] == 1


def test_signals_that_come_while_another_one_is_handled_stop_it_all_the_same(tmp_path):
    """A handler that is interrupted by another one, again and again: whoever takes a lock there stands still."""
    status, said = end_of(
        tmp_path / "run",
        """
        import os
        ckpt = open_run(background="off")
        ckpt.step()
        depth = 0
        calls = 0

        def handler(number, frame):
            global depth, calls
            calls += 1
            if depth < 2:
                depth += 1
                ckpt.stop("signal", grace_s=300)
                depth -= 1

        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, handler)

        me = os.getpid()
        child = os.fork()
        if child == 0:
            end_s = time.monotonic() + 5
            while time.monotonic() < end_s:
                os.kill(me, signal.SIGUSR1)
                os.kill(me, signal.SIGUSR2)
            os._exit(0)
        os.waitpid(child, 0)
        print(calls > 100)
        ckpt.step()
        """,
    )

    assert status == 85, said
    assert "True" in said
    assert steps_of(tmp_path / "run") == [2]
