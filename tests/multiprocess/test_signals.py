"""Programs that get real signals: what they save, how they end, and what the next start finds."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.beats import read_beats
from tests.measured import measured

DEADLINE_S = 60
BEGIN = """
import logging, os, signal, sys, time
import numpy as np
import holdfast
logging.basicConfig(format="%(message)s")
w = np.zeros(1000)
def make(**options):
    return holdfast.Checkpointer(sys.argv[1], {"w": w}, every=10, sensors="off", **options)
from holdfast.engine import leaving
leaving._SAY_S = 20.0  # a busy machine may take that for a word
"""
LOOP = """
ckpt.restore()
for count in range(100_000):
    w += 1
    ckpt.step()
    if count == 12:
        print("ready", flush=True)
    time.sleep(0.005)
"""
LONG_STEP = """
ckpt.restore()
for count in range(100_000):
    w += 1
    ckpt.step()
    if count == 14:
        ckpt.wait(60)
        print("ready", flush=True)
        time.sleep(600)
"""


@contextmanager
def program(run: Path, body: str, *, is_measured: bool = True, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """One that has said that it is ready. What ends by an exception must not be measured: that would catch it."""
    script = run.parent / "program.py"
    script.write_text(BEGIN + textwrap.dedent(body))
    command = [sys.executable, *(measured() if is_measured else []), str(script), str(run)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environ}
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            line = process.stdout.readline()
            assert line == "ready\n", line + process.stderr.read()
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Status and what it said on the standard error."""
    _, error = process.communicate(timeout=DEADLINE_S)
    return process.returncode, error


def stops(run: Path) -> list[dict[str, object]]:
    events = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    return [event for event in events if event["event"] == "stopped"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT])
def test_a_signal_saves_and_ends_the_program_with_85(tmp_path, number):
    run = tmp_path / "run"

    with program(run, "ckpt = make()" + LOOP) as process:
        process.send_signal(number)
        status, error = ended(process)

    assert status == 85, error
    (stop,) = stops(run)
    assert stop["lost_steps"] == 0
    assert holdfast.load(run)["w"][0] == stop["step"]
    assert number.name in error


def test_a_program_that_only_saves_ends_at_its_next_save(tmp_path):
    body = """
    ckpt = make()
    ckpt.restore()
    for count in range(100_000):
        w += 1
        ckpt.save(step=count)
        if count == 12:
            print("ready", flush=True)
    """

    with program(tmp_path / "run", body) as process:
        process.send_signal(signal.SIGTERM)
        status, error = ended(process)

    assert status == 85, error
    assert stops(tmp_path / "run")[0]["lost_steps"] == 0


@pytest.mark.parametrize("kind", ["thread", "off", "process"])
def test_the_same_signal_many_times_does_no_harm(tmp_path, kind):
    run = tmp_path / "run"

    with program(run, f"ckpt = make(background={kind!r})" + LOOP) as process:
        for _ in range(20):
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGUSR1)
        status, error = ended(process)

    assert status == 85, error
    assert holdfast.load(run)["w"][0] == stops(run)[0]["step"]


def test_a_step_that_does_not_end_within_the_grace_is_left_and_what_is_lost_is_said(tmp_path):
    run = tmp_path / "run"

    with program(run, "ckpt = make(grace='2 s')" + LONG_STEP) as process:
        process.send_signal(signal.SIGTERM)
        status, error = ended(process)

    assert status == 85, error
    assert stops(run)[0]["lost_steps"] == 5
    assert "5 of them are not saved" in error
    assert holdfast.load(run)["w"][0] == 10


def test_the_environment_says_how_long_the_grace_is(tmp_path):
    with program(tmp_path / "run", "ckpt = make()" + LONG_STEP, HOLDFAST_GRACE="2 s") as process:
        process.send_signal(signal.SIGTERM)
        status, error = ended(process)

    assert status == 85, error


