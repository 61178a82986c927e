"""What the witness of a proof is in every other program: nobody, who wants nothing and sees nothing."""

# ruff: noqa: ARG002  the names are those of the witness

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from os import PathLike
from typing import TYPE_CHECKING

from holdfast.engine.evidence import PLAN_VARIABLE
from holdfast.engine.outcome import PendingCheckpoint
from holdfast.format.encode import Encoded

if TYPE_CHECKING:
    from holdfast.engine.witness import Witness

__all__ = ["Unwatched", "witness_or_nobody"]

Encode = Callable[[], Encoded]


def witness_or_nobody() -> "Witness | Unwatched":
    """Who watches this program: the witness of the proof that has started it, or nobody."""
    if PLAN_VARIABLE not in os.environ:
        return Unwatched()
    from holdfast.engine.witness import find_witness  # which nobody else needs

    return find_witness() or Unwatched()


class Unwatched:
    """The methods of `engine.witness.Witness`, without effect."""

    sees_every_step = False
    is_in_step = False

    def place(self, run: str | PathLike[str]) -> str | PathLike[str]:
        """Where the run goes."""
        return run

    def attach(
        self, run: str | PathLike[str], encode: Encode, state: Mapping[str, object], *, close: Callable[[], None]
    ) -> None:
        """A Checkpointer was made."""

    def note_restored(self, step: int, encode: Encode | None = None) -> None:
        """A checkpoint was restored."""

    def note_nothing(self) -> None:
        """There was nothing to restore."""

    def note_step(self, step: int, epoch: int | None, metrics: Mapping[str, object]) -> None:
        """A step was made."""

    def wants_save(self, step: int) -> bool:
        """Whether this step is to be saved, whatever else is said."""
        return False

    def saving(
        self, step: int, epoch: int | None, metrics: Mapping[str, object], encode: Encode | None = None
    ) -> AbstractContextManager[None]:
        """Around every save."""
        return nullcontext()

    def leave(self, step: int, pending: PendingCheckpoint | None) -> None:
        """The program goes on."""
