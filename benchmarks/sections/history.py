"""Whether a save gets slower the more checkpoints a run keeps."""

import numpy as np

import holdfast
from benchmarks.measure import timed
from benchmarks.results import Section, at_most, row
from benchmarks.setting import Setting

__all__ = ["run", "save_many", "small_run"]

_COUNTS = (10, 100, 1_000)
_QUICK_COUNTS = (2, 5)
_TIMED_SAVES = 20
_QUICK_TIMED_SAVES = 3
_MOST_GROWTH = 3.0


def run(setting: Setting) -> Section:
    """The time of one small save, with the removal of the oldest checkpoint, at several lengths of the history."""
    counts = _QUICK_COUNTS if setting.quick else _COUNTS
    saves = _QUICK_TIMED_SAVES if setting.quick else _TIMED_SAVES
    rows = []
    for count in counts:
        with small_run(str(setting.directory / f"kept-{count}"), holdfast.keep(last=count)) as ckpt:
            save_many(ckpt, count)
            times_s = [timed(lambda step=count + i: ckpt.save(step=step)).wall_s for i in range(saves)]
        rows.append(row(f"{count:,} kept", "holdfast", "holdfast", times_s))
    growth = rows[-1].median_s / rows[0].median_s
    return Section(
        name="history",
        title="A small save and the removal of the oldest one, by the number of checkpoints kept",
        rows=rows,
        checks=[at_most(f"cost with {counts[-1]:,} checkpoints / with {counts[0]}", _MOST_GROWTH, growth)],
    )


def small_run(directory: str, keep: holdfast.Keep) -> holdfast.Checkpointer:
    """A run with next to no state: what is left is the cost of the protocol."""
    return holdfast.Checkpointer(directory, {"weights": np.zeros(256)}, keep=keep, on_error="raise", background="off")


def save_many(ckpt: holdfast.Checkpointer, count: int) -> None:
    """That many checkpoints, of steps 0, 1, 2, …"""
    for step in range(count):
        ckpt.save(step=step, metrics={"loss": 1 / (step + 1)})
