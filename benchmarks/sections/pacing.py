"""Whether a real training that finds its interval itself stays within the overhead, and what a kill then costs."""

import json
import math
import os
import random
import shutil
import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmarks.disk_load import THREADS
from benchmarks.paced import OVERHEAD, Done, Plan
from benchmarks.results import Check, Role, Row, Section, against_limits, at_most, percent, row
from benchmarks.setting import Setting, cores
from benchmarks.states import transformer_state
from benchmarks.trainings import Life, Trainings, trainings
from holdfast.core.names import JOURNAL_NAME

__all__ = ["run"]

_NONE, _AUTO, _TORCH = "none", "holdfast", "torch"
_WHO: dict[str, tuple[str, Role]] = {
    _NONE: ("no checkpoints", "limit"),
    _AUTO: (f"holdfast, auto(overhead={OVERHEAD})", "holdfast"),
    _TORCH: ("torch.save + fsync, same interval", "peer"),
}
_SPARE, _ALL, _LOADED = "a core to spare", "all cores computing", "disk loaded by others"
_GAPS, _LOST = "from checkpoint to checkpoint", "lost at a SIGKILL"
_MOST_LOST = 0.7  # of an interval: half of it on average, and what chance adds to that in some twenty kills


class _Sizes(NamedTuple):
    model: dict[str, int]
    tokens: int
    first_s: float
    """Of the attempt that leaves its profile to the others: longer than until its first checkpoint."""
    pairs: int
    """Of a stretch with checkpoints and one without."""
    kills: int


_FULL = _Sizes({"layers": 8, "width": 256, "vocabulary": 8_000}, 64, 10.0, 10, 24)
_QUICK = _Sizes({"layers": 1, "width": 64, "vocabulary": 500}, 8, 5.5, 2, 2)
# Intervals in a stretch: what is written at its end is waited for, and should be a small part of it.
_STRETCH = 2
_LEAST_STRETCH = 16


class _Run(NamedTuple):
    """A training that came to its end, and what the journal tells of it."""

    done: Done
    committed: list[int]
    """The steps of its checkpoints."""
    paced: list[dict[str, Any]]

    def gaps_s(self, begin: float, end: float = math.inf) -> list[float]:
        """From checkpoint to checkpoint, of those in that range of steps with checkpoints."""
        step_s = statistics.fmean(self.done.without_s)
        steps = [step for step in self.committed if begin < step <= end]
        return [(after - before) * step_s for before, after in pairwise(steps)]

    def planned(self, end: float = math.inf) -> dict[str, Any]:
        """What held at that one of them."""
        return [event for event in self.paced if event["step"] <= end][-1]


class _Kill(NamedTuple):
    """What was lost at one."""

    steps: int
    seconds: float


def run(setting: Setting) -> Section:
    """The time of a step with and without checkpoints, alone and beside a job that writes; and kills at random."""
    sizes = _QUICK if setting.quick else _FULL
    section = Section(name="pacing", title=f"The interval that a training finds itself, {_describe(sizes)}")
    section.notes.append(
        "all save as often as the overhead allows it (at_least_every_steps=1, lose_at_most=None): "
        "the interval follows from the overhead, not from how often the job fails"
    )
    with trainings() as trained:
        for group, threads in ((_SPARE, 1),) if setting.quick else ((_SPARE, 1), (_ALL, cores())):
            directory = setting.directory / group.replace(" ", "-")
            base = Plan(_AUTO, str(directory), threads, sizes.model, sizes.tokens)
            first = _train(trained, msgspec.structs.replace(base, seconds=sizes.first_s, saves=2))
            base.stretch = max(_LEAST_STRETCH, _STRETCH * _interval(base))
            base.steps = 2 * sizes.pairs * base.stretch
            _measure_overhead(section, trained, base, group)
            if group == _SPARE:
                _measure_kills(section, trained, base, _usual_s(first), sizes.kills)
                _measure_load(section, setting, trained, base)
            shutil.rmtree(directory)
    return section