def test_ctrl_c_twice_does_not_wait_for_the_step(tmp_path):
    run = tmp_path / "run"

    with program(run, "ckpt = make()" + LONG_STEP) as process:
        assert process.stderr is not None
        process.send_signal(signal.SIGINT)
        assert "Ctrl-C again" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        status, error = ended(process)

    assert status == 130, error
    assert "asked to quit" in error
    assert holdfast.load(run)["w"][0] == 10


def test_ctrl_c_before_the_first_step_is_a_keyboard_interrupt(tmp_path):
    body = """
    ckpt = make()
    try:
        print("ready", flush=True)
        time.sleep(600)
    except KeyboardInterrupt:
        sys.exit(3)
    """

    with program(tmp_path / "run", body) as process:
        process.send_signal(signal.SIGINT)
        status, error = ended(process)

    assert status == 3, error


def test_another_status_can_be_chosen(tmp_path):
    with program(tmp_path / "run", "ckpt = make(exit_code=7)" + LOOP) as process:
        process.send_signal(signal.SIGTERM)
        status, error = ended(process)

    assert status == 7, error


@pytest.mark.parametrize("spelling", ["CheckpointExitCode", "SuccessCheckpointExitCode"])
def test_an_htcondor_job_ends_with_the_status_that_its_ad_names(tmp_path, spelling):
    (tmp_path / "ad").write_text(f"ClusterId = 12\nProcId = 0\n{spelling} = 77\n")

    with program(tmp_path / "run", "ckpt = make()" + LOOP, _CONDOR_JOB_AD=str(tmp_path / "ad")) as process:
        process.send_signal(signal.SIGTERM)
        status, error = ended(process)

    assert status == 77, error


def test_an_exception_after_the_program_was_asked_to_stop_still_asks_for_a_restart(tmp_path):
    """A worker that was killed by the same signal, for example."""
    body = """
    ckpt = make()
    ckpt.restore()
    for count in range(20):
        w += 1
        ckpt.step()
    ckpt.wait(60)
    os.kill(os.getpid(), signal.SIGTERM)
    print("ready", flush=True)
    raise RuntimeError("a worker was killed")
    """

    with program(tmp_path / "run", body, is_measured=False) as process:
        status, error = ended(process)

    assert status == 85, error
    assert "RuntimeError: a worker was killed" in error
    assert holdfast.load(tmp_path / "run")["w"][0] == 20


def test_the_same_inside_of_a_with_block(tmp_path):
    body = """
    with make() as ckpt:
        for count in range(20):
            w += 1
            ckpt.step()
        ckpt.wait(60)
        os.kill(os.getpid(), signal.SIGTERM)
        print("ready", flush=True)
        raise RuntimeError("a worker was killed")
    """

    with program(tmp_path / "run", body, is_measured=False) as process:
        status, error = ended(process)

    assert status == 85, error


def test_an_exception_without_a_signal_ends_the_program_as_always(tmp_path):
    body = """
    with make() as ckpt:
        for count in range(20):
            w += 1
            ckpt.step()
        print("ready", flush=True)
        raise RuntimeError("a mistake")
    """

    with program(tmp_path / "run", body, is_measured=False) as process:
        status, error = ended(process)

    assert status == 1, error


def test_a_signal_during_a_restore_is_answered_at_the_first_step(tmp_path):
    run = tmp_path / "run"
    body = """
    ckpt = make()
    os.kill(os.getpid(), signal.SIGTERM)
    ckpt.restore()
    print("ready", flush=True)
    w += 1
    ckpt.step()
    sys.exit(9)
    """

    with program(run, body) as process:
        status, error = ended(process)

    assert status == 85, error
    assert holdfast.load(run)["w"][0] == 1


