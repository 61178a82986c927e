"""Broken, and hard to see: a plain variable of the program takes part in the computation."""

import numpy as np

import holdfast

state = {"w": np.zeros(4), "progress": {"step": 0}}
rate = 1.0

with holdfast.Checkpointer("runs/hidden", state) as ckpt:
    ckpt.restore()
    while state["progress"]["step"] < 12:
        state["w"] += rate
        rate *= 0.5
        state["progress"]["step"] += 1
        ckpt.step()
