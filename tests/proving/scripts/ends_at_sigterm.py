"""Correct; an order to end lets the loop end, and the program with status 0."""

import signal

import numpy as np

import holdfast

rng = np.random.default_rng(7)
state = {"w": np.zeros(3), "rng": rng, "progress": {"step": 0}}
orders = []
with holdfast.Checkpointer("runs/a", state) as ckpt:
    ckpt.restore()
    signal.signal(signal.SIGTERM, lambda *_: orders.append(1))
    while state["progress"]["step"] < 12 and not orders:
        state["w"] += rng.normal(size=3)
        state["progress"]["step"] += 1
        ckpt.step()
