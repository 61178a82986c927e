"""Who checkpoints while the training goes on, behind one interface: begin a save, update the weights, be durable."""

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch

from benchmarks.contenders import TorchSave
from benchmarks.measure import Call
from benchmarks.results import Role
from benchmarks.states import TorchState

__all__ = [
    "Background",
    "Begun",
    "HoldfastBackground",
    "MemoryCopy",
    "Places",
    "Save",
    "TorchSaveInPlace",
    "finishing",
    "newest",
    "nothing",
]


class Begun(NamedTuple):
    """A checkpoint under way."""

    before_update: Call
    """Returns when the state may change."""
    wait: Call
    """Returns when all bytes are durable."""


Save = Callable[[int], Begun]
"""Begins the checkpoint of a step, and returns when the training may compute on."""


class Background(Protocol):
    """Someone who saves a state again and again. At most one save is under way: callers wait for the one before."""

    name: str
    role: Role
    overlaps: bool
    """Whether it copies while the training computes, and holds back the next update instead."""

    def missing(self) -> str:
        """Why it cannot take part here, if so."""

    def opening(self, state: TorchState, directory: Path) -> AbstractContextManager[Save]: ...

    def restore(self, state: TorchState, directory: Path) -> None:
        """Bring the last save back, into the tensors that exist."""


class HoldfastBackground:
    """A Checkpointer with an agent process."""

    role: Role = "holdfast"

    def __init__(self, capture: Literal["now", "overlapped"]) -> None:
        self.name = f"holdfast, {capture}"
        self.overlaps = capture == "overlapped"
        self._capture = capture

    def missing(self) -> str:
        return ""

    @contextmanager
    def opening(self, state: TorchState, directory: Path) -> Iterator[Save]:
        import holdfast

        with holdfast.Checkpointer(
            directory,
            state.objects,
            keep=holdfast.keep(last=1),
            on_error="raise",
            background="process",
            capture=self._capture,
        ) as ckpt:

            def before_update() -> None:
                if self.overlaps:
                    with ckpt.updating():
                        pass

            def save(step: int) -> Begun:
                pending = ckpt.save(step=step)
                return Begun(before_update, lambda: _check(bool(pending.wait())))

            yield save

    def restore(self, state: TorchState, directory: Path) -> None:
        import holdfast

        with holdfast.Checkpointer(directory, state.objects, background="off") as ckpt:
            _check(ckpt.restore() is not None)


class TorchSaveInPlace:
    """torch.save and fsync on the training thread: what most trainings do."""

    name = "torch.save + fsync"
    role: Role = "peer"
    overlaps = False

    def missing(self) -> str:
        return ""

    @contextmanager
    def opening(self, state: TorchState, directory: Path) -> Iterator[Save]:
        directory.mkdir()
        places = Places(directory)

        def save(step: int) -> Begun:
            with TorchSave().saving(state, places.next(step)) as call:
                call()
            return Begun(nothing, finishing(places.drop_older))

        yield save

    def restore(self, state: TorchState, directory: Path) -> None:
        with TorchSave().restoring(state, newest(directory)) as call:
            call()


class MemoryCopy:
    """One thread copies the tensors into memory that was touched before, and nothing else: the limit of a snapshot."""

    name = "bare copy to warm memory ×1"
    role: Role = "limit"
    overlaps = False

    def __init__(self) -> None:
        self._copied: list[np.ndarray] = []

    def missing(self) -> str:
        return ""

    def opening(self, state: TorchState, directory: Path) -> AbstractContextManager[Save]:
        sources = _bytes(state)
        memory = np.zeros(sum(map(len, sources)), np.uint8)
        ends = np.cumsum([len(source) for source in sources])
        self._copied = [memory[end - len(source) : end] for source, end in zip(sources, ends, strict=True)]

        def save(step: int) -> Begun:
            for source, target in zip(sources, self._copied, strict=True):
                np.copyto(target, source)
            return Begun(nothing, nothing)

        return nullcontext(save)

    def restore(self, state: TorchState, directory: Path) -> None:
        for source, target in zip(self._copied, _bytes(state), strict=True):
            np.copyto(target, source)

    def forget(self) -> None:
        """Give the memory back."""
        self._copied = []


class Places:
    """A directory for each checkpoint; only the last one stays, as with everybody here."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._used: list[Path] = []

    def next(self, step: int) -> Path:
        self._used.append(self._directory / f"{step:08d}")
        return self._used[-1]

    def drop_older(self) -> None:
        while len(self._used) > 1:
            shutil.rmtree(self._used.pop(0))


def newest(directory: Path) -> Path:
    """The checkpoint that Places left."""
    return max(path for path in directory.iterdir() if path.name.isdecimal())


def finishing(work: Call) -> Call:
    """Do the work in a thread: what a peer leaves to its user must not fall on the training. Gives the wait for it."""
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()

    def wait() -> None:
        thread.join()
        if failures:
            raise failures[0]

    return wait


def nothing() -> None:
    """What there is to wait for where all is done."""


def _bytes(state: TorchState) -> list[np.ndarray]:
    return [tensor.view(-1).view(torch.uint8).numpy() for tensor in state.flat.values()]


def _check(success: bool) -> None:
    if not success:
        raise RuntimeError("a save or restore that is being timed did not succeed")
