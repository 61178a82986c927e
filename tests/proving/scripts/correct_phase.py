"""Correct; one phase of several, each a program of its own: NAME STEPS."""

import sys

import numpy as np

import holdfast

name, steps = sys.argv[1], int(sys.argv[2])
state = {"w": np.zeros(3), "progress": {"step": 0}}
with holdfast.Checkpointer(f"runs/{name}", state) as ckpt:
    ckpt.restore()
    while state["progress"]["step"] < steps:
        state["w"] += 1
        state["progress"]["step"] += 1
        ckpt.step()