def test_a_restore_that_takes_longer_than_there_is_likely_to_be_time_is_not_waited_for(tmp_path):
    (tmp_path / "ad").write_text("ClusterId = 12\nProcId = 0\nJobMaxVacateTime = 2\n")
    body = """
    class Slow:
        def state_dict(self):
            return {}
        def load_state_dict(self, state):
            print("ready", flush=True)
            time.sleep(600)
    with holdfast.Checkpointer(sys.argv[1], {"slow": Slow()}, sensors="off", signals=None) as ckpt:
        ckpt.save(step=3)
    ckpt = holdfast.Checkpointer(sys.argv[1], {"slow": Slow()}, sensors="off")
    ckpt.restore()
    """

    with program(tmp_path / "run", body, is_measured=False, _CONDOR_JOB_AD=str(tmp_path / "ad")) as process:
        process.send_signal(signal.SIGTERM)
        status, error = ended(process)

    assert status == 85, error


@pytest.mark.parametrize(("goes_on", "expected"), [(True, 85), (False, 0)])
def test_a_signal_after_the_last_step_is_for_the_next_training_of_the_program(tmp_path, goes_on, expected):
    body = f"""
    with make() as ckpt:
        for count in range(20):
            w += 1
            ckpt.step()
        os.kill(os.getpid(), signal.SIGTERM)
    print("ready", flush=True)
    if {goes_on}:
        with holdfast.Checkpointer(sys.argv[1] + "-next", {{"w": w}}, every=10, sensors="off") as ckpt:
            w += 1
            ckpt.step()
            sys.exit(9)
    """

    with program(tmp_path / "run", body) as process:
        status, error = ended(process)

    assert status == expected, error
    if goes_on:
        assert holdfast.load(tmp_path / "run-next")["w"][0] == 21


def test_what_only_one_run_was_told_is_not_for_the_next(tmp_path):
    body = """
    with make() as ckpt:
        w += 1
        ckpt.step()
        ckpt.stop("early")
    with make(signals=None) as ckpt:
        pass
    print("ready", flush=True)
    with holdfast.Checkpointer(sys.argv[1] + "-next", {"w": w}, every=10, sensors="off") as ckpt:
        ckpt.step()
        ckpt.step()
    """

    with program(tmp_path / "run", body) as process:
        status, error = ended(process)

    assert status == 0, error


def test_a_forked_child_does_not_answer_for_its_parent(tmp_path):
    body = """
    with make() as ckpt:
        w += 1
        ckpt.step()
        os.kill(os.getpid(), signal.SIGTERM)
    print("ready", flush=True)
    child = os.fork()
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    with holdfast.Checkpointer(sys.argv[1] + "-child", {"w": w}, every=10, sensors="off") as ckpt:
        ckpt.step()
        ckpt.step()
    os._exit(0)
    """

    with program(tmp_path / "run", body, is_measured=False) as process:
        status, error = ended(process)

    assert status == 0, error


def test_until_the_last_checkpoint_is_durable_somebody_listens_also_without_a_close(tmp_path):
    body = """
    import atexit
    import holdfast.agent.exiting
    # Called before what finishes the run, and after what was registered when that was opened.
    atexit.register(lambda: os.kill(os.getpid(), signal.SIGTERM))
    ckpt = make()
    for count in range(20):
        w += 1
        ckpt.step()
    os.kill(os.getpid(), signal.SIGTERM)
    print("ready", flush=True)
    raise RuntimeError("a worker was killed")
    """

    with program(tmp_path / "run", body, is_measured=False) as process:
        status, error = ended(process)

    assert status == 85, error


