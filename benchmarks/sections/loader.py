"""What a DataLoader that resumes costs with every batch, beside the plain one."""

import random
import statistics
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import holdfast
from benchmarks.results import Row, Section, at_most, percent, row, slow_downs
from benchmarks.setting import Setting

__all__ = ["run"]

_MOST_PERCENT = 2.0
_LEAST_REPEAT = 15
_IMAGE = 256
_SIDE = 192
_CROP = 224


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
        _Case("augmented images, no workers", _Augmented(16 * scale), 16, 0),
        _Case("cheap samples, 2 workers", _Cheap(640 * scale), 64, 2),
        _Case("augmented images, 2 workers", _Augmented(8 * scale), 16, 2),
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
        plain, ours = _loader(case), holdfast.data.resumable(_loader(case), seed=7)
        batches = sum(1 for _ in plain)
        for _ in ours:
            pass
        # With workers, those of the one would work while the other is timed: whole epochs take turns then.
        rounds = [(_epochs if case.workers else _batches)(plain, ours, first=index % 2) for index in range(repeat)]
    finally:
        torch.set_num_threads(threads)
    pairs = [pair for pairs in rounds for pair in pairs]
    times_s = [[sum(pair[who] for pair in pairs) for pairs in rounds] for who in range(2)]
    rows: list[Row] = slow_downs(
        [
            row(case.name, "plain DataLoader", "limit", times_s[0], items=batches),
            row(case.name, "holdfast.data.resumable", "holdfast", times_s[1], items=batches),
        ]
    )
    section.rows += rows
    ratios = [ours_s / plain_s - 1 for plain_s, ours_s in pairs]
    overhead = statistics.median(ratios)
    section.checks.append(at_most(f"{case.name}: overhead", _MOST_PERCENT, percent(overhead), "%"))
    each_us = [statistics.median(pair[who] for pair in pairs) / (batches / len(rounds[0])) * 1e6 for who in range(2)]
    section.notes.append(
        f"{case.name}: {each_us[0]:,.0f} µs a batch of {case.batch_size} plain, {each_us[1]:,.0f} µs resumable; "
        f"{overhead:+.1%} by the median of {len(ratios)} pairs of {'epochs' if case.workers else 'batches'} in turn, "
        f"half of which are between {_quartile(ratios, 0):+.1%} and {_quartile(ratios, 2):+.1%}; "
        f"{rows[1].slowdown_best or 0:+.1%} by the best epochs"
    )


def _batches(plain: Iterable[Any], ours: Iterable[Any], *, first: int) -> list[tuple[float, float]]:
    """The times of each, batch by batch in turn: what else the machine does hits both alike."""
    iterators, found = (iter(plain), iter(ours)), []
    while True:
        times_s = [0.0, 0.0]
        for who in (first, 1 - first):
            begin_s = time.perf_counter()
            batch = next(iterators[who], None)
            times_s[who] = time.perf_counter() - begin_s
        if batch is None:
            return found
        found.append((times_s[0], times_s[1]))
        first = 1 - first


def _epochs(plain: Iterable[Any], ours: Iterable[Any], *, first: int) -> list[tuple[float, float]]:
    times_s = [0.0, 0.0]
    for who in (first, 1 - first):
        begin_s = time.perf_counter()
        for _ in (plain, ours)[who]:
            pass
        times_s[who] = time.perf_counter() - begin_s
    return [(times_s[0], times_s[1])]


def _loader(case: _Case) -> "DataLoader[Any]":
    return DataLoader(
        case.dataset, case.batch_size, shuffle=True, num_workers=case.workers, persistent_workers=case.workers > 0
    )


def _quartile(found: list[float], which: int) -> float:
    return statistics.quantiles(found, n=4)[which] if len(found) > 1 else found[0]
