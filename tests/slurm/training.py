"""A small training that takes hours, and knows nothing of limits."""

import time

import numpy as np

import holdfast

weights = np.zeros(1000)
with holdfast.Checkpointer("run", {"weights": weights}, background="process") as ckpt:
    ckpt.restore()
    for _ in range(1_000_000):
        weights += 1
        ckpt.step()
        time.sleep(0.02)