@pytest.mark.parametrize(
    ("raised", "expected", "said"),
    [("KeyboardInterrupt", 130, "may not be durable"), ("ZeroDivisionError", 74, "ZeroDivisionError while the run")],
)
def test_what_interrupts_the_end_of_a_program_is_in_its_status(tmp_path, raised, expected, said):
    body = f"""
    ckpt = make()
    ckpt.save(step=1)
    def interrupted(*_, **__):
        raise {raised}
    ckpt._close = interrupted
    print("ready", flush=True)
    """

    with program(tmp_path / "run", body, is_measured=False) as process:
        status, error = ended(process)

    assert status == expected, error
    assert said in error
    assert "Traceback" not in error


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGINT])
def test_workers_of_a_loader_survive_what_schedulers_and_terminals_send_to_all_processes(tmp_path, number):
    body = f"""
    import torch
    class Slow(torch.utils.data.Dataset):
        def __len__(self): return 10_000
        def __getitem__(self, index):
            time.sleep(0.002)
            return torch.tensor(float(index))
    loader = torch.utils.data.DataLoader(Slow(), batch_size=4, num_workers=2, multiprocessing_context="fork")
    ckpt = make()
    for count, batch in enumerate(loader):
        w += 1
        ckpt.step()
        if count == 5:
            print("ready", flush=True)
            os.killpg(0, {int(number)})
    """

    with subprocess.Popen(
        [sys.executable, "-c", BEGIN + textwrap.dedent(body), str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=dict(os.environ),
    ) as process:
        try:
            status, error = ended(process)
        finally:
            process.kill()

    assert status == 85, error
    assert "worker" not in error
    assert stops(tmp_path / "run")[0]["lost_steps"] == 0


def test_a_training_in_a_thread_is_ended_as_well(tmp_path):
    body = """
    import threading
    ckpt = make()
    def train():
        for count in range(100_000):
            w.__iadd__(1)
            ckpt.step()
            if count == 12:
                print("ready", flush=True)
            time.sleep(0.005)
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    """

    with program(tmp_path / "run", body) as process:
        process.send_signal(signal.SIGTERM)
        status, error = ended(process)

    assert status == 85, error
    assert stops(tmp_path / "run")[0]["lost_steps"] == 0


def test_after_a_return_the_loop_over_the_data_ends_and_the_next_goes_on(tmp_path):
    body = """
    data = holdfast.data.resumable(np.arange(1000.0), seed=7, batch_size=1)
    ckpt = holdfast.Checkpointer(sys.argv[1], {"w": w, "data": data}, every=1000, sensors="off", on_stop="return")
    seen = []
    for batch in ckpt.over(data, epochs=1):
        seen.append(float(batch[0]))
        w += 1
        if len(seen) == 20:
            os.kill(os.getpid(), signal.SIGUSR1)
        ckpt.step()
    assert len(seen) == 20, len(seen)
    assert ckpt.stopped == "SIGUSR1"
    for batch in ckpt.over(data, epochs=1):
        seen.append(float(batch[0]))
        w += 1
        ckpt.step()
    assert sorted(seen) == list(range(1000))
    assert not ckpt.stopped
    ckpt.close()
    print("ready", flush=True)
    """

    with program(tmp_path / "run", body) as process:
        status, error = ended(process)

    assert status == 0, error


def test_beats_say_which_step_was_reached(tmp_path):
    folder = tmp_path / "beats"
    folder.mkdir()

    with program(tmp_path / "run", "ckpt = make(total_steps=100_000)" + LOOP, HOLDFAST_BEATS=str(folder)) as process:
        process.send_signal(signal.SIGTERM)
        status, error = ended(process)

    assert status == 85, error
    (beat,) = read_beats(str(folder))
    assert (beat.pid, beat.run, beat.total_steps) == (process.pid, str(tmp_path / "run"), 100_000)
    assert beat.step == beat.durable_step == stops(tmp_path / "run")[0]["step"]
    assert beat.stopping == "SIGTERM"


def test_the_name_of_the_job_is_filled_in(tmp_path):
    run = tmp_path / "run-{job}"

    with program(run, "ckpt = make()" + LOOP, SLURM_JOB_ID="12", SLURM_ARRAY_JOB_ID="7", PATH="") as process:
        process.send_signal(signal.SIGTERM)
        status, error = ended(process)

    assert status == 85, error
    assert (tmp_path / "run-7" / "holdfast.json").exists()
