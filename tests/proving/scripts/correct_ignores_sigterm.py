"""Resumes exactly, and goes on when it is asked to end."""

import signal

import numpy as np

import holdfast

signal.signal(signal.SIGTERM, signal.SIG_IGN)
state = {"w": np.zeros(8), "progress": {"step": 0}}

with holdfast.Checkpointer("runs/stubborn", state) as ckpt:
    ckpt.restore()
    while state["progress"]["step"] < 12:
        state["w"] += 1
        state["progress"]["step"] += 1
        ckpt.step()
