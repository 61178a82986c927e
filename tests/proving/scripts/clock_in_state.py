"""Broken: the state says when it was made, which is another time in every run."""

import time

import numpy as np

import holdfast

state = {"w": np.zeros(4), "progress": {"step": 0, "updated": time.time()}}

with holdfast.Checkpointer("runs/clock", state) as ckpt:
    ckpt.restore()
    while state["progress"]["step"] < 12:
        state["w"] += 1.5
        state["progress"]["step"] += 1
        state["progress"]["updated"] = time.time()
        ckpt.step()
