"""The example with images, killed fifty times at random moments: the same weights and the same log, bit for bit."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TRAINING = Path(__file__).parents[2] / "examples" / "train_images.py"
KILLS = 50
DEADLINE_S = 120
# Of four workers and the training on two cores, each with as many threads as there are cores.
SETTING = {**os.environ, "OMP_NUM_THREADS": "1"}


def start(run: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, str(TRAINING), str(run), "--report", "--epochs", "36"]
    # A group of its own, so that loader workers which outlive their parent are found.
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=SETTING, start_new_session=True)


def finish(run: Path) -> tuple[list[str], list[str]]:
    """The steps that it made, and what it says at the end."""
    with start(run) as process:
        out, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    lines = out.splitlines()
    return [line for line in lines if line.startswith("step ")], lines[-2:]


def kill_after(run: Path, steps: int, delay_s: float) -> bool:
    """Start it, and kill it so long after its n-th step; whether it was not done before."""
    with start(run) as process:
        reports = (line for line in process.stdout if line.startswith("step "))
        for _ in range(steps):
            next(reports, None)
        time.sleep(delay_s)
        process.kill()
        code = process.wait(DEADLINE_S)
        # Its workers find out only after seconds that they are alone; until then the output stays open.
        os.killpg(process.pid, signal.SIGKILL)
    assert code in (0, -signal.SIGKILL)
    return code != 0


@pytest.mark.slow
def test_a_training_on_images_killed_fifty_times_ends_with_the_same_weights_and_the_same_log(tmp_path):
    steps, undisturbed = finish(tmp_path / "plain")
    chance = random.Random(5)

    for kills in range(KILLS):
        # Not far at once: the last kills must still find something to interrupt.
        was_killed = kill_after(tmp_path / "killed", chance.randrange(1, 7), chance.uniform(0, 0.03))
        assert was_killed, f"it was done after {kills} kills"
    rest, survived = finish(tmp_path / "killed")

    assert len(steps) == 360
    assert len(rest) < 360  # it did go on from a checkpoint
    assert survived == undisturbed
