"""Randomness of a sample: from seed, epoch and the sample's number, whoever makes it, and after whatever else.

So an augmentation gives the same crop with no workers or with eight, and after a restart. A collate function that draws
is seeded by the first sample of its batch. Afterwards the generators of `random`, of numpy and of torch are as before,
so that the training's own draws are not changed.

Seeding three generators takes 15 µs a sample, which is more than a small sample itself. So it is done only for those
that are drawn from: for the first sample all are seeded, which shows who draws; the others are looked at before and
after each batch, and a batch in which one of them has moved is made once more, seeded, as is every one from then on.
What comes out is the same as if all were seeded always.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal, TypeVar

from blake3 import blake3

from holdfast.data.generators import Generator, generators

__all__ = ["PerItem", "PerSample", "sample_seed"]

Sample = TypeVar("Sample")
Batch = TypeVar("Batch")
Made = TypeVar("Made")

_VERSION = "holdfast sample 1"
_64_BITS = (1 << 64) - 1
Kind = Literal["sample", "batch", "worker"]


def sample_seed(seed: int, epoch: int, index: int, *, kind: Kind = "sample", worker: int = 0) -> int:
    """64 bits for one sample of one epoch; or for the batch that begins with it, or for what comes of a worker."""
    key = _key(seed, epoch, kind, worker)
    # The hash of the order: one of bytes would take longer than all the rest.
    number = index
    for addend in (key, ~key):
        number = (number + addend) & _64_BITS
        number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
        number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _64_BITS
        number ^= number >> 31
    return number


@lru_cache(maxsize=64)
def _key(seed: int, epoch: int, kind: Kind, worker: int) -> int:
    return int.from_bytes(blake3(f"{_VERSION}:{seed}:{epoch}:{kind}:{worker}".encode()).digest(8), "little")


class PerSample:
    """Makes batches of which each sample has its own randomness. Every process learns for itself who draws."""

    def __init__(self, seed: int) -> None:
        self.restores = True
        """Not needed in a process that does nothing else."""
        self._seed = seed
        self._seeded: list[Generator] = []
        self._watched: list[Generator] | None = None

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
            number = sample_seed(self._seed, epoch, indices[0])
            learned.append(self._learn(number, lambda: make(indices[0])))
        return self._drawn(lambda: self._made(epoch, indices, make, collate, learned))

    def at_once(self, epoch: int, indices: Sequence[int], make: Callable[[Sequence[int]], Batch]) -> Batch:
        """Made by one call, with the randomness of the batch."""
        if self._watched is None:
            return self._learn(self._number_of_batch(epoch, indices), lambda: make(indices))
        return self._drawn(lambda: self._with_seed(epoch, indices, lambda: make(indices)))

    def _made(
        self,
        epoch: int,
        indices: Sequence[int],
        make: Callable[[int], Sample],
        collate: Callable[[list[Sample]], Batch],
        learned: list[Sample],
    ) -> Batch:
        # Not made twice: a generator of the dataset's own would have moved. Once only: collate may have changed it.
        samples = [learned.pop()] if learned else []
        if not self._seeded:
            samples += [make(index) for index in indices[len(samples) :]]
            return collate(samples)
        for index in indices[len(samples) :]:
            number = sample_seed(self._seed, epoch, index)
            for generator in self._seeded:
                generator.seed(number)
            samples.append(make(index))
        return self._with_seed(epoch, indices, lambda: collate(samples))

    def _with_seed(self, epoch: int, indices: Sequence[int], make: Callable[[], Batch]) -> Batch:
        if self._seeded:
            number = self._number_of_batch(epoch, indices)
            for generator in self._seeded:
                generator.seed(number)
        return make()

    def _number_of_batch(self, epoch: int, indices: Sequence[int]) -> int:
        return sample_seed(self._seed, epoch, indices[0] if indices else 0, kind="batch")

    def _learn(self, number: int, make: Callable[[], Made]) -> Made:
        """What it gives, or raises, with all generators seeded; and from then on it is known who draws."""
        everyone = generators()
        before = [generator.look() for generator in everyone]
        for generator in everyone:
            generator.seed(number)
        begun = [generator.look() for generator in everyone]
        try:
            return make()
        finally:
            moved = [at for at, generator in enumerate(everyone) if generator.look() != begun[at]]
            self._seeded = [everyone[at] for at in moved]
            self._watched = [generator for at, generator in enumerate(everyone) if at not in moved]
            for generator, state in zip(everyone, before, strict=True):
                generator.restore(state)

    def _drawn(self, make: Callable[[], Batch]) -> Batch:
        """What `make` gives, or raises, when all that it draws from is seeded."""
        if self._watched is None:
            self._watched = generators()
        while True:
            begun = [generator.look() for generator in self._seeded] if self.restores else []
            seen = [generator.look() for generator in self._watched]
            try:
                made = make()
            except BaseException as error:
                if not self._moved(seen) or not isinstance(error, Exception):
                    raise
            else:
                if not self._moved(seen):
                    return made
            finally:
                for generator, before in zip(self._seeded, begun, strict=False):
                    generator.restore(before)

    def _moved(self, seen: list[Any]) -> bool:
        """Whether one was drawn from that was not seeded. It is as before now, and will be."""
        watched = self._watched or []
        moved = [at for at, generator in enumerate(watched) if generator.look() != seen[at]]
        for at in moved:
            watched[at].restore(seen[at])
            self._seeded.append(watched[at])
        self._watched = [generator for at, generator in enumerate(watched) if at not in moved]
        return bool(moved)


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
            self._begin_with(sample_seed(self._seed, epoch, count, kind="worker", worker=worker))

    def begin_epoch(self, epoch: int, seen: list[Any]) -> None:
        """What is drawn to begin belongs to the epoch.

        Without a seed it follows from where the training's generators are: not drawn from them, or the training would
        lack it, and differ from one that was interrupted.
        """
        if self._seed is not None:
            self.begin(epoch, -1)
        else:
            said = f"{_VERSION}:{epoch}:{seen!r}"
            self._begin_with(int.from_bytes(blake3(said.encode()).digest(8), "little"))

    def restore(self, seen: list[Any]) -> None:
        """The training goes on with its own draws."""
        for generator, before in zip(self._all(), seen, strict=True):
            generator.restore(before)

    def _begin_with(self, number: int) -> None:
        for generator in self._all():
            generator.seed(number)

    def _all(self) -> list[Generator]:
        if self._generators is None:
            self._generators = generators()
        return self._generators
