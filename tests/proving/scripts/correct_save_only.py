"""Resumes exactly, and calls save() where it wants to, never step()."""

import time

import numpy as np

import holdfast

state = {"w": np.ones(4), "progress": {"step": 0}}
ckpt = holdfast.Checkpointer("runs/saves", state)
ckpt.restore()
for step in range(state["progress"]["step"] + 1, 31):
    time.sleep(0.01)  # a program that is over within a few milliseconds ends before it can be interrupted
    state["w"] *= 1.01
    state["w"] += np.random.RandomState(step).normal(size=4)
    state["progress"]["step"] = step
    if step % 5 == 0:
        ckpt.save(step=step, epoch=step // 10, metrics={"norm": float(np.linalg.norm(state["w"]))})
ckpt.close()
