"""Resumes exactly: weights, generator and the position in the data are in the state."""

import numpy as np

import holdfast

STEPS, BATCHES = 12, 4

rng = np.random.default_rng(7)
data = np.linspace(-1, 1, 8 * BATCHES).reshape(BATCHES, 8)
state = {"w": np.zeros(8), "rng": rng, "progress": {"step": 0}}

with holdfast.Checkpointer("runs/correct", state) as ckpt:
    ckpt.restore()
    while state["progress"]["step"] < STEPS:
        step = state["progress"]["step"]
        noise = rng.normal(size=8)
        state["w"] -= 0.1 * (state["w"] - data[step % BATCHES] + 0.01 * noise)
        state["progress"]["step"] += 1
        ckpt.step(epoch=step // BATCHES, loss=float(np.square(state["w"]).sum()))
