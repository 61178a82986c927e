"""What a save and a restore give to the program."""

import _thread
import math
import time

from holdfast.core.calls import public_call
from holdfast.core.clock import Clock, SystemClock
from holdfast.core.errors import HoldfastError, SaveFailedError
from holdfast.core.values import Checkpoint
from holdfast.engine.provenance import Drift
from holdfast.engine.restoring import Loaded

__all__ = ["PendingCheckpoint", "Restored"]

_LOOK_S = 1.0


class PendingCheckpoint:
    """A save and its two moments: *staged* (the program may change its state) and *durable* (it survives anything)."""

    is_awaited = False
    """Whether somebody waits, or has waited, for it to be durable."""

    def __init__(self, step: int, clock: Clock | None = None) -> None:
        self.step = step
        self._clock = clock or SystemClock()
        self._began_s = self._clock.monotonic_s()
        self.took_s: float | None = None
        """From the call until it was durable, or had failed; None before."""
        self.id: str | None = None
        """The name of the durable checkpoint; None before."""
        self.error: HoldfastError | None = None
        """Why it will not become durable."""
        self._is_staged = self._is_settled = False
        # No Event: a signal handler that waits in the middle of a wait would find its lock taken.
        self._unsettled = _thread.allocate_lock()
        self._unsettled.acquire()
        self._held = [self._unsettled]

    @property
    def staged(self) -> bool:
        """Whether the program may change its state again: the checkpoint has a copy of it, or will not come to be."""
        return self._is_staged or self.settled

    @property
    def durable(self) -> bool:
        """Whether the checkpoint exists and survives a power cut."""
        return self.id is not None

    @property
    def settled(self) -> bool:
        """Whether it is durable or has failed: nothing more will happen."""
        return self._is_settled

    @public_call("holdfast.PendingCheckpoint.wait")
    def wait(self, timeout_s: float | None = None) -> str:
        """The id of the durable checkpoint; raises what went wrong, or SaveFailedError when the time is over."""
        self.is_awaited = True
        self._wait(math.inf if timeout_s is None else timeout_s)
        if self.error is not None:
            raise self.error
        if self.id is None:
            raise SaveFailedError(
                f"the checkpoint of step {self.step} is not durable yet, after {timeout_s:g} s",
                hint="it is still being written: wait longer, or look at holdfast doctor for the speed of the storage",
            )
        return self.id

    def settle(self, timeout_s: float) -> bool:
        """Wait until it is durable or has failed; whether it is settled now. Raises nothing."""
        self.is_awaited = True
        return self._wait(timeout_s)

    def note_staged(self) -> None:
        """The state was copied."""
        self._is_staged = True

    def note_durable(self, checkpoint_id: str) -> None:
        """The checkpoint exists."""
        self.id = checkpoint_id
        self._settle()

    def note_failed(self, error: HoldfastError) -> None:
        """It will not come to exist."""
        self.error = error
        self._settle()

    def _settle(self) -> None:
        self.took_s = self._clock.monotonic_s() - self._began_s
        self._is_settled = True
        try:
            self._held.pop().release()
        except IndexError:
            pass  # it was settled before

    def _wait(self, timeout_s: float) -> bool:
        end_s = time.monotonic() + timeout_s
        is_over = False
        while not (self._is_settled or is_over):
            left_s = end_s - time.monotonic()
            # In parts: one that Ctrl-C has ended between these lines took the lock along.
            if self._unsettled.acquire(timeout=max(0.0, min(left_s, _LOOK_S))):
                self._unsettled.release()  # for whoever else waits
            is_over = left_s <= _LOOK_S
        return self._is_settled

    def __repr__(self) -> str:
        if self.error is not None:
            return f"<PendingCheckpoint step {self.step}: failed: {self.error.message}>"
        state = "durable" if self.durable else "staged" if self.staged else "being copied"
        return f"<PendingCheckpoint step {self.step}: {state}>"


class Restored:
    """What was restored, and what is not as it was when the checkpoint was made."""

    def __init__(self, loaded: Loaded) -> None:
        self.checkpoint: Checkpoint = loaded.checkpoint
        self.id = loaded.checkpoint.id
        self.step = loaded.checkpoint.step
        self.epoch = loaded.checkpoint.epoch
        self.metrics = dict(loaded.checkpoint.metrics)
        self.note = loaded.checkpoint.note
        self.drift: list[Drift] = loaded.drift
        self.skipped: list[str] = loaded.skipped
        self.where = loaded.where
        """What it was read from: "memory" or "disk"."""

    def __repr__(self) -> str:
        return f"<Restored step {self.step}: {self.id}>"
