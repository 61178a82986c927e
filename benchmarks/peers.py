"""Asynchronous peers, each with the settings that serve it best. What is not installed takes no part.

Each imports its own library when it is opened.
"""

import functools
import importlib.metadata
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.background import (
    Background,
    Begun,
    HoldfastBackground,
    Places,
    Save,
    TorchSaveInPlace,
    finishing,
    newest,
    nothing,
)
from benchmarks.contenders import Dcp, TorchSave, sync_files
from benchmarks.results import Role
from benchmarks.states import TorchState

__all__ = ["BACKGROUND", "present"]


class DcpAsync:
    """torch.distributed.checkpoint.async_save with staging memory that is allocated once."""

    role: Role = "peer"

    def __init__(self, *, process: bool, overlapped: bool = False) -> None:
        """`overlapped`: staged by a thread while the training computes; the next update waits for it."""
        self.name = f"DCP async, {'process' if process else 'thread'}{', overlapped' if overlapped else ''}"
        self._process = process
        self.overlaps = overlapped

    def missing(self) -> str:
        return ""

    @contextmanager
    def opening(self, state: TorchState, directory: Path) -> Iterator[Save]:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        directory.mkdir()
        places = Places(directory)
        stager = DefaultStager(StagingOptions(False, self._process, self.overlaps, False))  # no accelerator
        kind = AsyncCheckpointerType.PROCESS if self._process else AsyncCheckpointerType.THREAD
        begin = functools.partial(
            dcp.async_save, async_checkpointer_type=kind, async_stager=stager, no_dist=not self._process
        )

        def save(step: int) -> Begun:
            place = places.next(step)
            begun = begin(state.nested, storage_writer=dcp.FileSystemWriter(place, thread_count=2, sync_files=True))
            done = begun.upload_completion if self.overlaps else begun

            def finish() -> None:
                done.result()
                sync_files(place, directory)
                places.drop_older()

            staged = begun.staging_completion.result if self.overlaps else nothing
            return Begun(staged, finishing(finish))

        with _checkpoint_process() if self._process else nullcontext():
            yield save
            stager.close()

    def restore(self, state: TorchState, directory: Path) -> None:
        with Dcp().restoring(state, newest(directory)) as call:
            call()


class TorchSnapshot:
    """torchsnapshot's async_take. It does not sync its files; that is done for it, in the background."""

    name = "torchsnapshot async"
    role: Role = "peer"
    overlaps = False

    def missing(self) -> str:
        return _not_installed("torchsnapshot")

    @contextmanager
    def opening(self, state: TorchState, directory: Path) -> Iterator[Save]:
        import torchsnapshot

        directory.mkdir()
        places = Places(directory)
        application = {"state": torchsnapshot.StateDict(**state.nested)}

        def save(step: int) -> Begun:
            place = places.next(step)
            pending = torchsnapshot.Snapshot.async_take(str(place), application)

            def finish() -> None:
                pending.wait()
                _sync_below(place)
                sync_files(directory)
                places.drop_older()

            return Begun(nothing, finishing(finish))

        yield save

    def restore(self, state: TorchState, directory: Path) -> None:
        import torchsnapshot

        application = {"state": torchsnapshot.StateDict(**state.nested)}
        torchsnapshot.Snapshot(str(newest(directory))).restore(application)


class LightningAsync:
    """Lightning's AsyncCheckpointIO around its own torch.save, with the fsync that it lacks in the same thread."""

    name = "Lightning AsyncCheckpointIO"
    role: Role = "peer"
    overlaps = False

    def missing(self) -> str:
        return _not_installed("lightning")

    @contextmanager
    def opening(self, state: TorchState, directory: Path) -> Iterator[Save]:
        from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
        from lightning.pytorch.plugins.io import AsyncCheckpointIO

        directory.mkdir()
        places = Places(directory)
        finished = threading.Semaphore(0)

        class Synced(TorchCheckpointIO):  # type: ignore[misc]
            def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
                try:
                    super().save_checkpoint(checkpoint, path, storage_options)
                    sync_files(Path(path), Path(path).parent, directory)
                    places.drop_older()
                finally:
                    finished.release()

        plugin = AsyncCheckpointIO(Synced())

        def save(step: int) -> Begun:
            place = places.next(step)
            place.mkdir()
            plugin.save_checkpoint(state.nested, place / "state.pt")
            return Begun(nothing, lambda: _acquired(finished))

        yield save
        plugin.teardown()  # raises what went wrong

    def restore(self, state: TorchState, directory: Path) -> None:
        with TorchSave().restoring(state, newest(directory)) as call:
            call()


