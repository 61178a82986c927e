"""`resumable`: the data of a training, of whichever kind, with a position that can be saved."""

import sys
from collections.abc import Iterable
from typing import Any

from holdfast.core.calls import public_call
from holdfast.core.errors import UsageError
from holdfast.data.agreement import rank_and_world
from holdfast.data.arrays import ArraySource, SequenceSource, is_arrays, is_sequence, refuse_mixture
from holdfast.data.feeds import CalledFeed, Feed, IteratedFeed, has_state
from holdfast.data.numbers import length_by, switch, whole_batch_size, whole_seed
from holdfast.data.progress import Finish, Progress
from holdfast.data.protocol import Data
from holdfast.data.stream import stream_of

__all__ = ["resumable"]


@public_call("holdfast.data.resumable")
def resumable(
    thing: Any,
    *,
    seed: int | None = None,
    batch_size: int | None = None,
    shuffle: bool | None = None,
    drop_last: bool | None = None,
    rank: int | None = None,
    world: int | None = None,
    pad: bool | None = None,
    finish: Finish = "refuse",
) -> Data:
    """Batches of `thing`, in an order that resumes: put it into the state of the `Checkpointer`, and iterate over it.

    Of a DataLoader, a dataset, an array (or a tuple or dict of arrays) or a sequence, the order is a function of seed,
    epoch and position, the same for any number of ranks and workers, and there at once. Of an iterable or a function
    that makes an iterator, the own state is used where there is one; else what was consumed is counted and thrown away
    after a restart. Where options are left out, what the DataLoader says holds; else `shuffle` follows from whether
    there is a seed.
    """
    switches = {"shuffle": shuffle, "drop_last": drop_last, "pad": pad}
    options: dict[str, Any] = {name: switch(name, value) for name, value in switches.items() if value is not None}
    if batch_size is not None:
        options["batch_size"] = whole_batch_size(batch_size)
    seed = None if seed is None else whole_seed(seed)
    ranks = {"rank": rank, "world": world} if rank is not None or world is not None else {}
    if isinstance(thing, Data):
        raise UsageError(f"{type(thing).__name__} is resumable already")
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and isinstance(thing, torch_data.DataLoader):
        return _of_loader(thing, torch_data, seed, options, ranks, finish)
    if isinstance(thing, type | str | bytes | bytearray | memoryview):
        raise UsageError(f"{thing!r} is no data", hint="give the dataset itself, an array, or a function")
    if torch_data is not None and _is_map_style(thing, torch_data):
        _needs_batch_size(options, thing)
        length_by(thing, _name(thing))
        loader = torch_data.DataLoader(thing, options["batch_size"])
        return _of_loader(loader, torch_data, seed, {**options, **_own_order(options, seed)}, ranks, finish)
    if torch_data is not None and isinstance(thing, torch_data.IterableDataset):
        return _stream(IteratedFeed(thing), thing, seed, options, ranks)
    refuse_mixture(thing)
    if is_arrays(thing):
        return ArraySource(thing, **_progress_options(thing, seed, options, ranks, finish))
    if is_sequence(thing):
        length = length_by(thing, _name(thing))
        return SequenceSource(thing, Progress(length, **_progress_options(thing, seed, options, ranks, finish)))
    if isinstance(thing, Iterable):
        return _stream(IteratedFeed(thing), thing, seed, options, ranks)
    if callable(thing):
        return _stream(CalledFeed(thing), thing, seed, options, ranks)
    raise UsageError(
        f"{type(thing).__name__} is no data",
        hint="a DataLoader, a dataset, an array, a sequence, an iterable, or a function that makes an iterator",
    )


