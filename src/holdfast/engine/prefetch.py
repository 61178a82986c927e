"""Read the newest checkpoint into the page cache while the program still imports its framework.

Light on purpose: what takes seconds to import is what this is to overlap with. It only warms: a restore reads and
verifies everything as always, and finds it in memory.
"""

import mmap
import os
import threading
import weakref
from collections.abc import Callable
from os import PathLike

from holdfast.core.calls import public_call
from holdfast.core.errors import HoldfastError, UsageError
from holdfast.core.limits import MAX_MANIFEST_BYTES
from holdfast.core.names import MANIFEST_NAME
from holdfast.core.values import MEMORY, Checkpoint
from holdfast.engine.blocks import run_workers
from holdfast.engine.catalog import read_catalog
from holdfast.engine.identity import identify
from holdfast.engine.journal import read_events
from holdfast.engine.snapshots import close_snapshots, find_snapshots, with_snapshots
from holdfast.policy.lineage import latest
from holdfast.storage.posix import PosixStore
from holdfast.tiers.room import memory_room

__all__ = ["Prefetch", "prefetch", "wait_for_prefetches"]

_THREADS = 2
_PIECE_BYTES = 4 << 20
_SHARD_END = ".safetensors"


# A restore waits at most this long for what is being read already: reading it twice takes longer.
_PATIENCE_S = 60.0
_running: "weakref.WeakSet[Prefetch]" = weakref.WeakSet()


def wait_for_prefetches() -> None:
    """Let what was begun come to its end, before somebody else reads the same."""
    for running in list(_running):
        running.wait(_PATIENCE_S)


@public_call("holdfast.prefetch")
def prefetch(run: str | PathLike[str]) -> "Prefetch":
    """Begin to read the checkpoint that `restore()` would take, and return at once.

    Whatever goes wrong ends it quietly, and costs nothing but its time: a missing or damaged run, too little memory.
    """
    if not isinstance(run, str | PathLike) or not isinstance(os.fspath(run), str) or not os.fspath(run):
        raise UsageError(f"{run!r} is not a path", hint="give the path of the run's directory, as text")
    return Prefetch(os.fspath(run))


class Prefetch:
    """Reading that goes on in threads; it ends with the program, if it does not end before."""

    def __init__(self, run: str) -> None:
        self.total_bytes = 0
        """What there is to read; 0 before that is known, and where there is nothing."""
        self.outcome = ""
        """One sentence, when it is over: what was read, or why nothing was."""
        self._run = run
        self._done = [0] * _THREADS
        self._cancelled = False
        self._over = threading.Event()
        _running.add(self)
        try:
            threading.Thread(target=self._work, name="holdfast-prefetch", daemon=True).start()
        except RuntimeError as error:  # no more threads
            self._end(f"nothing was read: {error}")

    @property
    def done_bytes(self) -> int:
        """How much was read so far."""
        return sum(self._done)

    @property
    def done(self) -> bool:
        """Whether it is over: all was read, or nothing more will be."""
        return self._over.is_set()

    @public_call("holdfast.Prefetch.wait")
    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it was over in time. Before a restore: what is half-way there would be read twice."""
        return self._over.wait(timeout_s)

    def cancel(self) -> None:
        """Stop after the piece that is being read."""
        self._cancelled = True

    def __repr__(self) -> str:
        return f"<Prefetch of {self._run}: {self.outcome or f'{self.done_bytes} of {self.total_bytes} bytes'}>"

    def _work(self) -> None:
        try:
            # Not past the page cache: that is where everything is to come to.
            store = PosixStore(self._run, readonly=True, direct=False)
            try:
                outcome = self._read(store)
            finally:
                store.close()
        except HoldfastError as error:
            outcome = f"stopped: {error.message}"
        except Exception as error:  # noqa: BLE001  a help that fails must not be more than no help
            outcome = f"stopped: {type(error).__name__}: {error}"
        self._end(outcome)

    def _end(self, outcome: str) -> None:
        self.outcome = outcome
        self._over.set()

    def _read(self, store: PosixStore) -> str:
        checkpoint = _newest(store)
        if MEMORY in checkpoint.where:
            return f"step {checkpoint.step} is in memory: nothing has to be read"
        names = [entry.name for entry in store.list(checkpoint.id) if entry.name.endswith(_SHARD_END)]
        store.read(f"{checkpoint.id}/{MANIFEST_NAME}", MAX_MANIFEST_BYTES)
        room = memory_room()
        if checkpoint.size_bytes > room.free_bytes // 2:
            # Half of it would be of no use: a restore takes the cache only if it has everything.
            return f"nothing was read: {checkpoint.size_bytes} bytes are more than half of {room.limited_by}"
        self.total_bytes = checkpoint.size_bytes
        for name in names:
            self._read_shard(store, f"{checkpoint.id}/{name}")
        return "cancelled" if self._cancelled else f"step {checkpoint.step} is in the page cache"

    def _read_shard(self, store: PosixStore, key: str) -> None:
        def read(next_part: Callable[[], int | None]) -> None:
            try:
                while (part := next_part()) is not None:
                    self._read_part(store, key, part)
            except BaseException:
                self._cancelled = True
                raise

        run_workers(read, _THREADS, _THREADS)

    def _read_part(self, store: PosixStore, key: str, part: int) -> None:
        """One contiguous part, by a descriptor of its own: the system reads ahead of each."""
        reader = store.open(key)
        try:
            share = -(-reader.size_bytes // _THREADS)
            begin, end = share * part, min(share * (part + 1), reader.size_bytes)
            if reader.is_cached():  # to read it again would only take the core from the program's imports
                self._done[part] += max(0, end - begin)
                return
            with mmap.mmap(-1, _PIECE_BYTES) as memory, memoryview(memory) as scratch:
                for offset in range(begin, end, _PIECE_BYTES):
                    if self._cancelled:
                        return
                    size_bytes = min(_PIECE_BYTES, end - offset)
                    with scratch[:size_bytes] as piece:
                        reader.read_at([piece], offset)
                    self._done[part] += size_bytes
        finally:
            reader.close()


def _newest(store: PosixStore) -> Checkpoint:
    """What a restore would try first; NoCheckpointError where there is none."""
    run_id = identify(store)
    snapshots = find_snapshots(run_id, store.location)
    try:
        return latest(with_snapshots(read_catalog(store, run_id), snapshots, read_events(store)).checkpoints)
    finally:
        close_snapshots(snapshots)
