"""Small values that travel between layers. Light on purpose: `holdfast ls` imports this and little else."""

from collections.abc import Mapping

from holdfast.core.light_typing import NamedTuple

__all__ = ["DISK", "MEMORY", "Checkpoint", "CheckpointName", "Fork"]

DISK = "disk"
MEMORY = "memory"

CheckpointName = str
"""The name of a checkpoint's directory, as `core.names.CheckpointId` spells it."""


class Fork(NamedTuple):
    """A rollback: the attempt went on from the origin, and what came after the origin before it was left behind."""

    attempt: int
    origin: CheckpointName | None
    """None for an attempt that started over on purpose."""


class Checkpoint(NamedTuple):
    """One checkpoint as the catalogue knows it: the head of its manifest and its marks."""

    id: CheckpointName
    step: int
    epoch: int | None
    attempt: int
    seq: int
    """Counts the checkpoints of one attempt, from 1."""
    parent: CheckpointName | None
    """The one before it in the same training: saved or restored by the same attempt."""
    origin: CheckpointName | None
    """The one that its attempt was restored from; None for an attempt that started fresh."""
    utc_s: float
    """When it was saved; for people and `for_days`, never for ordering."""
    size_bytes: int
    leaves: int
    world: int
    metrics: Mapping[str, float]
    note: str
    tags: tuple[str, ...]
    pickle: bool
    """Holds pickled objects: loading it takes the opt-in."""
    pinned: bool = False
    verified: bool = False
    """All its bytes were read back and matched their digests at least once."""
    quarantined: str = ""
    """Why it must not be used; empty for a good one."""
    damaged: str = ""
    """What `holdfast verify` found wrong with it, and has not found intact since; empty where it found nothing."""
    suspect: str = ""
    """Why its contents may be unhealthy, though they are intact: the loss was failing; empty for a healthy one."""
    forks: tuple[Fork, ...] = ()
    """Where its line left others behind, oldest first."""
    where: tuple[str, ...] = (DISK,)
    """The places that have it, fastest first."""

    @property
    def is_sound(self) -> bool:
        """Whether retention may count on it: nothing is known to be wrong with its bytes (I6)."""
        return not self.quarantined and not self.damaged
