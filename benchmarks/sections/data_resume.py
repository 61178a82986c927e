"""How long it takes until a training has its data again, at any position; and what the order of many samples costs."""

import importlib.util
import warnings
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import holdfast
from benchmarks.measure import in_turn, timed
from benchmarks.results import Role, Row, Section, at_most, row
from benchmarks.setting import Setting
from holdfast.data.order import Order

__all__ = ["run"]

_LENGTH = 2_000_000_000
_BATCH = 1000
_OURS = "holdfast.data.resumable"
_MOST_RATIO = 3.0
_MOST_ORDER_MB = 8.0
_ORDERED = 1_000_000_000


class _Numbers(Dataset[int]):
    """So many samples that no list of them fits into memory."""

    def __len__(self) -> int:
        return _LENGTH

    def __getitem__(self, index: int) -> int:
        return index


def run(setting: Setting) -> Section:
    """From a new loader to the first batch at the position; and the memory and time of orders."""
    section = Section(name="data_resume", title=f"Data at a position again, of {_LENGTH:,} samples, and their order")
    counted = [10_000] if setting.quick else [1_000_000, 10_000_000]
    reached = [*counted, 1_000_000_000]
    ours = {position: _resumed(position) for position in reached}
    for position in reached:
        contenders: dict[str, tuple[Role, Callable[[], object]]] = {_OURS: ("holdfast", ours[position])}
        if position in counted:
            contenders["fast-forward of a DataLoader, not shuffled"] = ("peer", lambda at=position: _forwarded(at))
            contenders |= _stateful(position, section)
        section.rows += _rows(f"position {position:,}", contenders, setting)
    times_s = [found.median_s for found in section.rows if found.name == _OURS]
    section.checks.append(
        at_most(f"resume at {reached[-1]:,}, times that at {reached[0]:,}", _MOST_RATIO, times_s[-1] / times_s[0])
    )
    section.notes.append(
        f"batches of {_BATCH}, no workers; ours is shuffled, the others are not: torch would draw a permutation of "
        f"{_LENGTH:,} numbers first, 16 GB and more; at {reached[-1]:,} they were not measured"
    )
    _measure_order(section, setting)
    return section


def _resumed(position: int) -> Callable[[], object]:
    state = {**_new().state_dict(), "consumed": position}

    def resume() -> object:
        data = _new()
        data.load_state_dict(state)
        return next(iter(data))

    return resume


def _new() -> holdfast.data.Data:
    return holdfast.data.resumable(DataLoader(_Numbers(), _BATCH), seed=7, shuffle=True)


def _forwarded(position: int) -> object:
    return next(islice(DataLoader(_Numbers(), _BATCH), position // _BATCH, None))


def _stateful(position: int, section: Section) -> dict[str, tuple[Role, Callable[[], object]]]:
    name = "StatefulDataLoader, not shuffled"
    if importlib.util.find_spec("torchdata") is None:
        section.notes.append(f"{name} is left out: torchdata is not installed")
        return {}
    from torchdata.stateful_dataloader import StatefulDataLoader

    def new() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a torch that has moved on since
            return StatefulDataLoader(_Numbers(), _BATCH)

    loader = new()
    for _ in islice(loader, position // _BATCH):
        pass
    state = loader.state_dict()

    def resume() -> object:
        again = new()
        again.load_state_dict(state)
        return next(iter(again))

    if resume().tolist()[0] != position:  # type: ignore[attr-defined]
        section.notes.append(f"{name} did not come back to {position:,}")
    return {name: ("peer", resume)}


def _rows(group: str, contenders: dict[str, tuple[Role, Callable[[], object]]], setting: Setting) -> list[Row]:
    calls = [call for _, call in contenders.values()]
    samples = in_turn(calls, min(setting.repeat, 5), timed)
    return [
        row(group, name, role, [sample.wall_s for sample in found], extra_bytes=max(one.extra_bytes for one in found))
        for (name, (role, _)), found in zip(contenders.items(), samples, strict=True)
    ]


def _measure_order(section: Section, setting: Setting) -> None:
    listed = 100_000 if setting.quick else 100_000_000
    drawn = 16_384 if setting.quick else 10_000_000

    def begin() -> object:
        order = Order(_ORDERED, seed=7, epoch=0)
        return [order.indices(at, at + 64) for at in range(0, _ORDERED, _ORDERED // 8)]

    def go_through() -> None:
        order = Order(_ORDERED, seed=7, epoch=0)
        for begin in range(0, drawn, 16_384):
            order.indices(begin, begin + 16_384)

    computed = f"order of {_ORDERED:,}: 8 batches of 64 anywhere"
    section.rows += _rows(computed, {"holdfast, computed": ("holdfast", begin)}, setting)
    most_mb = (section.rows[-1].extra_bytes or 0) / 1e6
    section.checks.append(at_most(f"memory of an order of {_ORDERED:,}", _MOST_ORDER_MB, most_mb, "MB"))
    section.rows += [
        row(found.group, found.name, found.role, found.times_s, items=drawn, extra_bytes=found.extra_bytes)
        for found in _rows(
            f"order of {_ORDERED:,}: the first {drawn:,}", {"holdfast, computed": ("holdfast", go_through)}, setting
        )
    ]
    section.rows += _rows(
        f"order of {listed:,}, as a list", {"torch.randperm": ("peer", lambda: torch.randperm(listed))}, setting
    )
    section.notes.append(f"torch.randperm of {_ORDERED:,} takes 8 GB for the numbers alone; {listed:,} were measured")
