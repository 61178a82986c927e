"""Where a training is in its data: what comes next, for which rank, and what is saved of it."""

import logging
from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np

from holdfast.core.errors import StateError, UsageError
from holdfast.data.numbers import MAX_LENGTH, shown, whole, whole_batch_size, whole_seed
from holdfast.data.order import Indices, Order
from holdfast.data.position import Position, position_of, state_of
from holdfast.data.sharing import batches_in, check_ranks, next_batch, share_of

__all__ = ["Finish", "Progress"]

_log = logging.getLogger("holdfast")

# Samples whose numbers are computed together: of a few, the calls cost more than the numbers.
_AT_ONCE = 1 << 14

Finish = Literal["refuse", "old", "skip"]
"""What becomes of an epoch that was left in the middle, if the data has another length now."""


class Progress:
    """Counts what the training has consumed, in one order for all ranks.

    `batch_size` is that of one rank. All ranks must be given the same length, seed and batch size.
    """

    def __init__(
        self,
        length: int,
        *,
        seed: int,
        batch_size: int,
        shuffle: bool = True,
        drop_last: bool = False,
        rank: int = 0,
        world: int = 1,
        pad: bool = False,
        finish: Finish = "refuse",
        what: str = "the data",
    ) -> None:
        rank, world = check_ranks(rank, world)
        batch_size = whole_batch_size(batch_size)
        if finish not in ("refuse", "old", "skip"):
            raise UsageError(
                f"finish is {finish!r}, expected 'refuse', 'old' or 'skip'",
                hint="what becomes of an epoch that was left in the middle, if the data has another length now",
            )
        self.length = length = whole("the length", length, 0, MAX_LENGTH)
        self.seed = whole_seed(seed)
        self._batch_size = batch_size
        self._batch = batch_size * world
        self._shuffle = shuffle
        self._drop_last = drop_last
        self._rank = rank
        self._world = world
        self._pad = pad
        self._finish = finish
        self.what = what
        self.epoch = 0
        """The one that is under way, or comes next."""
        self.consumed = 0
        """How many samples of it, by all ranks together."""
        # That of the epoch that is under way, which may be older than the data.
        self._length_now = length
        self._changed_epoch, self._length_then = -1, length
        self._order: Order | None = None
        self._order_epoch = 0
        # The next batches: by the first position of each, the last, and this rank's samples.
        self._computed: dict[int, tuple[int, Indices]] = {}

    @property
    def completed(self) -> int:
        """How many epochs were consumed as a whole: also that whose last batch is with the training."""
        return self.epoch + (self.consumed > 0 and self.batches_left == 0)

    @property
    def facts(self) -> dict[str, object]:
        """What the order depends on, and who takes part."""
        return {
            "seed": self.seed,
            "length": self._length_now,
            "shuffle": self._shuffle,
            "rank": self._rank,
            "world": self._world,
            "batch_size": self._batch_size,
            "drop_last": self._drop_last,
            "pad": self._pad,
        }

    @property
    def batches(self) -> int:
        """How many a whole epoch has."""
        return batches_in(0, self.length, self._batch, drop_last=self._drop_last)

    @property
    def batches_left(self) -> int:
        """Of the epoch that is under way."""
        return batches_in(self.consumed, self._length_now, self._batch, drop_last=self._drop_last)

    @property
    def leaves_out_ranks(self) -> bool:
        """Whether some rank gets nothing of the last batch of the epoch that is under way."""
        short = (self._length_now - self.consumed) % self._batch
        return 0 < short < self._world and not (self._pad or self._drop_last)

    def rest(self) -> Iterator[range]:
        """The positions of the batches that are left of the epoch, of all ranks together. Consumes nothing."""
        consumed = self.consumed
        while len(positions := next_batch(consumed, self._length_now, self._batch, drop_last=self._drop_last)):
            yield positions
            consumed = positions.stop

    def consume(self, positions: range) -> None:
        """A batch was handed out: what is saved while the program has it includes it.

        What `drop_last` leaves out counts with the last batch: another batch size after a restart does not bring it
        back into an epoch that is over.
        """
        over = self._drop_last and self._length_now - positions.stop < self._batch
        self.consumed = self._length_now if over else positions.stop

    def end_epoch(self) -> None:
        """The next one begins."""
        self.epoch, self.consumed, self._length_now = self.epoch + 1, 0, self.length
        self._computed = {}

    def indices_of(self, positions: range) -> Indices:
        """The samples of this rank in a batch of all. Those of the batches after it are computed with it."""
        found = self._computed.pop(positions.start, None)
        if found is None or found[0] != positions.stop:
            self._compute_from(positions)
            found = self._computed.pop(positions.start)
        return found[1]

    def _compute_from(self, first: range) -> None:
        order = self._order
        if order is None or self._order_epoch != self.epoch or order.length != self._length_now:
            order = self._order = Order(self._length_now, seed=self.seed, epoch=self.epoch, shuffle=self._shuffle)
            self._order_epoch = self.epoch
        if len(first) < self._batch:
            parts = share_of(first, self._rank, self._world, pad=self._pad)
            share = np.concatenate([np.arange(part.start, part.stop, dtype=np.int64) for part in parts])
            self._computed = {first.start: (first.stop, order.at(share))}
            return
        # Of a whole batch, every rank takes as many: the same part of each.
        count = min((self._length_now - first.start) // self._batch, -(-_AT_ONCE // self._batch_size))
        begin = first.start + self._rank * self._batch_size
        begins = begin + np.arange(count, dtype=np.int64) * self._batch
        positions = begins[:, np.newaxis] + np.arange(self._batch_size, dtype=np.int64)
        samples = order.at(positions.reshape(-1))
        stops = range(first.stop, first.stop + count * self._batch, self._batch)
        self._computed = {
            stop - self._batch: (stop, row)
            for stop, row in zip(stops, samples.reshape(count, self._batch_size), strict=True)
        }

    def state_dict(self, at: Position | None = None) -> dict[str, object]:
        """The position, or an earlier one, and what the order depends on; a few numbers."""
        position = Position(self.epoch, self.consumed) if at is None else at
        changed = position.epoch == self._changed_epoch
        length = self._length_then if changed else self.length
        return state_of(position, seed=self.seed, length=length, shuffle=self._shuffle)

    def check_state_dict(self, state: Mapping[str, object]) -> None:
        """StateError where going on from there is impossible without repeating or leaving out samples."""
        self._fitting(state)

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on from there, if `check_state_dict` has nothing against it."""
        position, length = self._fitting(state)
        changed = length != self.length and 0 < position.consumed < length
        if position.consumed in (0, length) and length != self.length:
            # At the end of an epoch, or at its begin: nothing of it is left undone. But files may be missing.
            _log.warning("%s: it has %d samples, and had %d until now", self.what, self.length, length)
            position = Position(position.epoch + (position.consumed == length > 0), 0)
        if changed and self._finish == "skip":
            position, changed = Position(position.epoch + 1), False
        self.epoch, self.consumed = position
        self._length_now = length if changed else self.length
        self._changed_epoch, self._length_then = (self.epoch if changed else -1), length
        self._order = None
        self._computed = {}

    def _fitting(self, state: Mapping[str, object]) -> tuple[Position, int]:
        """The saved position, and the length of the data at the time."""
        if self._finish == "refuse":
            position, seed, length, shuffle = position_of(state, length=self.length, what=self.what)
        else:
            position, seed, length, shuffle = position_of(state, length=_claimed(state), what=self.what)
        if seed != self.seed or shuffle != self._shuffle:
            raise StateError(
                f"{self.what}: it was saved with seed={shown(seed)}, shuffle={shuffle}, and the program has "
                f"seed={self.seed}, shuffle={self._shuffle}",
                hint="give the same; another seed is another order",
            )
        if self._finish == "old" and length > self.length and 0 < position.consumed < length:
            raise StateError(
                f"{self.what}: it has {self.length} samples, and had {length} when epoch {position.epoch} was left: "
                "those of then are not there any more",
                hint='finish="skip" goes on with the next epoch',
            )
        return position, length


def _claimed(state: Mapping[str, object]) -> int:
    length = state.get("length") if isinstance(state, Mapping) else None
    return length if type(length) is int else 0
