"""What the ledger costs: a step, and a manifest."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np

from benchmarks.measure import in_turn, timed
from benchmarks.results import Row, Section, at_most, row
from benchmarks.setting import Setting
from holdfast.data.order import Indices
from holdfast.data.protocol import Handed
from holdfast.engine.ledger import MAX_ENTRIES, Ledger

__all__ = ["run"]

_BATCH_SIZES = (32, 256, 4096)
_STEPS = 20_000
_QUICK_STEPS = 200
_LEAST_REPEAT = 5
_EPOCHS = 100
_MOST_STEP_US = 2.0
_MOST_ENTRY_BYTES = 150.0


def run(setting: Setting) -> Section:
    """A loop over batches of numbers with a ledger and without, and how large that of 100 epochs is."""
    section = Section(name="ledger", title="The ledger: cost per step, and size in the manifest")
    for batch_size in _BATCH_SIZES:
        empty, ours = _measure(setting, batch_size)
        section.rows += [empty, ours]
        cost_us = (ours.median_s - empty.median_s) / (ours.items or 1) * 1e6
        if batch_size == _BATCH_SIZES[1]:
            section.checks.append(at_most(f"a step with batches of {batch_size}", _MOST_STEP_US, cost_us, "µs"))
        section.notes.append(f"batches of {batch_size}: {cost_us:.2f} µs a step")
    ledger, steps = Ledger(), 0
    for epoch in range(_EPOCHS):
        for handed in _batches(epoch, 10, 256):
            steps += 1
            ledger.note("data", attempt=1, step=steps, handed=handed, facts=_facts(2560, 256))
    size_bytes = len(msgspec.json.encode(ledger.plain()))
    section.checks.append(at_most("bytes of the manifest per epoch", _MOST_ENTRY_BYTES, size_bytes / _EPOCHS, "B"))
    section.notes.append(f"after {_EPOCHS} epochs the ledger takes {size_bytes:,} bytes of the manifest")
    section.notes.append(_full(setting))
    return section


def _full(setting: Setting) -> str:
    """What a save has to do for one that is as long as any becomes: an epoch of a single batch each."""
    ledger, numbers = Ledger(), np.arange(256, dtype=np.int64)
    for epoch in range(MAX_ENTRIES + 1):
        handed = Handed(epoch, 0, 256, numbers)
        ledger.note("data", attempt=1, step=epoch + 1, handed=handed, facts=_facts(256, 256))
    (samples,) = in_turn([lambda: msgspec.json.encode(ledger.plain())], setting.repeat, timed)
    return f"one of {MAX_ENTRIES:,} entries, the most: {min(sample.wall_s for sample in samples) * 1e3:.2f} ms a save"


def _measure(setting: Setting, batch_size: int) -> tuple[Row, Row]:
    steps = _QUICK_STEPS if setting.quick else _STEPS

    def without() -> None:
        facts = _facts(steps * batch_size, batch_size)
        for _step, _handed in enumerate(_batches(0, steps, batch_size)):
            facts  # noqa: B018  what the loop with a ledger has at hand, too

    def with_ledger() -> None:
        ledger, facts = Ledger(), _facts(steps * batch_size, batch_size)
        for step, handed in enumerate(_batches(0, steps, batch_size)):
            ledger.note("data", attempt=1, step=step, handed=handed, facts=facts)

    loops: list[Callable[[], None]] = [without, with_ledger]
    repeat = setting.repeat if setting.quick else max(setting.repeat, _LEAST_REPEAT)
    samples = in_turn(loops, repeat, timed)
    group = f"batches of {batch_size}"
    bare, ours = ([sample.wall_s for sample in found] for found in samples)
    return (
        row(group, "a loop without", "limit", bare, items=steps),
        row(group, "holdfast, with a ledger", "holdfast", ours, items=steps),
    )


def _batches(epoch: int, steps: int, batch_size: int) -> Iterator[Handed]:
    """As a source hands them out; the numbers are there already, since computing them is no cost of the ledger."""
    numbers: Indices = np.random.default_rng(epoch).permutation(batch_size).astype(np.int64)
    for step in range(steps):
        yield Handed(epoch, step * batch_size, (step + 1) * batch_size, numbers)


def _facts(length: int, batch_size: int) -> dict[str, Any]:
    order = {"seed": 7, "length": length, "shuffle": True, "rank": 0, "world": 1, "batch_size": batch_size}
    return {**order, "drop_last": False, "pad": False}
