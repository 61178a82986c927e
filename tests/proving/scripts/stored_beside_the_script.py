"""Resumes exactly; names its run by the place of the script."""

from pathlib import Path

import numpy as np

import holdfast

state = {"w": np.zeros(8), "progress": {"step": 0}}

with holdfast.Checkpointer(Path(__file__).parent / "runs" / "beside", state) as ckpt:
    ckpt.restore()
    while state["progress"]["step"] < 6:
        state["w"] += 1
        state["progress"]["step"] += 1
        ckpt.step()