def _of_loader(
    loader: Any, torch_data: Any, seed: int | None, options: dict[str, Any], ranks: dict[str, Any], finish: Finish
) -> Data:
    is_stream = isinstance(loader.dataset, torch_data.IterableDataset)
    if not (has_state(loader) and (is_stream or seed is None)):  # that is iterated over as it is
        _refuse_own_loop(loader)
    if is_stream:
        _refuse(options, ["batch_size", "drop_last"], "the DataLoader over a stream has its own")
        if has_state(loader):
            return _stream(_own_state(loader), loader, seed, options, ranks)
        from holdfast.data.torch_stream import LoaderFeed

        return _stream(LoaderFeed(loader, seed), loader.dataset, seed, options, ranks)
    if seed is None and has_state(loader):
        _refuse(options, ["batch_size", "drop_last"], "without a seed, the loader's own state is used, as it is")
        return _stream(_own_state(loader), loader, seed, options, ranks)
    if seed is None:
        raise _seed_missing(loader.dataset)
    from holdfast.data.torch_loader import resumable_loader

    return resumable_loader(loader, seed=seed, finish=finish, **_ranks_of(loader, torch_data, ranks), **options)


def _refuse_own_loop(loader: Any) -> None:
    """What a subclass does to its batches would be left out: its parts are taken, and not its loop."""
    if type(loader).__iter__.__module__.partition(".")[0] not in ("torch", "torchdata"):
        raise UsageError(
            f"{type(loader).__name__} is a DataLoader with an __iter__() of its own, which would not be called",
            hint="give a DataLoader of torch, before it is wrapped; or resumable(lambda: iter(loader)), which counts",
        )


def _ranks_of(loader: Any, torch_data: Any, ranks: dict[str, Any]) -> dict[str, int]:
    """Nothing where the loader's sampler says it, and nobody else."""
    if not ranks and isinstance(loader.sampler, torch_data.DistributedSampler):
        return {}
    rank, world = rank_and_world(ranks.get("rank"), ranks.get("world"))
    return {"rank": rank, "world": world}


def _own_state(loader: Any) -> IteratedFeed:
    feed = IteratedFeed(loader, carries_over=True)
    feed.in_process = loader.num_workers == 0
    feed.drop_last = None if loader.batch_size is None else bool(loader.drop_last)
    try:
        feed.batches = len(loader)
    except TypeError:
        pass  # it has none
    return feed


def _stream(feed: Feed, thing: Any, seed: int | None, options: dict[str, Any], ranks: dict[str, Any]) -> Data:
    _refuse(options, ["shuffle", "pad"], "the order of a stream is its own")
    if ranks.get("world", 1) != 1:
        raise UsageError(
            "a stream is not shared out between ranks: each rank has its own",
            hint="split it where it is made (datasets: split_dataset_by_node), and leave rank= and world= out",
        )
    rank, world = rank_and_world(None, None)
    return stream_of(feed, seed=seed, rank=rank, world=world, what=_name(thing), **options)


def _progress_options(
    thing: Any, seed: int | None, options: dict[str, Any], ranks: dict[str, Any], finish: Finish
) -> dict[str, Any]:
    _needs_batch_size(options, thing)
    rank, world = rank_and_world(ranks.get("rank"), ranks.get("world"))
    own = _own_order(options, seed)
    if own["shuffle"] and seed is None:
        raise _seed_missing(thing)
    whole = {"rank": rank, "world": world, "finish": finish, "what": _name(thing), **options, **own}
    return {"seed": 0 if seed is None else seed, **whole}


def _own_order(options: dict[str, Any], seed: int | None) -> dict[str, Any]:
    return {"batch_size": options["batch_size"], "shuffle": options.get("shuffle", seed is not None)}


def _is_map_style(thing: Any, torch_data: Any) -> bool:
    return isinstance(thing, torch_data.Dataset) and not isinstance(thing, torch_data.IterableDataset)


def _needs_batch_size(options: dict[str, Any], thing: Any) -> None:
    if "batch_size" not in options:
        raise UsageError(
            f"batch_size is missing: {_name(thing)} does not say how many samples a step takes",
            hint="give it, e.g. batch_size=32; or a DataLoader, which has one",
        )


def _refuse(options: dict[str, Any], names: list[str], why: str) -> None:
    if found := [f"{name}={options[name]!r}" for name in names if name in options]:
        raise UsageError(f"{', '.join(found)} cannot be given: {why}", hint="leave it out")


def _seed_missing(thing: Any) -> UsageError:
    return UsageError(
        f"seed is missing: what comes when of {_name(thing)}, and what is random in it, is computed from one",
        hint="any number will do, e.g. seed=7; the same in every attempt",
    )


def _name(thing: Any) -> str:
    return str(getattr(thing, "__name__", type(thing).__name__))
