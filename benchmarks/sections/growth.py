"""How the stall grows with the size of the state and with the number of its leaves."""

import shutil
from collections.abc import Callable, Sequence
from itertools import pairwise

from benchmarks.background import Background, HoldfastBackground, MemoryCopy
from benchmarks.machine import free_memory_bytes
from benchmarks.measure import in_turn
from benchmarks.results import Check, Row, Section, against_limits, at_most, row
from benchmarks.sections.stall import stalled
from benchmarks.setting import Setting
from benchmarks.states import TorchState, parameters_state, transformer_state

__all__ = ["run"]

_SIZES = ({"layers": 4, "width": 192, "vocabulary": 10_000}, {"layers": 20, "width": 576}, {"layers": 30, "width": 896})
_QUICK_SIZES = ({"layers": 1, "width": 64, "vocabulary": 500}, {"layers": 2, "width": 128, "vocabulary": 500})
_COUNTS = (10, 1_000, 100_000)
_QUICK_COUNTS = (10, 100)
_COMPUTE_S_PER_GB = 0.6
_MOST_GROWTH = 1.5
_MEMORY_FACTOR = 5  # gradients while it is made, a bare copy, or an arena with two slots, and room for others


def run(setting: Setting) -> Section:
    """Stalls of holdfast beside the bare copy, for states of other sizes and with other numbers of leaves."""
    section = Section(name="growth", title="Stall of the training thread, by size and number of leaves")
    makes: list[Callable[[], TorchState]] = [
        lambda size=size: transformer_state(**size) for size in (_QUICK_SIZES if setting.quick else _SIZES)
    ]
    by_size = [found for make in makes if (found := _measure(setting, section, make, _size))]
    by_count = [
        _measure(setting, section, lambda count=count: parameters_state(count), _count)
        for count in (_QUICK_COUNTS if setting.quick else _COUNTS)
    ]
    section.rows = [found for rows in (*by_size, *by_count) for found in rows]
    section.checks = [
        check
        for found, unit in ((by_size, "byte"), (by_count, "leaf"))
        for before, after in list(pairwise(found))[-1:]
        for check in _checks(before, after, unit)
    ]
    return section


def _size(state: TorchState) -> tuple[str, int]:
    return f"{state.size_bytes / 1e6:,.0f} MB", state.size_bytes // 1_000_000 or 1


def _count(state: TorchState) -> tuple[str, int]:
    return f"{len(state.flat):,} leaves", len(state.flat)


def _measure(
    setting: Setting,
    section: Section,
    make: Callable[[], TorchState],
    describe: Callable[[TorchState], tuple[str, int]],
) -> list[Row]:
    state = make()
    group, items = describe(state)
    if free_memory_bytes() < _MEMORY_FACTOR * state.size_bytes - state.size_bytes:
        section.notes.append(f"{group} is not measured: too little memory is free.")
        return []
    contenders: list[Background] = [MemoryCopy(), HoldfastBackground("now"), HoldfastBackground("overlapped")]
    compute_s = 0.01 if setting.quick else 0.1 + _COMPUTE_S_PER_GB * state.size_bytes / 1e9
    times_s: dict[str, list[float]] = {}

    def measure(contender: Background) -> None:
        directory = setting.directory / "growth"
        with contender.opening(state, directory) as save:
            save(0).wait()
            stall_s, begun = stalled(save, 1, compute_s)
            times_s.setdefault(contender.name, []).append(stall_s)
            begun.wait()
        if isinstance(contender, MemoryCopy):
            contender.forget()
        shutil.rmtree(directory, ignore_errors=True)

    in_turn(contenders, setting.repeat, measure)
    return against_limits([row(group, one.name, one.role, times_s[one.name], items=items) for one in contenders])


def _checks(smaller: Sequence[Row], larger: Sequence[Row], unit: str) -> list[Check]:
    return [
        at_most(
            f"{after.name}: stall per {unit}, {after.group} / {before.group}",
            _MOST_GROWTH,
            (after.median_s / (after.items or 1)) / (before.median_s / (before.items or 1)),
        )
        for before, after in zip(smaller, larger, strict=True)
        if after.role == "holdfast"
    ]
