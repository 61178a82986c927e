"""`holdfast run -- srun ...` in a job of a real Slurm: what srun does not pass on, or would kill its tasks for."""

import shlex
import sys
from pathlib import Path

import pytest

from tests.slurm.cluster import Slurm
from tests.slurm.jobs import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.scheduler]

_TRAINING = Path(__file__).parent / "training.py"
_SOURCE = Path(__file__).parents[2] / "src"
# Saves at SIGTERM only.
_SOLVER = """
import os, signal, sys, time
def save(number, frame):
    with open("state.txt", "a") as file:
        file.write("saved\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open("begun", "w").close()
time.sleep(600)
"""
_RECIPE = """
[checkpoint]
files = ["state.txt"]
[stop]
signal = "SIGTERM"
[end]
done = "^finished"
[progress]
file = "solver.log"
"""


def supervise(slurm: Slurm, folder: Path, *words: str) -> str:
    """The number of a job whose shell `holdfast run` has taken the place of."""
    supervised = [sys.executable, "-m", "holdfast", "run", *words]
    script = f"export PYTHONPATH={shlex.quote(str(_SOURCE))}\nexec {shlex.join(supervised)}"
    return slurm.submit(script, "--time=20", folder=folder)


def test_the_program_behind_srun_saves_at_sigterm(slurm: Slurm, tmp_path: Path) -> None:
    job = supervise(slurm, tmp_path, "--", "srun", sys.executable, str(_TRAINING))
    wait_for(lambda: any(tmp_path.glob("run/*/manifest.json")), lambda: f"a checkpoint\n{output(tmp_path)}")

    slurm.run("scancel", "--batch", "--signal=TERM", job)
    wait_for(lambda: "attempt 1" in output(tmp_path), lambda: f"the end of it\n{output(tmp_path)}")

    assert "has more to do (status 85), after SIGTERM" in output(tmp_path)
    assert "which is saved: asked to stop" in output(tmp_path)


def test_a_program_of_an_app_behind_srun_is_asked_to_save_as_it_understands_it(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "solver.py").write_text(_SOLVER)
    (tmp_path / "solver.toml").write_text(_RECIPE)
    job = supervise(slurm, tmp_path, "--app", "solver.toml", "--", "srun", sys.executable, "solver.py")
    wait_for((tmp_path / "begun").exists, lambda: f"the program\n{output(tmp_path)}")

    slurm.run("scancel", "--batch", "--signal=USR1", job)
    wait_for(lambda: "attempt 1" in output(tmp_path), lambda: f"the end of it\n{output(tmp_path)}")

    assert (tmp_path / "state.txt").read_text() == "saved\n"
    assert "has more to do (status 85), after SIGUSR1" in output(tmp_path)


def output(folder: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in folder.glob("*.out"))
