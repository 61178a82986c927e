"""Resumes exactly; what it logs is how long it took, which is never the same."""

import time

import numpy as np

import holdfast

state = {"w": np.zeros(8), "progress": {"step": 0}}
began = time.time()

with holdfast.Checkpointer("runs/seconds", state) as ckpt:
    ckpt.restore()
    while state["progress"]["step"] < 12:
        state["w"] += 1
        state["progress"]["step"] += 1
        ckpt.step(seconds=time.time() - began)