def _measure_overhead(section: Section, trained: Trainings, base: Plan, group: str) -> None:
    """All make the same steps; torch.save at the interval that the latest training with holdfast came to."""
    ours = _train(trained, base)
    plan = msgspec.structs.replace(base, who=_TORCH, every=_interval(base), directory=base.directory + "-torch")
    theirs = _train(trained, plan)
    shutil.rmtree(plan.directory)
    _check_same_training(ours, theirs)
    rows, noisy = _compared(group, {_AUTO: (ours.done, 0), _TORCH: (theirs.done, 0)})
    section.rows += rows
    section.checks += [
        _within_limit(group, rows[1], noisy),
        at_most(
            f"{group}: overhead by holdfast, at most that of torch.save at the same interval or the noise",
            max(percent(rows[2].slowdown_median), percent(noisy)),
            percent(rows[1].slowdown_median),
            "%",
        ),
    ]
    intervals = ", ".join(f"{event['interval_steps']}" for event in ours.paced[-3:])
    believed = ours.planned()["overhead_window"]
    section.notes.append(
        f"{group}: {base.threads} torch threads, {base.steps} steps: {base.stretch} with checkpoints, as many without, "
        f"and so on; noise ± {noisy:.1%}; holdfast came to a checkpoint every {intervals} steps in the end "
        f"({len(ours.committed)} in all), and believes that they cost {believed:.1%} lately"
    )
    section.notes.append(
        f"{group}: the call that saves took {_stall([ours])} with holdfast, {_stall([theirs])} with torch.save"
    )


def _measure_kills(section: Section, trained: Trainings, base: Plan, step_s: float, count: int) -> None:
    """Processes killed at random, of which each goes on where the one before was killed."""
    plan = msgspec.structs.replace(base, steps=0, stretch=0, resumes=True)
    before = len(_events(Path(base.directory)))
    ours = _kills(trained, plan, count, lambda _: _interval(base))
    # Each process of torch.save gets the interval that the one of holdfast had, and is killed at the same phase of it.
    chosen = _first_intervals(_events(Path(base.directory))[before:]) or [_interval(base)]
    plan = msgspec.structs.replace(plan, who=_TORCH, directory=base.directory + "-torch")
    theirs = _kills(trained, plan, count, lambda index: chosen[min(index, len(chosen) - 1)])
    shutil.rmtree(plan.directory)
    interval = statistics.fmean(chosen[:count])
    for who, kills in ((_AUTO, ours), (_TORCH, theirs)):
        seconds = [kill.seconds for kill in kills]
        section.rows.append(row(_LOST, *_WHO[who], seconds))
        section.notes.append(
            f"{_LOST}, {_WHO[who][0]}: {statistics.fmean(kill.steps for kill in kills):.1f} steps, "
            f"{statistics.fmean(seconds):.2f} s on average of {count} kills, {max(seconds):.2f} s at most; "
            f"the interval was {interval:.1f} steps, {interval * step_s:.2f} s"
        )
    mean = statistics.fmean(kill.steps for kill in ours)
    section.checks.append(at_most(f"{_LOST}: steps on average / interval", _MOST_LOST, mean / interval))


def _kills(trained: Trainings, plan: Plan, count: int, interval_of: Callable[[int], int]) -> list[_Kill]:
    """Each process lives for one interval, and up to one more: all moments of an interval are alike."""
    chance = random.Random(7)
    lives: list[Life] = []
    for index in range(count + 1):
        plan.every = interval_of(index)
        lives.append(trained.live_and_die(plan, plan.every * chance.uniform(1, 2)))
    return [_lost(before, after) for before, after in pairwise(lives)]


def _first_intervals(events: Iterable[dict[str, Any]]) -> list[int]:
    """What each attempt began with."""
    found: dict[int, int] = {}
    for event in events:
        if event["event"] == "paced" and event["interval_steps"] is not None:
            found.setdefault(event["attempt"], event["interval_steps"])
    return list(found.values())


def _lost(before: Life, after: Life) -> _Kill:
    if not before.begun <= after.begun <= before.last:
        raise RuntimeError(
            f"a process went from step {before.begun} to {before.last}, and the next one began at {after.begun}"
        )
    return _Kill(before.last - after.begun, before.killed_s - before.stamps_s[after.begun])


