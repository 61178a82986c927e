"""Real processes, real SIGKILL, and results that are the same bit for bit."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
NUMPY_TRAINING = ROOT / "examples" / "train_spirals.py"
TORCH_TRAINING = Path(__file__).with_name("torch_training.py")
DEADLINE_S = 120


def run_until(command: list[str], steps: int | None) -> tuple[int, str]:
    """Run the program and kill it after that many reported steps (None: let it finish). Reports seen, last line."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        seen, last = 0, ""
        for line in process.stdout:
            seen, last = seen + line.startswith("step"), line
            if steps is not None and seen >= steps:
                process.send_signal(signal.SIGKILL)
                break
        process.stdout.close()
        code = process.wait(DEADLINE_S)
    assert code == (0 if steps is None or seen < steps else -signal.SIGKILL)
    return seen, last


@pytest.mark.slow
def test_a_torch_training_killed_again_and_again_ends_with_the_same_bits(tmp_path):
    command = [sys.executable, str(TORCH_TRAINING)]
    _, undisturbed = run_until([*command, str(tmp_path / "plain")], None)

    chance = random.Random(3)
    for _ in range(4):
        run_until([*command, str(tmp_path / "killed")], chance.randrange(1, 15))
    _, survived = run_until([*command, str(tmp_path / "killed")], None)

    assert undisturbed.startswith("end ")
    assert survived == undisturbed


def test_a_numpy_training_killed_again_and_again_ends_with_the_same_bits(tmp_path):
    command = [sys.executable, str(NUMPY_TRAINING), "--report"]
    run_until([*command, "--weights", str(tmp_path / "plain.npz")], None)

    for steps in (30, 17, 41):
        run_until([*command, str(tmp_path / "run")], steps)
    run_until([*command, str(tmp_path / "run"), "--weights", str(tmp_path / "killed.npz")], None)

    with np.load(tmp_path / "plain.npz") as expected, np.load(tmp_path / "killed.npz") as found:
        assert {name: expected[name].tobytes() for name in expected} == {name: found[name].tobytes() for name in found}
