"""What a DataLoader that resumes costs with every batch, beside the plain one."""

import itertools
import math
import random
import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import holdfast
from benchmarks.results import Row, Section, at_most, percent, row, slow_downs
from benchmarks.setting import Setting

__all__ = ["run"]

_MOST_PERCENT = 2.0
_LEAST_REPEAT = 15
_EPOCHS = 12
_IMAGE = 256
_SIDE = 192
_CROP = 224
_PLAIN, _AGAIN, _OURS = range(3)
_ORDERS = tuple(itertools.permutations(range(3)))


class _Cheap(Dataset[tuple[torch.Tensor, int]]):
    """A row of a tensor: as little work as a sample can be."""

    def __init__(self, length: int) -> None:
        self.rows = torch.zeros(length, 32)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.rows[index], index


class _Tokens(_Cheap):
    """A window of a long text."""

    def __init__(self, length: int) -> None:
        self.rows = torch.zeros(length, 2049, dtype=torch.int32)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        row = self.rows[index].long()
        return torch.stack((row[:-1], row[1:])), index


class _Augmented(Dataset[tuple[torch.Tensor, int]]):
    """An image, cropped by chance, scaled, perhaps mirrored, in other colours: two generators draw."""

    def __init__(self, length: int) -> None:
        self.images = torch.randint(0, 255, (16, 3, _IMAGE, _IMAGE), dtype=torch.uint8)
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        # Of one size, so that both loaders have the same work with other crops.
        top, left = random.randint(0, _IMAGE - _SIDE), random.randint(0, _IMAGE - _SIDE)
        image = self.images[index % len(self.images), :, top : top + _SIDE, left : left + _SIDE].float()
        image = torch.nn.functional.interpolate(image[None], (_CROP, _CROP), mode="bilinear", antialias=True)[0]
        if random.random() < 0.5:
            image = image.flip(2)
        return image.add_(torch.randn(3, 1, 1)).div_(255), index


class _Case(NamedTuple):
    name: str
    dataset: Dataset[Any]
    batch_size: int
    workers: int


def run(setting: Setting) -> Section:
    """Both in turn, with samples that cost next to nothing and with augmented images."""
    section = Section(name="loader", title="A DataLoader that resumes, beside the plain one: time of a batch")
    scale = 1 if setting.quick else 20
    tensors = TensorDataset(torch.zeros(640 * scale, 32), torch.arange(640 * scale))
    for case in (
        _Case("TensorDataset, no workers", tensors, 64, 0),
        _Case("cheap samples, no workers", _Cheap(640 * scale), 64, 0),
        _Case("token windows, no workers", _Tokens(128 * scale), 64, 0),
        _Case("augmented images, no workers", _Augmented(32 * scale), 16, 0),
        _Case("cheap samples, 2 workers", _Cheap(320 * scale), 64, 2),
        _Case("augmented images, 2 workers", _Augmented(16 * scale), 16, 2),
    ):
        _measure(section, case, setting)
    section.notes.append(
        "what the cheap samples show is the fixed cost of a batch: which samples come, where the training is, and a "
        "look at three generators for draws that have to be seeded"
    )
    return section


