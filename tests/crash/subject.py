"""The smallest program that checkpoints: a few arrays and values whose every bit says which save they belong to."""

import copy
import functools
import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal
from unittest.mock import patch

import numpy as np

from holdfast.checkpointer import Checkpointer
from holdfast.core.clock import SystemClock
from holdfast.engine.blocks import BlockPool
from holdfast.policy.keep import KEEP_ALL, Keep
from holdfast.storage import posix_locks
from holdfast.storage.files import Files

__all__ = ["RUN", "Program", "forget_processes", "in_memory", "quiet", "read_tree", "small_and_fast"]

RUN = "/run"
_PAGE_BYTES = 4096
_PROVENANCE = {"holdfast": "rig"}
_WITH_CHUNKS = (
    "agent.background",
    "engine.ahead",
    "engine.capture",
    "engine.filled",
    "engine.overlap",
    "engine.persist",
    "engine.saving",
)


class Program:
    """A training whose state after save number n is a function of n; `saved` tells which n the state holds."""

    def __init__(self, *, floats: int = 40) -> None:
        self._floats = floats
        self.state: dict[str, object] = copy.deepcopy(_state_of(0, floats))

    def become(self, number: int) -> None:
        """Compute until the state is the one to be saved as that number."""
        fresh = _state_of(number, self._floats)
        for name, value in fresh.items():
            held = self.state[name]
            if isinstance(held, np.ndarray):
                held[...] = value
            elif isinstance(held, dict) and isinstance(value, dict):
                held.clear()
                held.update(value)

    def saved(self) -> int | None:
        """Which save the state is, bit for bit; None where it is none: torn, mixed or wrong."""
        progress = self.state["progress"]
        number = progress.get("number") if isinstance(progress, dict) else None
        if type(number) is not int:
            return None
        return number if _same(self.state, _state_of(number, self._floats)) else None

    def checkpointer(
        self,
        files: Files | None,
        path: str = RUN,
        *,
        retain: Keep = KEEP_ALL,
        takeover: bool = False,
        background: Literal["process", "thread", "off"] = "off",
    ) -> Checkpointer:
        """The run at the path, opened for this program; in the foreground unless something else is said.

        Without suspicion: the rig restores the same checkpoint again and again on purpose. One worker: the order of
        the operations is then always the same.
        """
        return Checkpointer(
            path,
            self.state,
            keep=retain,
            takeover=takeover,
            background=background,
            files=files,
            clock=_Clock(),
            random=False,
            suspect_after=None,
            workers=1,
        )


def read_tree(files: Files) -> object:
    """The newest checkpoint as somebody gets it who has no program to compare it with."""
    return Checkpointer(RUN, files=files, clock=_Clock(), random=False, workers=1).load()


class _Clock(SystemClock):
    """The machine's clock, except that waiting takes no time: there are very many retries to wait for."""

    def __init__(self) -> None:
        self._slept_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self._slept_s

    def sleep(self, seconds: float) -> None:
        self._slept_s += seconds


@contextmanager
def small_and_fast(chunk_bytes: int = _PAGE_BYTES) -> Iterator[None]:
    """Shards are written page by page, so that a few kilobytes are many writes and many chunks; git is not asked."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(BlockPool.__init__, "__defaults__", (chunk_bytes,)))
        stack.enter_context(patch("holdfast.agent.worker._BLOCK_BYTES", chunk_bytes))
        for module in _WITH_CHUNKS:
            stack.enter_context(patch(f"holdfast.{module}.CHUNK_BYTES", chunk_bytes))
        stack.enter_context(patch("holdfast.checkpointer.begin_provenance", lambda: lambda: dict(_PROVENANCE)))
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings that fallbacks and failed saves print: here they are expected by the thousand."""
    logger = logging.getLogger("holdfast")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def in_memory() -> str | None:
    """A directory of a file system in memory, where a sync costs nothing; None, for the usual one, where none is."""
    memory = "/dev/shm"
    return memory if os.path.isdir(memory) else None


def forget_processes() -> None:
    """Processes that were simulated in this one and died leave no locks behind, and no memory of their disks."""
    posix_locks.current_registry().kept.clear()


@functools.lru_cache(maxsize=256)
def _state_of(number: int, floats: int) -> dict[str, object]:
    seed = hashlib.sha256(str(number).encode()).digest()
    rng = np.random.default_rng(list(seed))
    return {
        "weights": rng.standard_normal(floats),
        "mask": rng.integers(0, 2, 3).astype(bool),
        "progress": {"number": number, "seen": float(rng.standard_normal()), "name": seed.hex()[:8]},
    }


def _same(left: dict[str, object], right: dict[str, object]) -> bool:
    for name, value in right.items():
        held = left.get(name)
        if isinstance(value, np.ndarray):
            is_equal = isinstance(held, np.ndarray) and held.dtype == value.dtype and held.tobytes() == value.tobytes()
        else:
            is_equal = held == value
        if not is_equal:
            return False
    return True
