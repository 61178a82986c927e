"""A torch DataLoader over a map-style dataset, made resumable: the same batches, and a position that can be saved.

The loader's own workers, collating, pinning and prefetching stay as they are. Only who says which samples come next is
exchanged: workers are asked for samples by (epoch, number), and the position moves when a batch is handed out, not when
a worker begins with it.
"""

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.data as torch_data

from holdfast.core.errors import UsageError
from holdfast.data.numbers import length_by
from holdfast.data.order import Indices
from holdfast.data.per_sample import PerSample
from holdfast.data.progress import Progress
from holdfast.data.source import Numbered, stopped

__all__ = ["LoaderSource", "resumable_loader"]

# By name: those of torchdata are of the same names and meanings, and not always of the same classes.
_OF_BATCHES = ("BatchSampler", "_BatchSampler")
_OF_SAMPLES = ("RandomSampler", "SequentialSampler", "DistributedSampler")

# As the loader calls it where a profiler runs.
_PROFILED = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"

Asked = tuple[int, list[int]]
"""The epoch, and the numbers of the samples of a batch."""


class LoaderSource(Numbered[Any]):
    """Iterating gives what is left of the epoch, and ends with it; the next iteration is the next epoch."""

    def __init__(self, loader: "torch_data.DataLoader[Any]", progress: Progress) -> None:
        super().__init__(progress)
        self._sampler = _Rest(progress)
        self._collates_nothing = loader.collate_fn is not torch_data.default_collate
        self._dataset = _Seeded(loader.dataset, progress.seed, loader.collate_fn)
        self.loader = _with_sampler(loader, self._dataset, self._sampler)

    def _batches(self) -> Iterator[tuple[range, Indices, Any]]:
        if self.progress.leaves_out_ranks and not self._collates_nothing:
            raise UsageError(
                f"{self.progress.what}: some ranks get no sample of the last batch of epoch {self.epoch}, and "
                "default_collate cannot make a batch of none",
                hint="pad=True repeats samples there, drop_last=True leaves it out; or give a collate_fn for []",
            )
        if not (self.loader.num_workers or self.loader.pin_memory):
            return self._made_here()
        asked = self._sampler.begin()
        # Unlike a loop or a generator, map does not keep the batch while the next one is made.
        return map(lambda batch: (*asked.popleft(), batch), self.loader)  # noqa: C417

    def _made_here(self) -> Iterator[tuple[range, Indices, Any]]:
        """What the loader does without workers, of which its own bookkeeping takes more time than ours."""
        progress, dataset = self.progress, self._dataset
        for positions in progress.rest():
            indices = progress.indices_of(positions)
            asked = progress.epoch, indices.tolist()
            if torch.autograd._profiler_enabled():
                with torch.autograd.profiler.record_function(_PROFILED):
                    made = [dataset.__getitems__(asked)]
            else:
                made = [dataset.__getitems__(asked)]
            yield positions, indices, made.pop()


