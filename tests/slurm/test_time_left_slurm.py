"""The time left inside of a job of a real Slurm, also when its limit is changed while it runs."""

import json
import math
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

import holdfast
from tests.slurm.cluster import Slurm

pytestmark = pytest.mark.slow

_DEADLINE_S = 120
_FOLDER = Path(__file__).parent
_PROBE = f"{sys.executable} {_FOLDER / 'probe.py'}"
_TRAINING = f"{sys.executable} {_FOLDER / 'training.py'}"
# The probe adds two readings of the clock, between which it may have been held up; limits differ by minutes.
_NEAR_S = 20.0


def wait_for(holds: Callable[[], bool], folder: Path) -> None:
    give_up_s = time.monotonic() + _DEADLINE_S
    while not holds():
        printed = "".join(path.read_text() for path in folder.glob("*.out"))
        assert time.monotonic() < give_up_s, f"{sorted(folder.iterdir())}\n{printed}"
        time.sleep(0.05)


def told(path: Path) -> list[str]:
    """The end that the probe told last, and the source."""
    # The last line may be half-written.
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return lines[-1].split(maxsplit=1) if lines else []


def wait_until_told(path: Path, holds: Callable[[float], bool]) -> None:
    wait_for(lambda: told(path) != [] and holds(float(told(path)[0])), path.parent)


def near(end_s: float) -> Callable[[float], bool]:
    return lambda said_s: abs(said_s - end_s) < _NEAR_S


def end_of(slurm: Slurm, job: str) -> float:
    return datetime.fromisoformat(slurm.shown(job)["EndTime"]).timestamp()


def test_a_job_knows_its_end_and_sees_it_changed(slurm: Slurm, tmp_path: Path) -> None:
    said = tmp_path / "said"
    job = slurm.submit(f"exec {_PROBE} said", "--time=2", folder=tmp_path)
    wait_for(lambda: told(said) != [], tmp_path)

    first_s = end_of(slurm, job)
    assert near(first_s)(float(told(said)[0]))
    assert told(said)[1] == f"Slurm, job {job}"

    slurm.run("scontrol", "update", f"jobid={job}", "TimeLimit=+10")
    extended_s = end_of(slurm, job)
    assert extended_s > first_s + 500
    wait_until_told(said, near(extended_s))

    slurm.run("scontrol", "update", f"jobid={job}", "TimeLimit=5")
    shortened_s = end_of(slurm, job)
    assert shortened_s < extended_s - 200
    wait_until_told(said, near(shortened_s))

    slurm.run("scontrol", "update", f"jobid={job}", "TimeLimit=UNLIMITED")
    wait_until_told(said, lambda said_s: said_s == math.inf)


def test_a_task_of_an_array_knows_its_own_end(slurm: Slurm, tmp_path: Path) -> None:
    # The last task has the number of the whole array, for which squeue shows all of them.
    array = slurm.submit(f"exec {_PROBE} said-$SLURM_ARRAY_TASK_ID", "--time=2", "--array=1-2", folder=tmp_path)
    for task in (1, 2):
        wait_until_told(tmp_path / f"said-{task}", lambda _: True)

    slurm.run("scontrol", "update", f"jobid={array}_1", "TimeLimit=30")

    ends = {task: end_of(slurm, f"{array}_{task}") for task in (1, 2)}
    assert ends[1] > ends[2] + 1000
    for task in (1, 2):
        wait_until_told(tmp_path / f"said-{task}", near(ends[task]))


def test_a_training_stops_itself_before_its_limit_with_every_step_saved(slurm: Slurm, tmp_path: Path) -> None:
    script = f"{_TRAINING}; echo $? $(date +%s) >ended.new; mv ended.new ended"
    job = slurm.submit(script, "--time=2", folder=tmp_path)
    wait_for(lambda: list((tmp_path / "run").glob("*/manifest.json")) != [], tmp_path)

    slurm.run("scontrol", "update", f"jobid={job}", "EndTime=now+35")
    end_s = end_of(slurm, job)
    wait_for((tmp_path / "ended").exists, tmp_path)

    status, ended_s = map(int, (tmp_path / "ended").read_text().split())
    assert status == 85
    assert ended_s <= end_s
    weights = np.zeros(1000)
    with holdfast.Checkpointer(tmp_path / "run", {"weights": weights}) as ckpt:
        restored = ckpt.restore()
    assert restored is not None
    assert weights[0] == restored.step
    events = [json.loads(line) for line in (tmp_path / "run/journal.jsonl").read_text().splitlines()]
    stops = [(event["step"], event["lost_steps"]) for event in events if event["event"] == "stopped"]
    assert stops == [(restored.step, 0)]
