"""What tasks of the tests compute, without luigi and checkpoints; and where they note what happens to them."""

import numpy as np


def advance(weights: np.ndarray, rng: np.random.Generator) -> None:
    """One step."""
    weights *= 1 - 1e-3 * rng.random(weights.shape)
    weights += rng.normal(size=weights.shape)


def undisturbed(steps: int, seed: int) -> bytes:
    """The result, as it has to be."""
    weights, rng = np.zeros(100), np.random.default_rng(seed)
    for _ in range(steps):
        advance(weights, rng)
    return weights.tobytes()


def note(line: str) -> None:
    """For the test to read."""
    with open("notes.txt", "a") as file:
        file.write(line + "\n")
