"""A generator that nothing depends on, and a momentum that is not in the state."""

import numpy as np

import holdfast

jitter = np.random.default_rng(3)
momentum = np.zeros(3)
state = {"w": np.zeros(3), "progress": {"step": 0}}
with holdfast.Checkpointer("runs/a", state) as ckpt:
    ckpt.restore()
    while state["progress"]["step"] < 12:
        jitter.random()
        momentum *= 0.9
        momentum += 1
        state["w"] += momentum
        state["progress"]["step"] += 1
        ckpt.step()
