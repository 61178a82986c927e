"""Broken: saves, and never restores."""

import numpy as np

import holdfast

state = {"w": np.zeros(4)}

with holdfast.Checkpointer("runs/never", state) as ckpt:
    for _ in range(8):
        state["w"] += 0.5
        ckpt.step()
