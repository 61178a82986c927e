"""Programs that were stopped, and what may come in the way of their status before they have ended."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import holdfast
from tests.multiprocess.test_signals import BEGIN, DEADLINE_S, LOOP, ended, program, stops


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_that_comes_until_the_very_end_does_not_change_the_status(tmp_path, number):
    """A launcher passes on what a scheduler sends to all processes anyway."""
    run = tmp_path / "run"

    with program(run, "ckpt = make()" + LOOP) as process:
        deadline_s = time.monotonic() + DEADLINE_S
        while process.poll() is None and time.monotonic() < deadline_s:
            process.send_signal(number)
            time.sleep(0.001)
        status, error = ended(process)

    assert status == 85, error
    assert stops(run)[0]["lost_steps"] == 0


@pytest.mark.parametrize(
    "hangs",
    [
        "import threading; threading.Thread(target=time.sleep, args=(600,)).start()",
        "import atexit; atexit.register(time.sleep, 600)",
    ],
)
@pytest.mark.slow
def test_a_program_that_hangs_at_its_end_is_ended_in_time(tmp_path, hangs):
    run = tmp_path / "run"

    with program(run, f"{hangs}\nckpt = make(grace='15 s')" + LOOP) as process:
        process.send_signal(signal.SIGTERM)
        status, error = ended(process)

    assert status == 85, error
    assert stops(run)[0]["lost_steps"] == 0


def test_one_that_catches_its_end_and_goes_on_has_the_status_of_its_real_end(tmp_path):
    body = """
    import atexit
    ckpt = make()
    try:
        for count in range(20):
            ckpt.step()
        ckpt.stop("a short time", grace_s=3)
        print("ready", flush=True)
        ckpt.step()
    except SystemExit:
        pass
    time.sleep(4)
    atexit.register(time.sleep, 3)
    """

    with program(tmp_path / "run", body) as process:
        status, error = ended(process)

    assert status == 0, error


def test_one_that_hangs_in_lines_of_its_own_is_ended_in_time_by_the_next_signal(tmp_path):
    body = """
    ckpt = make(grace='2 s')
    try:
        for count in range(100_000):
            w += 1
            ckpt.step()
            if count == 12:
                print("ready", flush=True)
            time.sleep(0.005)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(600)
    """

    with program(tmp_path / "run", body) as process:
        process.send_signal(signal.SIGUSR1)
        status, error = ended(process)

    assert status == 85, error


def test_output_that_nobody_reads_any_more_does_not_change_the_status(tmp_path):
    """`| tee`, which was ended by the same signal."""
    body = """
    ckpt = make()
    print("kept in a buffer until the end")
    for count in range(100_000):
        w += 1
        ckpt.step()
        if count == 12:
            os.write(2, b"ready\\n")
        time.sleep(0.005)
    """
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", BEGIN + textwrap.dedent(body), str(tmp_path / "run")]

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        process.stdout.close()
        process.send_signal(signal.SIGTERM)
        error = process.stderr.read()
        status = process.wait(DEADLINE_S)

    assert status == 85, error


@pytest.mark.parametrize("raises", ["sys.exit(0)", "sys.exit(143)", "raise KeyboardInterrupt"])
def test_a_handler_from_before_that_ends_the_program_leaves_that_to_the_end_of_the_step(tmp_path, raises):
    run = tmp_path / "run"
    body = f"""
def end(number, frame):
    {raises}
signal.signal(signal.SIGTERM, end)
ckpt = make()
"""

    with program(run, body + LOOP) as process:
        process.send_signal(signal.SIGTERM)
        status, error = ended(process)

    assert status == 85, error
    assert holdfast.load(run)["w"][0] == stops(run)[0]["step"]


def test_a_program_that_catches_its_end_has_its_signals_back(tmp_path):
    body = """
    ckpt = make()
    try:
        for count in range(100_000):
            w += 1
            os.kill(os.getpid(), signal.SIGTERM)
            ckpt.step()
    except SystemExit:
        pass
    time.sleep(1.5)  # Python is given a second to begin its end
    make().close()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    print("ready", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(600)
    """

    with program(tmp_path / "run", body) as process:
        status, error = ended(process)

    assert status == -signal.SIGTERM, error


def test_one_that_catches_its_end_and_fails_since_all_is_closed_asks_for_a_restart(tmp_path):
    body = """
    ckpt = make()
    print("ready", flush=True)
    for count in range(100_000):
        w += 1
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            ckpt.step()
        except SystemExit:
            pass
    """

    with program(tmp_path / "run", body, is_measured=False) as process:
        status, error = ended(process)

    assert status == 85, error


def test_ctrl_c_in_an_event_loop_waits_for_the_end_of_the_step(tmp_path):
    run = tmp_path / "run"
    body = """
    import asyncio
    async def train():
        ckpt = make()
        for count in range(100_000):
            w.__iadd__(1)
            ckpt.step()
            if count == 12:
                print("ready", flush=True)
            await asyncio.sleep(0.005)
    asyncio.run(train())
    """

    with program(run, body) as process:
        process.send_signal(signal.SIGINT)
        status, error = ended(process)

    assert status == 85, error
    assert stops(run)[0]["lost_steps"] == 0


def test_a_forked_child_that_trains_hears_what_its_parents_loaders_do_not(tmp_path):
    body = """
    parent = holdfast.Checkpointer(sys.argv[1] + "-parent", {"w": w})
    pid = os.fork()
    if pid == 0:
        ckpt = make()
        for count in range(1000):
            w += 1
            if count == 12:
                os.kill(os.getpid(), signal.SIGUSR1)
            ckpt.step()
        sys.exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    parent.close()
    print("ready", flush=True)
    sys.exit(status)
    """

    with program(tmp_path / "run", body) as process:
        status, error = ended(process)

    assert status == 85, error


def test_what_a_forked_child_executes_is_not_deaf(tmp_path):
    body = """
    ckpt = make()
    pid = os.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGUSR1)"])
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print("ready", flush=True)
    sys.exit(status == -signal.SIGUSR1 and 7)
    """

    with program(tmp_path / "run", body) as process:
        status, error = ended(process)

    assert status == 7, error
