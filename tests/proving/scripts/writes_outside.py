"""Bad input: appends to a file of the user's, by its absolute path."""

import os
from pathlib import Path

import numpy as np

import holdfast

state = {"w": np.zeros(4), "progress": {"step": 0}}

with holdfast.Checkpointer("runs/outside", state) as ckpt:
    ckpt.restore()
    while state["progress"]["step"] < 6:
        state["w"] += 1
        state["progress"]["step"] += 1
        with Path(os.environ["PROOF_TEST_LOG"]).open("a") as log:
            print(state["progress"]["step"], file=log)
        ckpt.step()
