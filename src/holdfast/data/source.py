"""Batches of anything that can be asked for samples by their numbers: arrays, lists, files."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from holdfast.core.errors import UsageError
from holdfast.data.agreement import agree
from holdfast.data.order import Indices
from holdfast.data.position import Position
from holdfast.data.progress import Progress
from holdfast.data.protocol import Handed, Turns

__all__ = ["Numbered", "Source", "stopped"]

Batch = TypeVar("Batch")


class Numbered(ABC, Generic[Batch]):
    """Data whose samples have numbers. Iterating gives what is left of the epoch, and ends with it.

    A batch counts as consumed when it is handed out: whoever saves at the end of a step saves the position after it. At
    the end of an epoch there may be nothing left for some ranks: they get an empty batch, so that all make the same
    number of steps, unless `pad` or `drop_last` is given.
    """

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._handed: tuple[int, range, Indices] | None = None
        self._turns = Turns(progress.what)
        self._before: Position | None = None

    @property
    def epoch(self) -> int:
        """The one that is under way, or comes next."""
        return self.progress.epoch

    @property
    def completed(self) -> int:
        """How many whole epochs were consumed."""
        return self.progress.completed

    @property
    def ends_epoch(self) -> bool:
        """Whether the batch that was handed out last is the last of its epoch."""
        return self.completed > (self.epoch if self._handed is None else self._handed[0])

    @property
    def last(self) -> Handed | None:
        """The batch that was handed out last; None before the first one, and after a load."""
        if self._handed is None:
            return None
        epoch, positions, indices = self._handed
        return Handed(epoch, positions.start, positions.stop, indices)

    @property
    def facts(self) -> dict[str, object]:
        """What the order depends on, and who takes part."""
        return self.progress.facts

    def __len__(self) -> int:
        """How many batches a whole epoch has."""
        return self.progress.batches

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the epoch."""
        turn, progress = self._turns.begin(), self.progress
        # Every time: whether this rank was moved since, the others do not know, and would not come.
        agree({**progress.facts, "position": [progress.epoch, progress.consumed]}, progress.what)
        held: list[Batch] = []
        for positions, indices, batch in self._batches():
            self._handed = progress.epoch, positions, indices
            progress.consume(positions)
            # Nothing here may keep the batch: it would be in memory beside the next one.
            held.append(batch)
            del batch
            yield held.pop()
            self._turns.check(turn)
        if progress.batches_left:
            raise UsageError(
                f"{progress.what}: its batches ended after {progress.consumed} of {progress.facts['length']} samples",
                hint="does something that makes them raise StopIteration? e.g. next() of an iterator that is used up",
            )
        progress.end_epoch()

    @abstractmethod
    def _batches(self) -> Iterator[tuple[range, Indices, Batch]]:
        """Those that are left of the epoch: their positions, the numbers of this rank's samples, and the samples."""

    def state_dict(self) -> dict[str, object]:
        """Where the training is; what workers have prefetched does not count."""
        return self.progress.state_dict(self._before)

    @contextmanager
    def as_before(self, handed: Handed) -> Iterator[None]:
        """While it is open, `state_dict` says where the training was before that batch was handed out.

        For a training that saves in the middle of a step. A loop that is under way goes on as if nothing had been.
        """
        outer, self._before = self._before, Position(handed.epoch, handed.begin)
        try:
            yield
        finally:
            self._before = outer

    def check_state_dict(self, state: Mapping[str, object]) -> None:
        """StateError where `load_state_dict` would refuse it; nothing is moved."""
        self.progress.check_state_dict(state)

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on from there."""
        self.progress.load_state_dict(state)
        self._handed = None
        self._turns.cancel()


def stopped(what: str, epoch: int, indices: Sequence[int]) -> UsageError:
    """Instead of a StopIteration, which a loop around it would take for the end of the epoch."""
    some = ", ".join(map(str, indices[:8])) + (", …" if len(indices) > 8 else "")
    return UsageError(
        f"{what}: StopIteration was raised where samples {some} of epoch {epoch} are made or put together",
        hint="e.g. by next() of an iterator that is used up",
    )


class Source(Numbered[Batch]):
    """Over a function that is given numbers of samples."""

    def __init__(self, length: int, fetch: Callable[[Indices], Batch], **options: Any) -> None:
        """The options are those of `Progress`."""
        super().__init__(Progress(length, **options))
        self._fetch = fetch

    def _batches(self) -> Iterator[tuple[range, Indices, Batch]]:
        for positions in self.progress.rest():
            indices = self.progress.indices_of(positions)
            try:
                fetched = [self._fetch(indices)]
            except StopIteration as error:
                raise stopped(self.progress.what, self.epoch, indices.tolist()) from error
            yield positions, indices, fetched.pop()
