"""A run with a rollback, made once and copied for each test; and the command, called in this process."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import holdfast
from holdfast.cli.main import main
from holdfast.testing import FakeClock


class Answer(NamedTuple):
    """What a command said."""

    code: int
    out: str
    err: str


def make_run(path: Path) -> None:
    """Steps 10–40 in attempt 1; attempt 2 goes back to 20 and comes to 50; metrics, notes, hyperparameters."""
    clock = FakeClock()
    state: dict[str, Any] = {"model": {"w": np.zeros((4, 8)), "b": np.zeros(8)}, "progress": {"seen": 0}}
    # Random state would differ with what other tests have imported: torch adds its own.
    options: dict[str, Any] = {
        "keep": holdfast.KEEP_ALL,
        "clock": clock,
        "hyperparameters": {"lr": 0.1},
        "random": False,
    }
    with holdfast.Checkpointer(path, state, **options) as first:
        for step in (10, 20, 30, 40):
            _train(state, clock)
            first.save(step=step, epoch=step // 20, metrics={"loss": 1 / step}, note="start" if step == 10 else "")
    with holdfast.Checkpointer(path, state, **options) as second:
        second.restore(20)
        for step in (30, 50):
            _train(state, clock)
            second.save(step=step, epoch=step // 20, metrics={"loss": 1 / step, "accuracy": step / 100})


def _train(state: dict[str, Any], clock: FakeClock) -> None:
    clock.advance(60)
    state["model"]["w"] += 1.5
    state["progress"]["seen"] += 100


@pytest.fixture(scope="session")
def run_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "run"
    make_run(path)
    return path


@pytest.fixture
def run(run_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run at `run`, in the directory that the test works in."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run_template, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def holdfast_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """Runs `holdfast ARGUMENTS…`, as in a pipe: nothing is cut to the width of whoever runs the tests."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*arguments: object) -> Answer:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return call


@pytest.fixture
def damage(run: Path) -> Callable[[int], str]:
    """Flips a bit in the shard of the newest checkpoint of a step; its id."""

    def flip(step: int) -> str:
        folder = sorted(run.glob(f"{step:09d}-*"), key=lambda path: path.name.rpartition("-a")[2])[-1]
        shard = folder / "rank-00000.safetensors"
        data = bytearray(shard.read_bytes())
        data[-1] ^= 1
        shard.write_bytes(data)
        return folder.name

    return flip


@pytest.fixture
def rolled_back(tmp_path: Path) -> Path:
    """Attempt 1 came to step 100; attempt 2 went back to 50, and saved 60."""
    path, state = tmp_path / "run", {"w": np.zeros(2000)}
    with holdfast.Checkpointer(path, state, keep=holdfast.KEEP_ALL) as first:
        for step in (30, 40, 50, 100):
            first.save(step=step)
    with holdfast.Checkpointer(path, state, keep=holdfast.KEEP_ALL) as second:
        second.restore(50)
        second.save(step=60)
    return path


def cut(path: Path, step: int) -> None:
    """Take the end off the shard of the run's only checkpoint of a step."""
    (shard,) = path.glob(f"{step:09d}-*/rank-*")
    shard.write_bytes(shard.read_bytes()[:-1000])
