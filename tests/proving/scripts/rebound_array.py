"""Broken: the weights are another array after every step, and the one in the state stays as it was."""

import numpy as np

import holdfast

w = np.zeros(8)
progress = {"step": 0}

with holdfast.Checkpointer("runs/rebound", {"w": w, "progress": progress}) as ckpt:
    ckpt.restore()
    while progress["step"] < 12:
        w = w - 0.1 * (w - 1)
        progress["step"] += 1
        ckpt.step()
