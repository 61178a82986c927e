"""`python -m benchmarks.step_noise`: by how much the steps of real trainings differ, idle and beside a busy process.

What `holdfast.testing.scenarios` draws the noise of steps from rests on this table.
"""

import argparse
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np
import torch

from benchmarks.setting import cores
from benchmarks.states import transformer_state

_EXAMPLES = Path(__file__).parents[1] / "examples"
_WARM = 0.1  # of the steps: caches, the allocator
_OUTLIER = 5.0  # robust standard deviations from the median
_SIGMA_OF_MAD = 1.4826
_LEAST_SUMS = 8
_SPANS_S = (0.1, 1.0, 4.0)
_BUSY = "while True: pass"


def main() -> None:
    """One line a training and load."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=50.0, help="of each training")
    parser.add_argument("--only", default="", help="trainings whose name has this in it")
    arguments = parser.parse_args()
    print("| training | others computing | a step | outliers | one step | 16 steps | 0.1 s | 1 s | 4 s |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name, stamps_of in _TRAININGS.items():
        for busy in (0, 1):
            if arguments.only in name:
                with _others(busy):
                    took_s = np.diff(np.array(stamps_of(arguments.seconds)))
                print(_line(name, busy, took_s[int(_WARM * len(took_s)) :]), flush=True)


def _line(name: str, busy: int, took_s: "np.ndarray[Any, Any]") -> str:
    step_s = float(np.median(took_s))
    _, outliers = _noise(took_s, 1)
    sixteen = _noise(took_s, 16)[0] * 16**0.5  # of one step, if steps know nothing of each other
    spans = [_noise(took_s, round(span_s / step_s))[0] if step_s < span_s else np.nan for span_s in _SPANS_S]
    noises = [_noise(took_s, 1)[0], sixteen, *spans]
    cells = ["–" if np.isnan(noise) else f"{noise:.1%}" for noise in noises]
    return f"| {name} | {busy} | {1e3 * step_s:.3g} ms | {outliers:.1%} | {' | '.join(cells)} |"


def _noise(took_s: "np.ndarray[Any, Any]", length: int) -> tuple[float, float]:
    """Of the time of so many steps, as a fraction of it: its standard deviation without outliers, and their share.

    Outliers are pauses: whoever measures leaves them out, too.
    """
    whole = len(took_s) // length
    if whole < _LEAST_SUMS:
        return np.nan, np.nan
    sums = took_s[: whole * length].reshape(whole, length).sum(axis=1)
    middle = np.median(sums)
    is_usual = np.abs(sums - middle) <= _OUTLIER * _SIGMA_OF_MAD * np.median(np.abs(sums - middle))
    return float(sums[is_usual].std() / sums[is_usual].mean()), float(1 - is_usual.mean())


def _repeated(step: Callable[[], object], seconds: float) -> list[float]:
    stamps_s = [time.perf_counter()]
    while stamps_s[-1] < stamps_s[0] + seconds:
        step()
        stamps_s.append(time.perf_counter())
    return stamps_s


def _spirals(seconds: float) -> list[float]:
    example = _example("train_spirals")
    chance = np.random.default_rng(7)
    points, arms = chance.normal(size=(1000, 2)), chance.integers(0, 3, 1000)
    sizes = {"w1": (2, example.HIDDEN), "b1": example.HIDDEN, "w2": (example.HIDDEN, 3), "b2": 3}
    weights = {name: chance.normal(0, 0.3, size) for name, size in sizes.items()}
    moments = {name: {"m": np.zeros_like(w), "v": np.zeros_like(w)} for name, w in weights.items()}
    made = 0

    def step() -> None:
        nonlocal made
        made += 1
        batch = chance.integers(0, len(points), example.BATCH)
        example.update(weights, moments, points[batch], arms[batch], made)

    return _repeated(step, seconds)


def _perceptron(threads: int) -> Callable[[float], list[float]]:
    def stamps_of(seconds: float) -> list[float]:
        torch.set_num_threads(threads)
        return _repeated(_example("train_background").with_torch(512)[1], seconds)

    return stamps_of


def _transformer(threads: int) -> Callable[[float], list[float]]:
    def stamps_of(seconds: float) -> list[float]:
        torch.set_num_threads(threads)
        state = transformer_state(layers=6, width=256, vocabulary=8192)
        model, optimizer = state.objects["model"], state.objects["optimizer"]

        def step() -> None:
            tokens = torch.randint(8192, (1, 65))
            torch.nn.functional.cross_entropy(model(tokens[:, :-1])[0], tokens[0, 1:]).backward()
            optimizer.step()
            optimizer.zero_grad()

        return _repeated(step, seconds)

    return stamps_of


def _images(seconds: float) -> list[float]:
    """With its loader workers, in a process of its own: its steps are stamped when it tells of them."""
    with TemporaryDirectory() as directory:
        command = [sys.executable, str(_EXAMPLES / "train_images.py"), f"{directory}/run", "--report"]
        options = ["--epochs", "1000000", "--every", "100000000"]
        # A group of its own, so that its workers end with it.
        with subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, process_group=0
        ) as process:
            assert process.stdout is not None
            stamps_s: list[float] = []
            for line in process.stdout:
                if line.startswith("step"):
                    stamps_s.append(time.perf_counter())
                    if stamps_s[-1] > stamps_s[0] + seconds:
                        break
            os.killpg(process.pid, signal.SIGKILL)
    return stamps_s


def _example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, _EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def _others(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


_TRAININGS: dict[str, Callable[[float], list[float]]] = {
    "spirals, numpy": _spirals,
    "perceptron, 1 thread": _perceptron(1),
    "perceptron, all threads": _perceptron(cores()),
    "transformer, 1 thread": _transformer(1),
    "transformer, all threads": _transformer(cores()),
    "images, 4 loader workers": _images,
}

if __name__ == "__main__":
    main()
