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
from benchmarks.measure import in_turn
from benchmarks.paced import OVERHEAD, Done, Plan
from benchmarks.results import Check, Role, Row, Section, at_most, noise, percent, row, slow_downs
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
    run_s: float
    kills: int


_FULL = _Sizes({"layers": 8, "width": 256, "vocabulary": 8_000}, 64, 10.0, 10.0, 24)
_QUICK = _Sizes({"layers": 1, "width": 64, "vocabulary": 500}, 8, 5.5, 0.6, 2)


class _Run(NamedTuple):
    """A training that came to its end, and what the journal tells of it."""

    done: Done
    committed: list[int]
    """The steps of its checkpoints."""
    paced: list[dict[str, Any]]

    def step_s(self, begin: int = 0) -> float:
        """Of one step on average, from that one on."""
        stamps_s = self.done.stamps_s[begin:]
        return (stamps_s[-1] - stamps_s[0]) / (len(stamps_s) - 1)

    def gaps_s(self, begin: int, end: float = math.inf) -> list[float]:
        """From checkpoint to checkpoint, of those in that range of steps."""
        return [after - before for before, after in pairwise(self._saved_s(begin, end))]

    def planned(self, end: float = math.inf) -> dict[str, Any]:
        """What held at that step."""
        return [event for event in self.paced if event["step"] <= end][-1]

    def _saved_s(self, begin: int, end: float) -> list[float]:
        return [self.done.stamps_s[step] for step in self.committed if begin < step <= end]


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
            base.steps = max(4, math.ceil(sizes.run_s / _usual_s(first)))
            _measure_overhead(section, setting, trained, base, group)
            if group == _SPARE:
                _measure_kills(section, trained, base, _usual_s(first), sizes.kills)
                _measure_load(section, setting, trained, base)
            shutil.rmtree(directory)
    return section


def _measure_overhead(section: Section, setting: Setting, trained: Trainings, base: Plan, group: str) -> None:
    """All make the same steps; torch.save at the interval that the latest training with holdfast came to."""
    runs: dict[str, list[_Run]] = {}

    def measure(who: str) -> None:
        plan = msgspec.structs.replace(base, who=who, every=_interval(base))
        if who == _TORCH:
            plan.directory += "-torch"
        runs.setdefault(who, []).append(_train(trained, plan))

    in_turn([_NONE, _AUTO, _TORCH, *_again(setting)], setting.repeat // 2 + 1, measure)
    _check_same_training(runs)
    shutil.rmtree(base.directory + "-torch")
    rows = slow_downs([row(group, *_WHO[who], [each.step_s() for each in runs[who]]) for who in _WHO])
    noisy = noise(rows[0].times_s)
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
    ours = runs[_AUTO]
    intervals = ", ".join(f"{each.planned()['interval_steps']}" for each in ours)
    counts = ", ".join(f"{len(each.committed)}" for each in ours)
    believed = statistics.median(each.planned()["overhead_run"] for each in ours)
    section.notes.append(
        f"{group}: {base.threads} torch threads, {base.steps} steps a run; noise ± {noisy:.1%}; holdfast came to a "
        f"checkpoint every {intervals} steps ({counts} in all), and believes that they cost {believed:.1%}"
    )
    section.notes.append(
        f"{group}: the call that saves took {_stall(ours)} with holdfast, {_stall(runs[_TORCH])} with torch.save"
    )


def _measure_kills(section: Section, trained: Trainings, base: Plan, step_s: float, count: int) -> None:
    """Processes killed at random, of which each goes on where the one before was killed."""
    plan = msgspec.structs.replace(base, steps=0, resumes=True)
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
    """In the middle of each training, another job begins to write to the same disk."""
    half = base.steps
    runs: dict[str, list[_Run]] = {}

    def measure(who: str) -> None:
        # A copy: each begins with the profile of attempts that nobody disturbed.
        directory = Path(base.directory + "-loaded")
        shutil.copytree(base.directory, directory)
        plan = msgspec.structs.replace(base, who=who, directory=str(directory), steps=2 * half, says_at=half)
        runs.setdefault(who, []).append(_train(trained, plan, loads=setting.directory / "load"))
        shutil.rmtree(directory)

    in_turn([_NONE, _AUTO, *_again(setting)], max(1, setting.repeat // 2), measure)
    _check_same_training(runs)
    rows = slow_downs([row(_LOADED, *_WHO[who], [each.step_s(half) for each in runs[who]]) for who in (_NONE, _AUTO)])
    noisy = noise(rows[0].times_s)
    ours = runs[_AUTO]
    section.rows += rows
    for name, begin, end in (("before", 0, float(half)), ("while the disk is loaded", half, math.inf)):
        gaps_s = [gap_s for each in ours for gap_s in each.gaps_s(begin, end)]
        if gaps_s:
            section.rows.append(row(_GAPS, name, "holdfast", gaps_s))
        section.notes.append(f"{_LOADED}, {name}: {_planned_words([each.planned(end) for each in ours])}")
    section.checks.append(_within_limit(_LOADED, rows[1], noisy))
    section.notes.append(
        f"{_LOADED}: {THREADS} threads of another process write past the page cache, from the middle of each run on; "
        f"noise ± {noisy:.1%}"
    )


def _again(setting: Setting) -> list[str]:
    """Twice in a round: how far the same loop differs from itself is the noise."""
    return [] if setting.quick else [_NONE]


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


def _check_same_training(runs: dict[str, list[_Run]]) -> None:
    """A checkpoint must not change what is computed."""
    expected = runs[_NONE][0].done.losses
    changed = {who for who, found in runs.items() for each in found if each.done.losses != expected}
    if changed:
        raise RuntimeError(f"the training took another course with {', '.join(sorted(changed))}")


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
