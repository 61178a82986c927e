"""Broken: the noise comes from a generator that is seeded, but not in the state."""

import numpy as np

import holdfast

state = {"w": np.zeros(8), "progress": {"step": 0}}
rng = np.random.default_rng(7)

with holdfast.Checkpointer("runs/generator", state) as ckpt:
    ckpt.restore()
    while state["progress"]["step"] < 12:
        state["w"] += rng.normal(size=8)
        state["progress"]["step"] += 1
        ckpt.step(norm=float(np.linalg.norm(state["w"])))
