"""What a checkpoint costs on some machine: drawn from what it consists of, rather than each cost by itself.

| what | how it is drawn | where the range is from |
|---|---|---|
| state of a process | log-uniform, 1 MB to 100 GB | a small model; the most of one process |
| copy | log-uniform, 2 to 20 GB/s | 10 by one thread, 20 by two; less from small pages |
| fixed part of the stall | log-uniform, 0.5 to 100 ms | 5 ms for 1,200 tensors; 6 us a small leaf |
| capture | 50 % now, 35 % overlapped, 15 % waits | overlapped is 0.05 of a copy; files of a program wait |
| storage, for one process | log-uniform, 20 MB/s to 4 GB/s | a share of a busy one; a local disk |
| commit | log-uniform, 1 ms to 1 s | 0.5 ms for a small file here; a network |
| computing of the agent | 70 %: 0.3 to 0.6, 30 %: 2 to 3.5 s a GB | direct writes; through the page cache |
| taken from the training | 40 % nothing; else uniform, 0 to all of it | cores to spare, or not |
| lost because of that | as much; in 30 % of these twice that | processes that wait for each other |
| contention | in 12 %: steps longer by 0.5 to 50 %, log-uniform | a training that reads from that storage |
| said to be queued | 1 to 2 times what is taken, uniform | 1.1 to 1.2 with two threads here |

The measured figures are those of docs/explanation/performance.md and when-to-checkpoint.md. A write takes at least as
long as the agent computes; at most half of it is lost, for whoever shares a core gets half of it.
"""

import math
import random
from typing import NamedTuple

from holdfast.testing.simulation import Piece

__all__ = ["Machine", "random_machine"]

_GB = 1e9
_OVERLAPPED = 0.05
_MOST_LOST = 0.5  # of a write


class Machine(NamedTuple):
    """What checkpoints are made with."""

    size_bytes: float
    copy_bytes_s: float
    fixed_s: float
    copied: float
    """The part of a copy that the training waits for."""
    waits: bool
    """Whether the call returns only when all is written."""
    storage_bytes_s: float
    commit_s: float
    computing_s_gb: float
    """Seconds of a core for each GB."""
    lost: float
    """Of each of these seconds, so much is lost to the training."""
    queued: float
    """For each of them, the training's threads have no core for so long, all together: as they say themselves."""
    contention: float
    """How much longer steps take because the storage is busy with the write."""

    def piece(self, steps: int, step_s: float, *, grown: float = 1.0, slower: float = 1.0) -> Piece:
        """So many steps with a state that has grown by this factor, and a storage that is slower by that one."""
        size_bytes = self.size_bytes * grown
        computing_s = self.computing_s_gb * size_bytes / _GB
        write_s = max(computing_s, size_bytes / self.storage_bytes_s * slower)
        stall_s = self.fixed_s + self.copied * size_bytes / self.copy_bytes_s
        lost_s = min(_MOST_LOST * write_s, self.lost * computing_s + self.contention / (1 + self.contention) * write_s)
        queued_s = self.queued * computing_s
        if self.waits:
            stall_s, write_s, lost_s, queued_s = stall_s + write_s, 0.0, 0.0, 0.0
        after_s = write_s + self.commit_s
        return Piece(steps, step_s, stall_s, stall_s + after_s, lost_s / (after_s - lost_s), queued_s)


def random_machine(chance: random.Random) -> Machine:
    """By the table above."""
    taken = 0.0 if chance.random() < 0.4 else chance.uniform(0.0, 1.0)
    capture = chance.choices(("now", "overlapped", "waits"), (0.5, 0.35, 0.15))[0]
    return Machine(
        size_bytes=_log_uniform(chance, 1e-3 * _GB, 100 * _GB),
        copy_bytes_s=_log_uniform(chance, 2 * _GB, 20 * _GB),
        fixed_s=_log_uniform(chance, 0.0005, 0.1),
        copied=_OVERLAPPED if capture == "overlapped" else 1.0,
        waits=capture == "waits",
        storage_bytes_s=_log_uniform(chance, 0.02 * _GB, 4 * _GB),
        commit_s=_log_uniform(chance, 0.001, 1.0),
        computing_s_gb=chance.uniform(0.3, 0.6) if chance.random() < 0.7 else chance.uniform(2.0, 3.5),
        lost=taken * (2.0 if chance.random() < 0.3 else 1.0),
        queued=taken * chance.uniform(1.0, 2.0),
        contention=_log_uniform(chance, 0.005, 0.5) if chance.random() < 0.12 else 0.0,
    )


def _log_uniform(chance: random.Random, low: float, high: float) -> float:
    return low * math.exp(chance.random() * math.log(high / low))
