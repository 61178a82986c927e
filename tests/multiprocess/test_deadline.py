"""A job with a time limit stops itself in time, with everything saved, and goes on to its end when started again."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

JOB = Path(__file__).parents[2] / "examples" / "deadline.py"
FOREVER = 10**9
LIMIT_S = 20.0
PATIENCE_S = 120


def run_job(run, steps, *options, environ=None):
    """The status, what it printed, and how many seconds it took from the start of the process to its end."""
    command = [sys.executable, str(JOB), str(run), "--steps", str(steps), "--step-s", "0.01", *options]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "SLURM_"))}
    began_s = time.monotonic()
    done = subprocess.run(
        command,
        env={**clean, "OMP_NUM_THREADS": "1", **(environ or {})},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.returncode, done.stdout.splitlines(), time.monotonic() - began_s


def step_of(line, word):
    assert line.startswith(f"{word} at step "), line
    return int(line.split()[3].rstrip(","))


def events_of(run, name):
    events = map(json.loads, (run / "journal.jsonl").read_text().splitlines())
    return [event for event in events if event["event"] == name]


@pytest.mark.slow
@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_job_with_a_limit_stops_itself_in_time_with_everything_saved_and_then_finishes(tmp_path, by):
    run = tmp_path / "run"
    options = ["--time-left", f"{LIMIT_S}"] if by == "option" else []
    environ = {"HOLDFAST_TIME_LEFT": f"{LIMIT_S} s"} if by == "environment" else {}

    status, said, took_s = run_job(run, FOREVER, *options, environ=environ)

    assert status == 85
    # The option counts from where the Checkpointer is made, which is when the program begins to count, too.
    assert (took_s if by == "environment" else float(said[-1].split()[-2])) < LIMIT_S
    stopped = step_of(said[-1], "ends")
    assert stopped > 0
    assert events_of(run, "committed")[-1]["step"] == stopped
    (event,) = events_of(run, "stopped")
    assert (event["step"], event["lost_steps"]) == (stopped, 0)

    status, said, _ = run_job(run, stopped + 20)

    assert status == 0
    assert step_of(said[0], "begins") == stopped
    _, undisturbed, _ = run_job(tmp_path / "plain", stopped + 20)
    assert said[-1] == undisturbed[-1]
    assert said[-1].startswith("done: ")


@pytest.mark.slow
def test_a_first_step_that_takes_longer_than_the_limit_is_ended_in_time(tmp_path):
    run = tmp_path / "run"

    status, _, took_s = run_job(run, FOREVER, "--time-left", "8", "--first-step-s", "600")

    assert status == 85
    assert took_s < PATIENCE_S
    (event,) = events_of(run, "stopped")
    assert (event["step"], event["lost_steps"]) == (0, 0)
    assert "in the middle of a step" in event["why"]


@pytest.mark.slow
def test_a_short_job_makes_more_than_one_step(tmp_path):
    run = tmp_path / "run"

    status, said, _ = run_job(run, FOREVER, "--time-left", "12")

    assert status == 85
    assert step_of(said[-1], "ends") > 10


@pytest.mark.parametrize("saves", [True, False], ids=["saved", "nothing saved"])
def test_what_is_saved_is_said_as_it_is(tmp_path, saves):
    code = f"""
import sys, time
import numpy as np
import holdfast
ckpt = holdfast.Checkpointer(sys.argv[1], {{"w": np.zeros(3)}}, time_left=3, sensors="off")
{"ckpt.save(step=0).wait()" if saves else ""}
time.sleep(600)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert done.returncode == 85
    assert f"stopping after step 0{', which is saved' if saves else '; there is no checkpoint yet'}" in done.stderr
