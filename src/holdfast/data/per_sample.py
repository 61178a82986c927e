"""Randomness of a sample: from seed, epoch and the sample's number, whoever makes it, and after whatever else.

So an augmentation gives the same crop with no workers or with eight, and after a restart. A collate function that draws
is seeded by the first sample of its batch. Afterwards the generators of `random`, of numpy and of torch are as before,
so that the training's own draws are not changed.

Seeding three generators takes as long as a small sample itself. So it is done only for those that are drawn from: for
the first sample all are seeded, which shows who draws; the others are looked at before and after each batch, and a
batch in which one of them has moved is made once more, seeded, as is every one from then on. What comes out is the same
as if all were seeded always.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from blake3 import blake3

from holdfast.data.bits import Read, all_bits, sample_bits
from holdfast.data.generators import ALL, Generator, arrived_since, generators

__all__ = ["PerItem", "PerSample"]

Sample = TypeVar("Sample")
Batch = TypeVar("Batch")
Made = TypeVar("Made")

# Samples for which random bytes are read together: between two large samples, all that it takes has left the caches.
_AT_ONCE = 32


class PerSample:
    """Makes batches of which each sample has its own randomness. Every process learns for itself who draws."""

    def __init__(self, seed: int) -> None:
        self.restores = True
        """Not needed in a process that does nothing else."""
        self._seed = seed
        self._seeded: list[Generator] = []
        self._watched: list[Generator] | None = None
        self._is_noted = False  # whether those that are watched are as they were noted, as far as is known

    def __reduce__(self) -> tuple[Any, ...]:
        # What was learned refers to the generators of this process.
        return PerSample, (self._seed,)

    def batch(
        self,
        epoch: int,
        indices: Sequence[int],
        make: Callable[[int], Sample],
        collate: Callable[[list[Sample]], Batch],
    ) -> Batch:
        """Made sample by sample, and put together."""
        learned: list[Sample] = []
        if self._watched is None and indices:
            learned.append(self._learn(sample_bits(self._seed, epoch, indices[0]), make, indices[0]))
        batch: Batch = self._drawn(self._put_together, epoch, indices, make, collate, learned)
        return batch

    def at_once(self, epoch: int, indices: Sequence[int], make: Callable[[Sequence[int]], Batch]) -> Batch:
        """Made by one call, with the randomness of the batch."""
        if self._watched is None:
            return self._learn(self._bits_of_batch(epoch, indices), make, indices)
        batch: Batch = self._drawn(self._with_seed, epoch, indices, make, indices)
        return batch

    def _put_together(
        self,
        epoch: int,
        indices: Sequence[int],
        make: Callable[[int], Sample],
        collate: Callable[[list[Sample]], Batch],
        learned: list[Sample],
    ) -> Batch:
        # Not made twice: a generator of the dataset's own would have moved. Once only: collate may have changed it.
        samples = [learned.pop()] if learned else []
        rest = indices[1:] if samples else indices
        if not self._seeded:
            samples += [make(index) for index in rest]
            return collate(samples)
        samples += [make(index) for index in self._each_seeded(epoch, rest)]
        return self._with_seed(epoch, indices, collate, samples)

    def _each_seeded(self, epoch: int, indices: Sequence[int]) -> Iterator[int]:
        """One after the other, each when the generators begin with what is its own."""
        for begin in range(0, len(indices), _AT_ONCE):
            some = indices[begin : begin + _AT_ONCE]
            ready = [
                [(generator.seed, generator.bits(read, place)) for generator in self._seeded]
                for read, place in all_bits(self._seed, epoch, some)
            ]
            for index, own in zip(some, ready, strict=True):
                for seed, bits in own:
                    seed(bits)
                yield index

    def _with_seed(self, epoch: int, indices: Sequence[int], make: Callable[[Any], Batch], of: Any) -> Batch:
        if self._seeded:
            _seed(self._seeded, *self._bits_of_batch(epoch, indices))
        return make(of)

    def _bits_of_batch(self, epoch: int, indices: Sequence[int]) -> tuple[Read, int]:
        return sample_bits(self._seed, epoch, indices[0] if indices else 0, kind="batch")

    def _learn(self, bits: tuple[Read, int], make: Callable[[Any], Made], of: Any) -> Made:
        """What it gives, or raises, with all generators seeded; and from then on it is known who draws."""
        while True:
            everyone = generators()
            before = [generator.look() for generator in everyone]
            _seed(everyone, *bits)
            for generator in everyone:
                generator.note()
            try:
                made = make(of)
            finally:
                self._watched, self._is_noted = everyone, False
                self._seeded = self._moved()
                for generator, state in zip(everyone, before, strict=True):
                    generator.restore(state)
            # One that came with the sample was not seeded for it.
            if not arrived_since(everyone):
                return made

    def _drawn(self, make: Callable[..., Any], *arguments: Any) -> Any:
        """What `make` gives, or raises, when all that it draws from is seeded."""
        if self._watched is None:
            self._watched = generators()
        while True:
            seeded = self._seeded if self.restores else []
            for generator in seeded:
                generator.keep()
            # In a process that does nothing else, they still are as they were before the last batch.
            if self.restores or not self._is_noted:
                for generator in self._watched:
                    generator.note()
                self._is_noted = True
            try:
                made = make(*arguments)
            except BaseException as error:
                if not self._are_late() or not isinstance(error, Exception):
                    raise
            else:
                if not self._are_late():
                    return made
            finally:
                for generator in seeded:
                    generator.put_back()

    def _are_late(self) -> bool:
        """Whether one was drawn from that was not seeded. It is as before now, and will be."""
        late = self._moved()
        for generator in late:
            generator.put_back()
        known = [*self._seeded, *(self._watched or []), *late]
        if len(known) < ALL:
            late += arrived_since(known)
        if late:
            self._seeded = self._seeded + late
        return bool(late)

    def _moved(self) -> list[Generator]:
        """Those that were drawn from since they were noted. They are watched no more."""
        watched = self._watched or []
        moved = [generator for generator in watched if generator.has_moved()]
        if moved:
            self._watched = [generator for generator in watched if generator not in moved]
        return moved


class PerItem:
    """Seeds what comes next of something that has no numbers, and can be asked only once: always, and everything.

    Without a seed nothing is seeded but the begin of an epoch, and one can see who has drawn.
    """

    def __init__(self, seed: int | None) -> None:
        self._seed = seed
        self._generators: list[Generator] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return PerItem, (self._seed,)

    @property
    def seeds(self) -> bool:
        """Whether there is a seed."""
        return self._seed is not None

    def look(self) -> list[Any]:
        """For `restore`, after one item or several; what has moved in between differs."""
        return [generator.look() for generator in self._all()]

    def begin(self, epoch: int, count: int, worker: int = 0) -> None:
        """So many have come of that worker; -1 before the first, where the iterator is made."""
        if self._seed is not None:
            _seed(self._all(), *sample_bits(self._seed, epoch, count, kind="worker", worker=worker))

    def begin_epoch(self, epoch: int, seen: list[Any]) -> None:
        """What is drawn to begin belongs to the epoch.

        Without a seed it follows from where the training's generators are: not drawn from them, or the training would
        lack it, and differ from one that was interrupted.
        """
        if self._seed is not None:
            self.begin(epoch, -1)
        else:
            _seed(self._all(), blake3(f"holdfast epoch 2:{epoch}:{seen!r}".encode()).digest, 0)

    def restore(self, seen: list[Any]) -> None:
        """The training goes on with its own draws."""
        for generator, before in zip(self._all(), seen, strict=True):
            generator.restore(before)

    def _all(self) -> list[Generator]:
        if self._generators is None:
            self._generators = generators()
        return self._generators


def _seed(these: Sequence[Generator], read: Read, place: int) -> None:
    for generator in these:
        generator.seed(generator.bits(read, place))
