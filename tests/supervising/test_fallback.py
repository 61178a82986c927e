"""A checkpoint from which a program crashes is given up for an older one, and the work gets done."""

import sys

import pytest

from tests.supervising.conftest import Supervise

# Step 60 cannot be got past with the state of step 50, whatever is tried; with that of step 40 it can.
_TRAINING = """
import os, sys
import numpy as np
import holdfast

state = {"w": np.zeros(4), "progress": {"poison": 0}}
ckpt = holdfast.Checkpointer("run", state, keep=holdfast.keep(last=5), random=False)
restored = ckpt.restore()
first = restored.step if restored else 0
print("from", first, flush=True)
for step in range(first + 1, 101):
    state["w"] += 1
    if step == 50 and not os.path.exists("poisoned"):
        open("poisoned", "w").close()
        state["progress"]["poison"] = 1
    if step == 60 and state["progress"]["poison"]:
        os._exit(1)
    if step % 10 == 0:
        ckpt.save(step=step).wait()
ckpt.close()
print("done with", state["w"][0], flush=True)
"""


@pytest.mark.slow
def test_after_three_crashes_from_one_checkpoint_the_one_before_is_taken(
    supervise: Supervise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_BACKGROUND", "process")

    job = supervise("--backoff", "10ms", command=[sys.executable, "-c", _TRAINING])

    assert job.end() == 0
    assert job.out.read_text().splitlines() == ["from 0", "from 50", "from 50", "from 50", "from 40", "done with 100.0"]
    started_from = [int(line.split("  step ")[1].split(" →")[0]) for line in job.lines() if "  step " in line]
    assert started_from == [0, 50, 50, 50, 40]
