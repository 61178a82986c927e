"""Holdfast and its peers behind one interface: save a state durably, restore it into the tensors that exist.

Each imports its own library when it takes part, before it is timed.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

import torch

from benchmarks.measure import Call
from benchmarks.results import Role
from benchmarks.states import TorchState

__all__ = ["Contender", "Dcp", "Holdfast", "Safetensors", "TorchSave", "sync_files"]


class Contender(Protocol):
    """Both methods prepare what a training has anyway (untimed) and give the call that is timed."""

    name: str
    role: Role

    def saving(self, state: TorchState, directory: Path) -> AbstractContextManager[Call]: ...

    def restoring(self, state: TorchState, directory: Path) -> AbstractContextManager[Call]: ...


class Holdfast:
    """A Checkpointer that saves on the calling thread. A restore includes opening the run, as a restarted job does."""

    role: Role = "holdfast"

    def __init__(self, *, first: bool = False) -> None:
        """`first`: the first save of a process, which has to touch fresh memory for its buffers."""
        self.name = "holdfast, first save" if first else "holdfast"
        self._first = first

    @contextmanager
    def saving(self, state: TorchState, directory: Path) -> Iterator[Call]:
        import holdfast

        with holdfast.Checkpointer(
            directory, state.objects, keep=holdfast.KEEP_ALL, on_error="raise", background="off"
        ) as ckpt:
            if not self._first:
                ckpt.save(step=0)
            yield lambda: _check(ckpt.save(step=1).durable)

    @contextmanager
    def restoring(self, state: TorchState, directory: Path) -> Iterator[Call]:
        import holdfast

        opened: list[holdfast.Checkpointer] = []

        def restore() -> None:
            opened.append(holdfast.Checkpointer(directory, state.objects, keep=holdfast.KEEP_ALL, background="off"))
            _check(opened[0].restore() is not None)

        yield restore
        for ckpt in opened:
            ckpt.close()


class TorchSave:
    """torch.save to one file, then fsync; torch.load, then a copy into the tensors."""

    role: Role = "peer"

    def __init__(self, *, mapped: bool = False) -> None:
        self.name = "torch, mmap=True" if mapped else "torch"
        self._mapped = mapped

    def saving(self, state: TorchState, directory: Path) -> AbstractContextManager[Call]:
        def save() -> None:
            directory.mkdir()
            torch.save(state.nested, directory / "state.pt")
            sync_files(directory / "state.pt", directory, directory.parent)

        return nullcontext(save)

    def restoring(self, state: TorchState, directory: Path) -> AbstractContextManager[Call]:
        def restore() -> None:
            loaded = torch.load(directory / "state.pt", weights_only=True, mmap=self._mapped)
            _copy_nested(loaded, state.nested)

        return nullcontext(restore)


class Safetensors:
    """save_file of the flat tensors, then fsync; load_file, then a copy into the tensors."""

    name = "safetensors"
    role: Role = "peer"

    def saving(self, state: TorchState, directory: Path) -> AbstractContextManager[Call]:
        import safetensors.torch

        def save() -> None:
            directory.mkdir()
            safetensors.torch.save_file(state.flat, directory / "state.safetensors")
            sync_files(directory / "state.safetensors", directory, directory.parent)

        return nullcontext(save)

    def restoring(self, state: TorchState, directory: Path) -> AbstractContextManager[Call]:
        import safetensors.torch

        def restore() -> None:
            loaded = safetensors.torch.load_file(directory / "state.safetensors")
            for name, tensor in state.flat.items():
                tensor.copy_(loaded[name])

        return nullcontext(restore)


class Dcp:
    """torch.distributed.checkpoint in a single process; its writer syncs its files itself."""

    name = "torch DCP"
    role: Role = "peer"

    def saving(self, state: TorchState, directory: Path) -> AbstractContextManager[Call]:
        import torch.distributed.checkpoint as dcp

        def save() -> None:
            writer = dcp.FileSystemWriter(directory, thread_count=2, sync_files=True)
            dcp.save(state.nested, storage_writer=writer, no_dist=True)
            sync_files(directory, directory.parent)

        return nullcontext(save)

    def restoring(self, state: TorchState, directory: Path) -> AbstractContextManager[Call]:
        import torch.distributed.checkpoint as dcp

        # It loads into the tensors that it is given.
        return nullcontext(lambda: dcp.load(state.nested, storage_reader=dcp.FileSystemReader(directory), no_dist=True))


def sync_files(*paths: Path) -> None:
    """Make files and directories durable."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _copy_nested(source: object, target: object) -> None:
    if isinstance(target, torch.Tensor):
        assert isinstance(source, torch.Tensor)
        with torch.no_grad():
            target.copy_(source)
    elif isinstance(target, Mapping):
        assert isinstance(source, Mapping)
        for key, value in target.items():
            _copy_nested(source[key], value)


def _check(success: bool) -> None:
    if not success:
        raise RuntimeError("a save or restore that is being timed did not succeed")
