"""What a save and a restore give to the program."""

from holdfast.core.errors import HoldfastError, SaveFailedError
from holdfast.core.values import Checkpoint
from holdfast.engine.provenance import Drift
from holdfast.engine.restoring import Loaded

__all__ = ["PendingCheckpoint", "Restored"]


class PendingCheckpoint:
    """A save and its two moments: *staged* (the program may go on) and *durable* (it survives anything)."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.id: str | None = None
        self.error: HoldfastError | None = None

    @property
    def staged(self) -> bool:
        """Whether the program may change its state again."""
        return self.id is not None or self.error is not None

    @property
    def durable(self) -> bool:
        """Whether the checkpoint exists and survives a power cut."""
        return self.id is not None

    def wait(self, timeout_s: float | None = None) -> str:
        """The id of the durable checkpoint; raises what went wrong."""
        del timeout_s  # saves are synchronous: there is nothing left to wait for
        if self.error is not None:
            raise self.error
        if self.id is None:
            raise SaveFailedError(f"the checkpoint of step {self.step} is not durable")
        return self.id

    def __repr__(self) -> str:
        state = "durable" if self.durable else f"failed: {self.error}"
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

    def __repr__(self) -> str:
        return f"<Restored step {self.step}: {self.id}>"
