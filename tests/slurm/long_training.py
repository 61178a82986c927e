"""A training that takes as long as it is told, mostly asleep; what it computes depends on every step before."""

import hashlib
import sys
import time

import numpy as np


def train(weights: np.ndarray, random: np.random.Generator) -> None:
    weights *= 0.999
    weights += random.standard_normal(weights.size)


def digest(weights: np.ndarray) -> str:
    return hashlib.blake2b(weights.tobytes()).hexdigest()


def main(run: str, steps: int, pause_s: float) -> None:
    import holdfast

    weights, random = np.zeros(1000), np.random.default_rng(7)
    state = {"weights": weights, "random": random}
    # The Slurm of the tests kills 30 s after SIGTERM.
    with holdfast.Checkpointer(run, state, every=holdfast.every(seconds=2), total_steps=steps, grace="25 s") as ckpt:
        restored = ckpt.restore()
        for _ in range(restored.step if restored else 0, steps):
            train(weights, random)
            ckpt.step()
            time.sleep(pause_s)
    with open("results", "a") as results:
        results.write(f"{digest(weights)}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
