"""Broken: nobody seeds numpy's global generator, so that no two runs are alike."""

import numpy as np

import holdfast

state = {"w": np.zeros(4), "progress": {"step": 0}}

with holdfast.Checkpointer("runs/unseeded", state) as ckpt:
    ckpt.restore()
    while state["progress"]["step"] < 8:
        state["w"] += np.random.normal(size=4)
        state["progress"]["step"] += 1
        ckpt.step()