class OrbaxAsync:
    """Orbax's AsyncCheckpointer, with the tensors as numpy arrays that share their memory."""

    name = "Orbax async (numpy)"
    role: Role = "peer"
    overlaps = False

    def missing(self) -> str:
        return _not_installed("orbax-checkpoint")

    @contextmanager
    def opening(self, state: TorchState, directory: Path) -> Iterator[Save]:
        import orbax.checkpoint as ocp

        logging.getLogger("absl").setLevel(logging.ERROR)
        directory.mkdir()
        places = Places(directory)
        tree = _arrays(state)

        with ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler()) as checkpointer:

            def save(step: int) -> Begun:
                place = places.next(step).absolute()
                checkpointer.save(place, args=ocp.args.StandardSave(tree))

                def finish() -> None:
                    checkpointer.wait_until_finished()
                    _sync_below(place)
                    sync_files(directory)
                    places.drop_older()

                return Begun(nothing, finishing(finish))

            yield save

    def restore(self, state: TorchState, directory: Path) -> None:
        import orbax.checkpoint as ocp

        tree = _arrays(state)
        with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
            found = checkpointer.restore(newest(directory).absolute(), args=ocp.args.StandardRestore(tree))
        for name, tensor in state.flat.items():
            tensor.copy_(torch.from_numpy(found[name]).view(tensor.shape))


BACKGROUND: Mapping[str, Callable[[], Background]] = {
    "now": lambda: HoldfastBackground("now"),
    "overlapped": lambda: HoldfastBackground("overlapped"),
    "torch": TorchSaveInPlace,
    "dcp-thread": lambda: DcpAsync(process=False),
    "dcp-process": lambda: DcpAsync(process=True),
    "dcp-overlapped": lambda: DcpAsync(process=True, overlapped=True),
    "torchsnapshot": TorchSnapshot,
    "lightning": LightningAsync,
    "orbax": OrbaxAsync,
}
"""Everybody, by a word that a child process can be given."""


def present(words: Sequence[str] = tuple(BACKGROUND)) -> tuple[dict[str, Background], list[str]]:
    """Who of them can take part here, and a sentence for everybody who cannot."""
    found = {word: BACKGROUND[word]() for word in words}
    reasons = {word: contender.missing() for word, contender in found.items()}
    return (
        {word: contender for word, contender in found.items() if not reasons[word]},
        [f"{found[word].name} is not measured: {reason}." for word, reason in reasons.items() if reason],
    )


def _acquired(finished: threading.Semaphore) -> None:
    finished.acquire()


_TRIES = 5


@contextmanager
def _checkpoint_process() -> Iterator[None]:
    """The process that DCP writes with: started before anything is timed, left without a state afterwards."""
    if not dist.is_initialized():
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")  # the host's name need not resolve
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with _quiet():
        for tries_left in reversed(range(_TRIES)):
            try:
                _save_nothing()
                break
            except dist.DistError:  # DCP looks for a free port, and somebody else may be faster
                if not tries_left:
                    raise
    yield
    _save_nothing()  # it holds on to what it was given last


def _save_nothing() -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    with tempfile.TemporaryDirectory() as directory:
        dcp.async_save(
            {"nothing": torch.zeros(1)},
            storage_writer=dcp.FileSystemWriter(directory),
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
        ).result()


@contextmanager
def _quiet() -> Iterator[None]:
    """What a process that starts now inherits as its output: it narrates everything it does."""
    kept = [os.dup(descriptor) for descriptor in (1, 2)]
    with open(os.devnull, "wb") as sink:
        for descriptor in (1, 2):
            os.dup2(sink.fileno(), descriptor)
    try:
        yield
    finally:
        for descriptor, old in zip((1, 2), kept, strict=True):
            os.dup2(old, descriptor)
            os.close(old)


def _arrays(state: TorchState) -> dict[str, Any]:
    # Arrays without dimensions come back as scalars of another kind.
    return {name: tensor.numpy().reshape(tensor.shape or (1,)) for name, tensor in state.flat.items()}


def _sync_below(directory: Path) -> None:
    sync_files(*(path for path in directory.rglob("*")), directory)


def _not_installed(package: str) -> str:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return f"{package} is not installed (requirements/bench.txt)"
    return ""
