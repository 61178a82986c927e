"""Broken: the state is right, but the mean that is logged is kept in a variable of the program."""

import numpy as np

import holdfast

state = {"w": np.zeros(4), "progress": {"step": 0}}
total = 0.0

with holdfast.Checkpointer("runs/metric", state) as ckpt:
    ckpt.restore()
    while state["progress"]["step"] < 12:
        state["w"] += state["progress"]["step"]
        state["progress"]["step"] += 1
        total += float(state["w"][0])
        ckpt.step(mean=total / state["progress"]["step"])
