"""Logs whole numbers that are larger than a float can tell apart."""

import numpy as np

import holdfast

rng = np.random.default_rng(3)
progress = {"step": 0}
with holdfast.Checkpointer("runs/a", {"progress": progress}) as ckpt:
    ckpt.restore()
    while progress["step"] < 12:
        progress["step"] += 1
        ckpt.step(tokens=2**60 + int(rng.integers(0, 100)))
