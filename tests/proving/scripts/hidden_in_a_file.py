"""Broken, and hidden from every search: what takes part in the computation lies in a file."""

from pathlib import Path

import numpy as np

import holdfast

state = {"w": np.zeros(4), "progress": {"step": 0}}
file = Path("rate.txt")


def next_rate() -> float:
    rate = float(file.read_text()) if file.exists() else 1.0
    file.write_text(str(rate / 2))
    return rate


with holdfast.Checkpointer("runs/file", state) as ckpt:
    if ckpt.restore() is not None:
        file.unlink()
    while state["progress"]["step"] < 12:
        state["w"] += next_rate()
        state["progress"]["step"] += 1
        ckpt.step()
