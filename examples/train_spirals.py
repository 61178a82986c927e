"""A small training that survives being killed: a network that tells three spiral arms apart. Needs numpy only.

python examples/train_spirals.py runs/spirals        # kill it whenever you like, and start it again
"""

import argparse
from pathlib import Path

import numpy as np

import holdfast

STEPS, BATCH, HIDDEN, SAVE_EVERY = 3000, 64, 128, 100
DATA = Path(__file__).parent / "data" / "spirals.csv"


def train(run: str | None, *, report: bool) -> dict[str, np.ndarray]:
    table = np.loadtxt(DATA, delimiter=",", skiprows=1)
    points, arms = table[:, :2], table[:, 2].astype(int)

    generator = np.random.default_rng(7)
    weights = {
        "w1": generator.normal(0, 1.0, (2, HIDDEN)),
        "b1": np.zeros(HIDDEN),
        "w2": generator.normal(0, 0.3, (HIDDEN, 3)),
        "b2": np.zeros(3),
    }
    moments = {name: {"m": np.zeros_like(w), "v": np.zeros_like(w)} for name, w in weights.items()}
    progress = {"step": 0, "loss": 0.0}

    # The three lines: what to save, restore if there is something, save now and then.
    state = {"weights": weights, "moments": moments, "progress": progress, "shuffle": generator}
    ckpt = holdfast.Checkpointer(run, state) if run else None
    resumed = ckpt.restore() if ckpt else None
    if report and resumed:
        print(f"resumed {resumed.step}", flush=True)

    while progress["step"] < STEPS:
        batch = generator.integers(0, len(points), BATCH)
        progress["loss"] = update(weights, moments, points[batch], arms[batch], progress["step"] + 1)
        progress["step"] += 1
        if ckpt and progress["step"] % SAVE_EVERY == 0:
            ckpt.save(step=progress["step"], metrics={"loss": progress["loss"]})
        if report and progress["step"] % 20 == 0:
            print(f"step {progress['step']}", flush=True)

    if ckpt:
        ckpt.close()
    return weights


def update(
    weights: dict[str, np.ndarray],
    moments: dict[str, dict[str, np.ndarray]],
    points: np.ndarray,
    arms: np.ndarray,
    step: int,
) -> float:
    """One step of Adam on the cross-entropy, in place; the loss."""
    hidden = np.tanh(points @ weights["w1"] + weights["b1"])
    scores = hidden @ weights["w2"] + weights["b2"]
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    odds /= odds.sum(axis=1, keepdims=True)
    rows = np.arange(len(arms))
    loss = float(-np.log(odds[rows, arms]).mean())

    odds[rows, arms] -= 1
    odds /= len(arms)
    back = (odds @ weights["w2"].T) * (1 - hidden**2)
    gradients = {"w1": points.T @ back, "b1": back.sum(axis=0), "w2": hidden.T @ odds, "b2": odds.sum(axis=0)}
    for name, gradient in gradients.items():
        m, v = moments[name]["m"], moments[name]["v"]
        m += 0.1 * (gradient - m)
        v += 0.001 * (gradient**2 - v)
        weights[name] -= 0.01 * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", help="the run's directory; without one, nothing is saved")
    parser.add_argument("--weights", help="write the final weights to this .npz file")
    parser.add_argument("--report", action="store_true", help="print each twentieth step")
    arguments = parser.parse_args()
    weights = train(arguments.run, report=arguments.report)
    if arguments.weights:
        np.savez(arguments.weights, **weights)


if __name__ == "__main__":
    main()