def _measure_load(section: Section, setting: Setting, trained: Trainings, base: Plan) -> None:
    """In the middle of the training, another job begins to write to the same disk."""
    # A copy: it begins with the profile of attempts that nobody disturbed.
    directory = Path(base.directory + "-loaded")
    shutil.copytree(base.directory, directory)
    plan = msgspec.structs.replace(base, directory=str(directory), steps=2 * base.steps, says_at=base.steps)
    ours = _train(trained, plan, loads=setting.directory / "load")
    shutil.rmtree(directory)
    rows, noisy = _compared(_LOADED, {_AUTO: (ours.done, base.steps // base.stretch // 2)})
    half = base.steps // 2  # of the steps with checkpoints, which are half of all
    section.rows += rows
    for name, begin, end in (("before", 0.0, float(half)), ("while the disk is loaded", float(half), math.inf)):
        gaps_s = ours.gaps_s(begin, end)
        if gaps_s:
            section.rows.append(row(_GAPS, name, "holdfast", gaps_s))
        section.notes.append(f"{_LOADED}, {name}: {_planned_words([ours.planned(end)])}")
    section.checks.append(_within_limit(_LOADED, rows[1], noisy))
    section.notes.append(
        f"{_LOADED}: {THREADS} threads of another process write past the page cache, from the middle of the run on; "
        f"noise ± {noisy:.1%}"
    )


def _compared(group: str, found: dict[str, tuple[Done, int]]) -> tuple[list[Row], float]:
    """The rows, from so many pairs of stretches on; and the noise: the standard error of what ours is found to cost.

    A process that is started anew may be faster or slower by a tenth than the one before, and the machine from one
    minute to the next: stretches with checkpoints and without, in turn in one process, meet both alike.
    """
    ours, begin = found[_AUTO]
    rows = [row(group, *_WHO[_NONE], ours.without_s[begin:])]
    for who, (done, first) in found.items():
        with_s, without_s = done.with_s[first:], done.without_s[first:]
        each = row(group, *_WHO[who], with_s)
        cost = statistics.fmean(with_s) / statistics.fmean(without_s) - 1
        best = min(with_s) / min(without_s) - 1
        rows.append(msgspec.structs.replace(each, slowdown_median=round(cost, 4), slowdown_best=round(best, 4)))
    ratios = [one / other for one, other in zip(ours.with_s[begin:], ours.without_s[begin:], strict=True)]
    noisy = statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else 0.0
    limited = against_limits(rows)
    return [msgspec.structs.replace(limited[0], slowdown_median=0.0, slowdown_best=0.0), *limited[1:]], noisy


def _train(trained: Trainings, plan: Plan, *, loads: Path | None = None) -> _Run:
    os.sync()  # what is still to be written of the run before is not charged to this one
    before = len(_events(Path(plan.directory)))
    done = trained.train(plan, loads=loads)
    events = _events(Path(plan.directory))[before:]
    return _Run(done, _committed(events), [event for event in events if event["event"] == "paced"])


def _events(directory: Path) -> list[dict[str, Any]]:
    journal = directory / JOURNAL_NAME
    return [json.loads(line) for line in journal.read_bytes().splitlines()] if journal.exists() else []


def _committed(events: Sequence[dict[str, Any]]) -> list[int]:
    return [event["step"] for event in events if event["event"] == "committed"]


def _interval(base: Plan) -> int:
    """What the latest attempt came to."""
    found = [event.get("interval_steps") for event in _events(Path(base.directory)) if event["event"] == "paced"]
    chosen = [int(steps) for steps in found if steps is not None]
    if not chosen:
        raise RuntimeError("the first attempt made no checkpoint: its steps take too long on this machine")
    return chosen[-1]


def _usual_s(found: _Run) -> float:
    return statistics.median(after - before for before, after in pairwise(found.done.stamps_s))


def _check_same_training(ours: _Run, theirs: _Run) -> None:
    """A checkpoint must not change what is computed."""
    if ours.done.losses != theirs.done.losses:
        raise RuntimeError("the training took another course with other checkpoints")


def _within_limit(group: str, found: Row, noisy: float) -> Check:
    limit = percent(OVERHEAD)
    return at_most(
        f"{group}: overhead by holdfast, at most {limit:g} % and the noise",
        round(limit + percent(noisy), 2),
        percent(found.slowdown_median),
        "%",
    )


def _planned_words(planned: Iterable[dict[str, Any]]) -> str:
    return "; ".join(
        f"every {event['interval_steps']} steps ({event['won']} decides), durable after {event['durable_s']:.2f} s, "
        f"{event['overhead_window']:.1%} of the time lately"
        for event in planned
    )


def _stall(runs: Iterable[_Run]) -> str:
    stalls_s = [stall_s for each in runs for stall_s in each.done.stalls_s]
    return f"{statistics.median(stalls_s) * 1000:,.0f} ms" if stalls_s else "no time: none was made"


def _describe(sizes: _Sizes) -> str:
    return f"transformer with {transformer_state(**sizes.model).size_bytes / 1e6:,.0f} MB of state"
