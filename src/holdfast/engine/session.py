"""A session: one attempt at one run, and what it has to remember between saves and restores."""

import os
import socket

from holdfast.core.clock import Clock, utc_text
from holdfast.core.errors import UsageError
from holdfast.core.limits import MAX_FORKS
from holdfast.core.names import attempt_key
from holdfast.core.values import Checkpoint, Fork
from holdfast.engine.attempts import begin_attempt
from holdfast.engine.blocks import BlockPool
from holdfast.engine.catalog import Catalog, HeadCache, read_catalog
from holdfast.engine.identity import found_run
from holdfast.engine.journal import Journal
from holdfast.engine.telling import Teller
from holdfast.policy.lineage import in_order
from holdfast.storage.store import Store

__all__ = ["Session", "default_workers"]


def default_workers() -> int:
    """Threads for copying, digesting and writing: two for each core keep the disk busy while others compute."""
    return max(2, min(8, 2 * len(os.sched_getaffinity(0))))


class Session:
    """One attempt. Begins with the fence of I11; a rollback begins another one in the same process."""

    def __init__(self, store: Store, clock: Clock, *, takeover: bool, fresh: bool, workers: int) -> None:
        self.store = store
        self.clock = clock
        self.workers = workers
        self.starts_over = fresh
        """Whether what the run has is left behind, on purpose or because there is nothing."""
        self.pool = BlockPool()
        self._teller = Teller()
        self.heads: HeadCache = {}
        self.attempt = 0
        self.seq = 0
        self.last_step: int | None = None
        self.origin: str | None = None
        self.parent: str | None = None
        self.forks: tuple[Fork, ...] = ()
        self.suspicion_reach: int | None = None
        """How many steps back a sign of trouble makes checkpoints suspect; None where nobody looks for any."""
        self.safe_before: int | None = None
        self.told_of_metric = False
        self.shares_attempt = False
        self.used_names: set[str] = set()
        self.run_id = found_run(store, clock)
        self._begin(takeover=takeover)

    def catalog(self) -> Catalog:
        """What the run holds now."""
        return read_catalog(self.store, self.run_id, cache=self.heads)

    def roll_back(self) -> None:
        """Begin a new attempt in this process, so that steps never go backwards within one.

        FencedError where the run belongs to a newer writer (I11).
        """
        previous = self.attempt
        self._begin(takeover=True, follows=previous)
        self.store.let_go(attempt_key(previous))

    def resume_from(self, checkpoint: Checkpoint) -> None:
        """Remember where the training goes on from, and whether that leaves newer checkpoints behind."""
        self.origin = self.parent = checkpoint.id
        self.last_step = checkpoint.step
        # At once: what is found in memory only is written, and old ones are pruned, before the next step.
        reach = self.suspicion_reach
        self.safe_before = None if reach is None else max(0, checkpoint.step + 1 - reach)
        newest = in_order([*self.catalog().checkpoints, checkpoint])[-1]
        self.forks = checkpoint.forks
        if newest.id != checkpoint.id:
            self.forks = (*self.forks, Fork(self.attempt, checkpoint.id))[-MAX_FORKS:]

    def note_commit(self, checkpoint: Checkpoint) -> None:
        """Remember a checkpoint that now exists, or will as far as the training is concerned."""
        self.seq = checkpoint.seq
        self.parent = checkpoint.id
        self.last_step = checkpoint.step

    def check_step(self, step: int) -> None:
        """UsageError where the step goes backwards."""
        if self.last_step is not None and step < self.last_step:
            raise UsageError(
                f"step {step} comes after step {self.last_step} of the same attempt",
                hint="steps must not go backwards; to go back, restore(which=step) first",
            )

    def check_continues(self) -> None:
        """UsageError where the run has checkpoints that this attempt does not go on from (I12)."""
        if self.origin is not None or self.seq > 0 or self.starts_over:
            return
        found = self.catalog().checkpoints
        if found:
            raise UsageError(
                f"{self.store.location} has {len(found)} checkpoints, and none of them was restored",
                hint="call restore() before the first save; to start over on purpose, use a new run directory, "
                "or Checkpointer(..., fresh=True): what is there becomes an abandoned branch",
            )
        self.starts_over = True

    def tell(self, event: str, **details: object) -> None:
        """To the journal, some time later: nobody waits for a storage that hangs."""
        journal, time = self.journal, utc_text(self.clock.utc_s())
        self._teller.tell(lambda: journal.record(event, durable=False, time=time, **details))

    def flush(self, timeout_s: float) -> bool:
        """Wait until the journal was told; whether it was."""
        return self._teller.flush(timeout_s)

    def close(self) -> None:
        """Let the run go."""
        self._teller.close()
        self.store.let_go(attempt_key(self.attempt))
        self.store.close()

    def _begin(self, *, takeover: bool, follows: int | None = None) -> None:
        self.attempt = begin_attempt(self.store, self.clock, run_id=self.run_id, takeover=takeover, follows=follows)
        self.journal = Journal(self.store, self.clock, self.attempt)
        self.origin = self.parent = self.last_step = None
        self.forks = (Fork(self.attempt, None),) if self.starts_over else ()
        self.seq = 0
        self.journal.record("attempt", pid=os.getpid(), host=socket.gethostname())
