"""What a training loop may ask of its data: the next batch, where it is, and how to go on from there."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from holdfast.core.errors import UsageError
from holdfast.data.order import Indices

__all__ = ["Data", "Handed", "Turns"]


class Handed(NamedTuple):
    """A batch that was handed out: which positions of which epoch it had, of all ranks together.

    Of data without numbers (an iterator, a stream) positions count what this rank was given.
    """

    epoch: int
    begin: int
    stop: int
    indices: Indices | None
    """The numbers of this rank's samples; None where samples have none."""


@runtime_checkable
class Data(Protocol):
    """Iterating gives what is left of the epoch, and ends with it; the next iteration is the next epoch.

    What was handed out is consumed: whoever saves at the end of a step saves the position after its batch. There is a
    `__len__`, the number of batches of a whole epoch, where that is known.
    """

    @property
    def epoch(self) -> int:
        """The one that is under way, or comes next; from 0."""

    @property
    def completed(self) -> int:
        """How many whole epochs were consumed: one more as soon as the last batch of an epoch is handed out."""

    @property
    def ends_epoch(self) -> bool:
        """Whether the batch that was handed out last is the last of its epoch."""

    @property
    def last(self) -> Handed | None:
        """The batch that was handed out last; None before the first one, and after a load."""

    @property
    def facts(self) -> dict[str, object]:
        """seed, length, shuffle, rank, world, batch_size, drop_last, pad; None where unknown."""

    def __iter__(self) -> Iterator[Any]:
        """The rest of the epoch."""

    def state_dict(self) -> dict[str, object]:
        """Where the training is."""

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on from there; a loop that is under way must be begun anew."""


class Turns:
    """Only the newest loop over a source may go on: two at the same time would share one position."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._newest = 0
        self._why = ""

    def begin(self) -> int:
        """A loop begins; earlier ones are over."""
        self._newest += 1
        self._why = "another loop over it has begun"
        return self._newest

    def cancel(self) -> None:
        """The position was moved: loops that were begun before are over."""
        self._newest += 1
        self._why = "load_state_dict() has moved it"

    def check(self, turn: int) -> None:
        """UsageError in a loop that is over."""
        if turn != self._newest:
            raise UsageError(
                f"{self._what}: a loop over it cannot go on, since {self._why}",
                hint="one loop at a time; for an evaluation in between, make another loader (and resumable() of it)",
            )
