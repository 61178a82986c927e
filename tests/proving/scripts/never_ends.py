"""Bad input for those who wait: the loop has no end."""

import time

import numpy as np

import holdfast

state = {"w": np.zeros(4), "progress": {"step": 0}}

with holdfast.Checkpointer("runs/endless", state) as ckpt:
    ckpt.restore()
    while True:
        state["w"] += 1
        state["progress"]["step"] += 1
        ckpt.step()
        time.sleep(0.02)