class _Rest:
    """The batches that are left of the epoch, and which of them the loader has asked for."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._asked: deque[tuple[range, Indices]] = deque()

    def begin(self) -> deque[tuple[range, Indices]]:
        """A new iteration: what another one has asked for is forgotten."""
        self._asked = deque()
        return self._asked

    def __iter__(self) -> Iterator[Asked]:
        asked, epoch = self._asked, self._progress.epoch
        for positions in self._progress.rest():
            indices = self._progress.indices_of(positions)
            asked.append((positions, indices))
            yield epoch, indices.tolist()

    def __len__(self) -> int:
        return self._progress.batches_left


class _Seeded:
    """The dataset, with randomness that belongs to the sample; gives whole batches, put together."""

    def __init__(self, dataset: Any, seed: int, collate: Callable[[list[Any]], Any]) -> None:
        self.dataset = dataset
        self._collate = collate
        self._per_sample = None if _never_draws(dataset, collate) else PerSample(seed)
        self._at_once = _makes_batches(dataset)

    def __len__(self) -> int:
        return len(self.dataset)

    def in_worker(self) -> None:
        """Nobody else draws in this process."""
        if self._per_sample is not None:
            self._per_sample.restores = False

    def __getitems__(self, asked: Asked) -> Any:
        """Called by the loader, here or in a worker; what it gives is what the loader hands out."""
        try:
            return self._batch(*asked)
        except StopIteration as error:
            raise stopped(type(self.dataset).__name__, *asked) from error

    def _batch(self, epoch: int, indices: list[int]) -> Any:
        dataset, per_sample = self.dataset, self._per_sample
        if self._at_once:
            if per_sample is None:
                return self._collate(dataset.__getitems__(indices))
            return per_sample.at_once(epoch, indices, lambda indices: self._collate(dataset.__getitems__(indices)))
        if per_sample is None:
            return self._collate([dataset[index] for index in indices])
        return per_sample.batch(epoch, indices, dataset.__getitem__, self._collate)


def _makes_batches(dataset: Any) -> bool:
    """Whether the samples of a batch are better asked for in one call. A Subset only passes such calls on."""
    while isinstance(dataset, torch_data.Subset):
        dataset = dataset.dataset
    return callable(getattr(dataset, "__getitems__", None))


def _never_draws(dataset: Any, collate: Callable[[list[Any]], Any]) -> bool:
    while type(dataset) is torch_data.Subset:
        dataset = dataset.dataset
    return type(dataset) is torch_data.TensorDataset and collate is torch_data.default_collate


def _as_it_is(batch: Any) -> Any:
    return batch


class _InitWorker:
    """What the program does in a new worker sees its own dataset."""

    def __init__(self, own: Callable[[int], None] | None) -> None:
        self._own = own

    def __call__(self, worker: int) -> None:
        info: Any = torch_data.get_worker_info()
        wrapped = info.dataset
        wrapped.in_worker()
        # It refuses to be assigned to; the loader itself goes on with what it was given.
        object.__setattr__(info, "dataset", wrapped.dataset)
        if self._own is not None:
            self._own(worker)


def resumable_loader(loader: "torch_data.DataLoader[Any]", *, seed: int, **options: Any) -> LoaderSource:
    """From an existing DataLoader. The options are those of `Progress`; what the loader says is the default."""
    what = type(loader.dataset).__name__
    length = length_by(loader.dataset, what)
    if not getattr(loader, "in_order", True):
        raise UsageError(
            "the DataLoader hands out batches as workers finish them (in_order=False), which no seed can repeat",
            hint="leave in_order= out",
        )
    found = {
        "batch_size": loader.batch_size,
        "drop_last": loader.drop_last,
        "what": what,
        **_order_of(loader, length, shuffle=options.get("shuffle")),
    }
    return LoaderSource(loader, Progress(length, seed=seed, **{**found, **options}))


def _order_of(loader: "torch_data.DataLoader[Any]", length: int, *, shuffle: bool | None) -> dict[str, Any]:
    """What the loader's sampler says, if a seed can stand in for it."""
    sampler = loader.sampler
    if loader.batch_sampler is None:
        raise UsageError(
            "the DataLoader makes no batches (batch_size=None)",
            hint="give the DataLoader batch_size=, e.g. 1; or the dataset itself, with batch_size=",
        )
    # With a batch sampler of the program's, the loader has none for samples but that which stands in for it.
    if loader.batch_size is None or not _is_one_of(loader.batch_sampler, _OF_BATCHES):
        inner = getattr(loader.batch_sampler, "sampler", None)
        of_samples = "" if inner is None else f" of a {type(inner).__name__}"
        raise _own_order(f"{type(loader.batch_sampler).__name__}{of_samples}, given as batch_sampler=", shuffle=shuffle)
    if not _is_one_of(sampler, _OF_SAMPLES):
        raise _own_order(type(sampler).__name__, shuffle=shuffle)
    its_length = _length_of_sampler(sampler)
    if its_length != length:
        raise UsageError(
            f"the DataLoader's {type(sampler).__name__} is of {its_length} samples, and the dataset has {length}",
            hint="an epoch is every sample once: make the sampler of this dataset, or give a Subset",
        )
    if isinstance(sampler, torch_data.DistributedSampler):
        # It makes the ranks' shares equal, by repeating samples or leaving some out: here by repeating.
        shared = {"rank": sampler.rank, "world": sampler.num_replicas, "pad": True}
        return {"shuffle": sampler.shuffle, **shared}
    shuffles = type(sampler).__name__ == "RandomSampler"
    if shuffles and (sampler.replacement or sampler.num_samples != length):
        raise UsageError(
            "the DataLoader draws samples with replacement, or another number of them",
            hint="an epoch is every sample once: leave replacement= and num_samples= out",
        )
    return {"shuffle": shuffles}


def _own_order(name: str, *, shuffle: bool | None) -> UsageError:
    given = "" if shuffle is None else f"; and shuffle={shuffle} is given together with it"
    return UsageError(
        f"the DataLoader has an order of its own ({name}), which cannot be computed from a seed{given}",
        hint="give the DataLoader shuffle=True or False, and batch_size",
    )


def _is_one_of(sampler: Any, names: tuple[str, ...]) -> bool:
    kind = type(sampler)
    return kind.__name__ in names and kind.__module__.partition(".")[0] in ("torch", "torchdata")


def _length_of_sampler(sampler: Any) -> int:
    """Of what it is made of: how many it draws is another matter."""
    of = getattr(sampler, "data_source", getattr(sampler, "dataset", None))
    return length_by(sampler if of is None else of, type(sampler).__name__)


def _with_sampler(
    loader: "torch_data.DataLoader[Any]", dataset: _Seeded, sampler: _Rest
) -> "torch_data.DataLoader[Any]":
    """The same loader otherwise."""
    workers = loader.num_workers
    with warnings.catch_warnings():
        # That there are more workers than cores was said when the program made its own.
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        return torch_data.DataLoader(
            dataset,
            batch_sampler=sampler,
            num_workers=workers,
            collate_fn=_as_it_is,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=_InitWorker(loader.worker_init_fn),
            multiprocessing_context=loader.multiprocessing_context if workers else None,
            # Of its own: a loader draws a number from it whenever it begins, which the training would lack, and after
            # a restart once more.
            generator=torch.Generator().manual_seed(0),
            prefetch_factor=loader.prefetch_factor if workers else None,
            persistent_workers=loader.persistent_workers,
            pin_memory_device=loader.pin_memory_device,
        )
