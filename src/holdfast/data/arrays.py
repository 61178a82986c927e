"""Samples by number of what lies in memory or on a disk: arrays, tables, tuples and dicts of them, sequences."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.core.errors import UsageError
from holdfast.data.numbers import MAX_LENGTH, whole
from holdfast.data.order import Indices
from holdfast.data.per_sample import PerSample
from holdfast.data.progress import Progress
from holdfast.data.source import Numbered, Source, stopped

__all__ = ["ArraySource", "SequenceSource", "is_arrays", "is_sequence", "length_of", "refuse_mixture"]


def is_arrays(thing: Any) -> bool:
    """Whether it is an array, or a dict, or a tuple of nothing else."""
    if isinstance(thing, Mapping):
        return True
    if isinstance(thing, tuple):
        return bool(thing) and all(is_arrays(part) for part in thing)
    # A table of Hugging Face has a shape as well, but its rows are samples.
    return hasattr(thing, "shape") and hasattr(thing, "__getitem__") and not hasattr(thing, "__getitems__")


def refuse_mixture(thing: Any) -> None:
    """UsageError for a tuple of arrays and others: its length would be taken for that of the data."""
    if not isinstance(thing, tuple) or not any(is_arrays(part) for part in thing):
        return
    others = [f"[{at}] is {type(part).__name__}" for at, part in enumerate(thing) if not is_arrays(part)]
    if others:
        raise UsageError(
            f"a tuple of arrays has parts that are none: {', '.join(others)}",
            hint="make arrays of them, e.g. numpy.asarray(labels); or give a list of samples",
        )


def is_sequence(thing: Any) -> bool:
    """Whether samples can be asked for by number."""
    return hasattr(thing, "__getitem__") and not isinstance(thing, str | bytes | bytearray)


def length_of(thing: Any, where: str = "") -> int:
    """How many samples; UsageError where the arrays differ in it."""
    if isinstance(thing, Mapping | tuple):
        parts = thing.items() if isinstance(thing, Mapping) else enumerate(thing)
        lengths = {f"{where}[{name!r}]": length_of(part, f"{where}[{name!r}]") for name, part in parts}
        if len(set(lengths.values())) != 1:
            found = ", ".join(f"{name} has {length}" for name, length in lengths.items()) or "there are none"
            raise UsageError(f"the arrays have no common length: {found}", hint="the first axis counts the samples")
        return next(iter(lengths.values()))
    if not is_arrays(thing) or not len(thing.shape):
        found = f"of no dimension ({thing!r})" if hasattr(thing, "shape") else type(thing).__name__
        raise UsageError(
            f"{where or 'the data'} is {found}, expected an array with an axis of samples",
            hint="e.g. numpy.asarray of it, with one row for each sample",
        )
    return whole(f"the length of {where or 'the data'}", thing.shape[0], 0, MAX_LENGTH)


class ArraySource(Source[Any]):
    """Batches have the structure of the data. What an array of the program's own draws belongs to the batch."""

    def __init__(self, thing: Any, **options: Any) -> None:
        """The options are those of `Progress`."""
        super().__init__(length_of(thing), self._take, **options)
        self._thing = thing
        self._per_sample = None if _is_plain(thing) else PerSample(self.progress.seed)

    def _take(self, indices: Indices) -> Any:
        if self._per_sample is None:
            return _taken(self._thing, indices)
        return self._per_sample.at_once(self.epoch, indices.tolist(), lambda _: _taken(self._thing, indices))


def _is_plain(thing: Any) -> bool:
    """Whether it lies in memory, so that taking from it draws nothing."""
    if isinstance(thing, Mapping | tuple):
        return all(map(_is_plain, thing.values() if isinstance(thing, Mapping) else thing))
    return type(thing).__module__.partition(".")[0] in ("numpy", "torch", "jax", "jaxlib", "pandas")


def _taken(thing: Any, indices: Indices) -> Any:
    if isinstance(thing, Mapping):
        return {name: _taken(part, indices) for name, part in thing.items()}
    if isinstance(thing, tuple):
        parts = [_taken(part, indices) for part in thing]
        return type(thing)(*parts) if hasattr(thing, "_fields") else tuple(parts)
    if hasattr(thing, "iloc"):  # a table of pandas, whose own [] means columns
        return thing.iloc[indices]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(thing, torch.Tensor):
        return thing[torch.from_numpy(indices)]
    return thing[indices]


class SequenceSource(Numbered[list[Any]]):
    """Batches are lists of samples. What a sequence of the program's own draws is the sample's own."""

    def __init__(self, thing: Any, progress: Progress) -> None:
        super().__init__(progress)
        self._thing = thing
        self._per_sample = None if type(thing) in (list, tuple, range) else PerSample(progress.seed)
        many = getattr(thing, "__getitems__", None)
        self._many: Callable[[Sequence[int]], Any] | None = many if callable(many) else None

    def _batches(self) -> Iterator[tuple[range, Indices, list[Any]]]:
        for positions in self.progress.rest():
            indices = self.progress.indices_of(positions)
            try:
                fetched = [self._fetch(indices.tolist())]
            except StopIteration as error:
                raise stopped(self.progress.what, self.epoch, indices.tolist()) from error
            yield positions, indices, fetched.pop()

    def _fetch(self, numbers: list[int]) -> list[Any]:
        thing, many, per_sample = self._thing, self._many, self._per_sample
        if per_sample is None:
            return [thing[number] for number in numbers]
        if many is not None:
            return per_sample.at_once(self.epoch, numbers, lambda numbers: list(many(numbers)))
        return per_sample.batch(self.epoch, numbers, thing.__getitem__, list)
