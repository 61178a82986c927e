"""Correct; but what is in the state can be saved at every fourth step only, which is where it saves."""

import numpy as np

import holdfast

state = {"w": np.zeros(3), "progress": {"step": 0, "hook": None}}
with holdfast.Checkpointer("runs/a", state, every=holdfast.every(steps=4)) as ckpt:
    ckpt.restore()
    while state["progress"]["step"] < 16:
        state["w"] += 1
        state["progress"]["step"] += 1
        state["progress"]["hook"] = (lambda: 0) if state["progress"]["step"] % 4 else None
        ckpt.step()
