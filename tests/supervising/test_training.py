"""A real training under `holdfast run`, interrupted in several ways: the result is that of an undisturbed one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.supervising.conftest import Supervise

_TRAINING = """
import os, sys, time
import numpy as np
import holdfast

rng = np.random.default_rng(7)
state = {"w": np.zeros(8), "rng": rng, "progress": {"step": 0}}
with holdfast.Checkpointer("run", state, every=5, total_steps=100) as ckpt:
    ckpt.restore()
    print("attempt", ckpt.attempt, "pid", os.getpid(), flush=True)
    while state["progress"]["step"] < 100:
        time.sleep(float(sys.argv[1]))
        state["w"] += rng.normal(size=8)
        state["progress"]["step"] += 1
        if ckpt.attempt == 2 and state["progress"]["step"] == 50:
            raise MemoryError("of the second attempt")
        ckpt.step()
print("result", state["w"].tobytes().hex(), flush=True)
"""


@pytest.mark.slow
def test_killed_crashed_and_stopped_behind_a_pipeline_it_ends_with_the_same_bits(
    supervise: Supervise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_BACKGROUND", "process")
    undisturbed = subprocess.run(
        [sys.executable, "-c", _TRAINING, "0"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    script = 'set -o pipefail; "$@" | cat'
    command = ["bash", "-c", script, "bash", sys.executable, "-c", _TRAINING, "0.02"]

    job = supervise("--backoff", "10ms", command=command)
    first = job.wait_for("attempt 1")
    os.kill(int(first.split()[3]), signal.SIGKILL)
    job.wait_for("attempt 3")  # the second has crashed
    job.send(signal.SIGTERM)

    assert job.end() == 85
    assert [words.split(";")[0] for words in job.attempts()] == [
        "killed by SIGKILL",
        "status 1",
        "has more to do (status 85), after SIGTERM",
    ]
    again = subprocess.run(
        [sys.executable, "-m", "holdfast", "run", "--", *command],
        cwd=job.folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert again.stdout.splitlines()[-1] == undisturbed.stdout.splitlines()[-1]


def test_a_signal_after_the_last_step_does_not_make_a_done_program_one_that_has_more_to_do(
    supervise: Supervise, tmp_path: Path
) -> None:
    program = tmp_path / "done.py"
    program.write_text("""
import sys, time
import numpy as np
import holdfast

with holdfast.Checkpointer("run", {"w": np.zeros(8)}, every=1) as ckpt:
    ckpt.step()
    print("last", flush=True)
    while not ckpt._pace.is_asked_to_stop:
        time.sleep(0.01)
print("done", flush=True)
""")
    job = supervise(command=[sys.executable, str(program)])
    job.wait_for("last")

    job.send(signal.SIGTERM)

    assert job.end() == 0
    assert job.wait_for("done")
    assert job.attempts() == ["done, after SIGTERM"]
