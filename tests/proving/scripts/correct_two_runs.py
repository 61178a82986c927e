"""Resumes exactly: two trainings one after the other, each with a Checkpointer of its own."""

import numpy as np

import holdfast


def train(run: str, w: np.ndarray, steps: int) -> None:
    progress = {"step": 0}
    with holdfast.Checkpointer(run, {"w": w, "progress": progress}) as ckpt:
        ckpt.restore()
        while progress["step"] < steps:
            w += np.random.normal(size=w.shape)
            progress["step"] += 1
            ckpt.step(norm=float(np.linalg.norm(w)))


np.random.seed(3)
weights = np.zeros(6)
train("runs/first", weights, 10)
head = np.zeros(3) + weights[:3]
train("runs/second", head, 6)
