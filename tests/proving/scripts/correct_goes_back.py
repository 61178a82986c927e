"""Correct; goes back to an earlier step by itself, once, and on with another rate."""

import numpy as np

import holdfast

state = {"w": np.zeros(3), "progress": {"step": 0, "rate": 1.0}}
with holdfast.Checkpointer(
    "runs/a", state, every=holdfast.every(steps=1), keep=holdfast.keep(last=20), background="off"
) as ckpt:
    ckpt.restore()
    while state["progress"]["step"] < 12:
        if state["progress"]["step"] == 8 and state["progress"]["rate"] == 1.0:
            ckpt.restore(5)
            state["progress"]["rate"] = 0.5
        state["w"] += state["progress"]["rate"]
        state["progress"]["step"] += 1
        ckpt.step()
