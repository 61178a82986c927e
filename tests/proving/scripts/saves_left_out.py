"""Saves by itself; a resumed program makes the last save only."""

import numpy as np

import holdfast

state = {"w": np.zeros(3), "progress": {"step": 0}}
with holdfast.Checkpointer("runs/a", state) as ckpt:
    restored = ckpt.restore()
    while state["progress"]["step"] < 12:
        state["w"] += 1
        state["progress"]["step"] += 1
        step = state["progress"]["step"]
        if restored is None or step == 12:
            ckpt.save(step=step)
