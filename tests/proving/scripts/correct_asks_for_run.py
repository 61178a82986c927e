"""Resumes exactly, and looks for checkpoints itself before it asks for a restore."""

from pathlib import Path

import numpy as np

import holdfast

state = {"w": np.zeros(4), "progress": {"step": 0}}
has_run = any(Path("runs/asked").glob("0*"))

with holdfast.Checkpointer("runs/asked", state) as ckpt:
    if has_run:
        ckpt.restore()
    while state["progress"]["step"] < 10:
        state["w"] += state["progress"]["step"]
        state["progress"]["step"] += 1
        ckpt.step()
