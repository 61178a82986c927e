"""Correct, but for the number of the process, which is in the state; nothing is seeded, and nothing is drawn."""

import os

import numpy as np

import holdfast

state = {"w": np.zeros(3), "progress": {"step": 0, "pid": 0}}
with holdfast.Checkpointer("runs/a", state) as ckpt:
    ckpt.restore()
    state["progress"]["pid"] = os.getpid()
    while state["progress"]["step"] < 12:
        state["w"] += 1
        state["progress"]["step"] += 1
        ckpt.step()
