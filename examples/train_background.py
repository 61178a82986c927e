"""A training that checkpoints in the background, and a status line that tells what that costs.

python examples/train_background.py runs/background        # uses torch if it is there, else numpy

On a terminal the line is redrawn in place; in a pipe or a log file it is printed now and then. Kill it whenever you
like, and start it again: if the machine is the same, the newest checkpoint comes from memory.
"""

import argparse
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Literal

import holdfast

REDRAW_S, REPEAT_S = 0.1, 2.0

Training = tuple[dict[str, Any], Callable[[], float], Literal["now", "overlapped"]]
"""The state, a step that gives the loss, and how to capture."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", help="the run's directory")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=20, help="save after this many steps")
    parser.add_argument("--width", type=int, default=512, help="of the hidden layers; the state grows with its square")
    arguments = parser.parse_args()

    holdfast.prefetch(arguments.run)  # reads while the framework is imported
    state, train_step, capture = (with_torch if find_spec("torch") else with_numpy)(arguments.width)

    progress = state["progress"]
    with holdfast.Checkpointer(arguments.run, state, every=arguments.every, capture=capture) as ckpt:
        restored = ckpt.restore()
        print("a fresh start" if restored is None else f"step {restored.step} restored from {restored.where}")
        line = StatusLine()
        while progress["step"] < arguments.steps:
            loss = train_step()
            progress["step"] += 1
            ckpt.step(loss=loss)
            line.show(f"step {progress['step']} · {ckpt.status()}")
        if progress["step"] > (ckpt.status().staged_step or (restored.step if restored else 0)):
            ckpt.save(step=progress["step"])  # the end is worth waiting for; a step() may have been left out
        ckpt.wait()
        line.end(f"step {progress['step']} · {ckpt.status()}")


class StatusLine:
    """Redrawn in place on a terminal; elsewhere a line now and then."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._next_s = 0.0

    def show(self, text: str) -> None:
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + (REDRAW_S if self._is_terminal else REPEAT_S)
        # \x1b[K clears what a longer line left behind.
        print(f"\r{text}\x1b[K" if self._is_terminal else text, end="" if self._is_terminal else "\n", flush=True)

    def end(self, text: str) -> None:
        print(f"\r{text}\x1b[K" if self._is_terminal else text, flush=True)


def with_torch(width: int) -> Training:
    import torch

    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, width), torch.nn.Tanh(), torch.nn.Linear(width, width), torch.nn.Tanh()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def train_step() -> float:
        inputs = torch.randn(128, 64)
        loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # waits for what is not yet copied; usually nothing
        return float(loss.item())

    # Parameters and moments change in optimizer.step() only: they may be copied while the next step computes.
    return {"model": model, "optimizer": optimizer, "progress": {"step": 0}}, train_step, "overlapped"


def with_numpy(width: int) -> Training:
    import numpy as np

    generator = np.random.default_rng(0)
    weights = {
        "first": generator.normal(0, 0.1, (64, width)),
        "second": generator.normal(0, width**-0.5, (width, width)),
        "last": generator.normal(0, width**-0.5, (width, 1)),
    }
    velocity = {name: np.zeros_like(values) for name, values in weights.items()}

    def train_step() -> float:
        inputs = generator.normal(size=(128, 64))
        hidden = np.tanh(inputs @ weights["first"])
        deeper = np.tanh(hidden @ weights["second"])
        error = deeper @ weights["last"] - inputs.sum(axis=1, keepdims=True)
        back = error / len(error)
        second = (back @ weights["last"].T) * (1 - deeper**2)
        first = (second @ weights["second"].T) * (1 - hidden**2)
        gradients = {"last": deeper.T @ back, "second": hidden.T @ second, "first": inputs.T @ first}
        for name, gradient in gradients.items():
            velocity[name] *= 0.9
            velocity[name] += gradient
            weights[name] -= 0.003 * velocity[name]
        return float(np.mean(error**2))

    state = {"weights": weights, "velocity": velocity, "generator": generator, "progress": {"step": 0}}
    return state, train_step, "now"


if __name__ == "__main__":
    main()