def _measure(section: Section, case: _Case, setting: Setting) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    repeat = max(setting.repeat, 1 if setting.quick else _LEAST_REPEAT)
    try:
        # The plain one a second time: by how much that differs from the first is what cannot be told apart.
        loaders = [_loader(case), _loader(case), holdfast.data.resumable(_loader(case), seed=7)]
        batches = len(loaders[0])
        for loader in loaders:
            for _ in loader:
                pass
        # With workers, those of the one would work while the other is timed: whole epochs take turns then.
        cpu: list[list[float]] = []
        if case.workers:
            # Many and short ones: how the processes share the cores changes every few seconds.
            rounds = [_epoch(loaders, index, cpu) for index in range(repeat * (1 if setting.quick else _EPOCHS))]
        else:
            rounds = [_batches(loaders, index) for index in range(repeat)]
    finally:
        torch.set_num_threads(threads)
    turns = [turn for turns in rounds for turn in turns]
    times_s = [[sum(turn[who] for turn in turns) for turns in rounds] for who in range(3)]
    rows: list[Row] = slow_downs(
        [
            row(case.name, "plain DataLoader", "limit", times_s[_PLAIN], items=batches),
            row(case.name, "holdfast.data.resumable", "holdfast", times_s[_OURS], items=batches),
        ]
    )
    section.rows += rows
    more, again = _More.of(turns, _OURS), _More.of(turns, _AGAIN)
    section.checks.append(at_most(f"{case.name}: overhead", _MOST_PERCENT, percent(more.median), "%"))
    each_us = [statistics.median(turn[who] for turn in turns) / (batches / len(rounds[0])) * 1e6 for who in range(3)]
    section.notes.append(
        f"{case.name}: {each_us[_PLAIN]:,.0f} µs a batch of {case.batch_size} plain, {each_us[_OURS]:,.0f} µs "
        f"resumable; {more}, by the median of {len(turns)} {'epochs' if case.workers else 'batches'} in turn; a second "
        f"plain one {again}"
    )
    if cpu:
        # Which process runs when on a few cores is chance, and makes more of a difference than what is looked for.
        more, again = _More.of(cpu, _OURS), _More.of(cpu, _AGAIN)
        section.checks.append(at_most(f"{case.name}: overhead in CPU time", _MOST_PERCENT, percent(more.median), "%"))
        section.notes.append(
            f"{case.name}: CPU time of training and workers together: {more}; a second plain one {again}"
        )


class _More(NamedTuple):
    """How much more time than the plain one: the median of the turns, and where it is in 19 of 20 such runs."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, turns: list[list[float]], who: int) -> "_More":
        found = sorted(turn[who] / turn[_PLAIN] - 1 for turn in turns)
        # The median lies between these two, whatever the distribution is (the sign test, by its normal limit).
        reach = 0.98 * math.sqrt(len(found))
        low, high = math.floor(len(found) / 2 - reach), math.ceil(len(found) / 2 + reach)
        return cls(statistics.median(found), found[max(low, 0)], found[min(high, len(found) - 1)])

    def __str__(self) -> str:
        return f"{self.median:+.1%} ({self.low:+.1%} to {self.high:+.1%})"


def _batches(loaders: Sequence[Iterable[Any]], first: int) -> list[list[float]]:
    """The times of each, batch by batch in turn: what else the machine does hits all alike."""
    iterators, found = [iter(loader) for loader in loaders], []
    while True:
        times_s = [0.0] * len(loaders)
        for who in _turn(first):
            begin_s = time.perf_counter()
            batch = next(iterators[who], None)
            times_s[who] = time.perf_counter() - begin_s
            is_over = batch is None
            del batch  # or one would be made in the memory of another
        if is_over:
            return found
        found.append(times_s)
        first += 1


def _epoch(loaders: Sequence[Any], first: int, cpu: list[list[float]]) -> list[list[float]]:
    """The times of each for an epoch; to `cpu` goes the time of all processors."""
    times_s, cpu_s = [0.0] * len(loaders), [0.0] * len(loaders)
    for who in _turn(first):
        loader = loaders[who]
        clocks = _clocks(loader)
        begin_s, begin_cpu_s = time.perf_counter(), sum(map(time.clock_gettime, clocks))
        for _ in loader:
            pass
        times_s[who] = time.perf_counter() - begin_s
        cpu_s[who] = sum(map(time.clock_gettime, clocks)) - begin_cpu_s
    cpu.append(cpu_s)
    return [times_s]


def _clocks(loader: Any) -> list[int]:
    """Those of Linux that count what this process and the loader's workers, which persist, have computed."""
    workers = getattr(loader, "loader", loader)._iterator._workers
    return [time.CLOCK_PROCESS_CPUTIME_ID, *(~worker.pid << 3 | 2 for worker in workers)]


def _turn(number: int) -> tuple[int, ...]:
    """In another order each time: each comes as often after one of the others, which leaves it the caches."""
    return _ORDERS[number % len(_ORDERS)]


def _loader(case: _Case) -> "DataLoader[Any]":
    return DataLoader(
        case.dataset, case.batch_size, shuffle=True, num_workers=case.workers, persistent_workers=case.workers > 0
    )
