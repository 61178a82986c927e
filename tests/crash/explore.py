"""Part (a): every legal crash state of recorded sequences, restored and checked."""

import functools
import itertools
import multiprocessing
import random
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from unittest.mock import patch

from holdfast.core.errors import HoldfastError
from holdfast.testing.recording import Operation, OpKind
from tests.crash.life import Expectation, Recorded
from tests.crash.models import MODELS, Choices, CrashPoint, Tree
from tests.crash.observed import SHARED, Judge, Observed, ObservedFiles, journals_are_read_for_events
from tests.crash.oracle import check_disk
from tests.crash.outcome import Outcome, Progress
from tests.crash.sequences import SEQUENCES, record
from tests.crash.slices import WHOLE, Slice
from tests.crash.subject import in_memory, quiet, small_and_fast

__all__ = ["explore", "replay"]

_TURN = 4
_THOROUGH_EVERY = 8
_ENOUGH_FRUITLESS = 20_000
_PROCESSES = 2
_LOOK_EVERY_S = 1.0

# Shared with the workers, for the progress line only: a lost count does not matter.
_checked = multiprocessing.Value("q", lock=False)
_violated = multiprocessing.Value("q", lock=False)


class _Task(NamedTuple):
    sequence: str
    model: str
    wanted: int
    seed: int
    first_only: bool


class _Done(NamedTuple):
    sequence: str
    model: str
    states: int
    judged: int
    """How often the program was let live on: for the other states, one that looks the same to it was judged."""
    violations: list[str]


def explore(
    wanted: int,
    *,
    seed: int,
    sequences: Sequence[str] = SEQUENCES,
    first_only: bool = False,
    part: Slice = WHOLE,
) -> Outcome:
    """Check at least that many distinct states if there are so many, spread over sequences and models.

    `first_only` ends at the first violation: enough to know that a mutant is one.
    """
    # Some sequences have few states; what they leave over is spread over the others.
    share = -(-wanted * 11 // (10 * len(sequences) * len(MODELS)))
    _checked.value = _violated.value = 0
    tasks = part.of([_Task(name, model, share, seed, first_only) for name in sequences for model in MODELS])
    progress = Progress("crash states", len(tasks) * share)
    states, judged, violations = 0, 0, []
    # Workers that are ended early leave their files behind: all of them are in one place that goes away.
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-explore-", dir=in_memory()) as scratch,
        patch.object(tempfile, "tempdir", scratch),
        multiprocessing.get_context("fork").Pool(_PROCESSES) as pool,
    ):
        running = pool.imap_unordered(_explore_one, tasks)
        for _ in tasks:
            done = _wait_for_next(running, progress)
            states += done.states
            judged += done.judged
            violations += done.violations
            if first_only and violations:
                break
    return Outcome(states, violations, remark=f"{judged:,} {SHARED}")


def replay(sequence: str, model: str, crash_point: int, choices: Choices) -> tuple[Tree, str]:
    """One state again, and what is wrong with it."""
    with small_and_fast():
        recorded = record(sequence)
        tree = CrashPoint(recorded.initial, recorded.operations[:crash_point], model).tree(choices)
        expected = recorded.expectation(crash_point)
        return tree, check_disk(ObservedFiles.from_tree(tree), expected, floats=recorded.floats, thorough=True)


def _wait_for_next(running: Any, progress: Progress) -> _Done:
    while True:
        try:
            return running.next(timeout=_LOOK_EVERY_S)
        except multiprocessing.TimeoutError:
            progress.show(_checked.value, _violated.value)


def _explore_one(task: _Task) -> _Done:
    with small_and_fast(), quiet(), journals_are_read_for_events():
        try:
            recorded = record(task.sequence)
        except (AssertionError, HoldfastError) as error:
            return _Done(task.sequence, task.model, 0, 0, [f"{task.sequence!r} without any fault: {error}"])
        return _explore_recorded(recorded, task)


def _explore_recorded(recorded: Recorded, task: _Task) -> _Done:
    seen: set[int] = set()
    checked: set[tuple[int, Expectation]] = set()
    judge = Judge()
    expectations = functools.cache(recorded.expectation)
    violations: list[str] = []
    fruitless = 0
    for crash_point, choices, tree in _states(recorded, task):
        if len(seen) >= task.wanted or fruitless > _ENOUGH_FRUITLESS:
            break
        content = hash(frozenset(tree.items()))
        expected = expectations(crash_point)
        # The same disk counts once, but is checked again where more had been promised by then.
        promise = (content, expected)
        if content not in seen:
            seen.add(content)
            _checked.value += 1
        fruitless += 1
        if promise in checked:
            continue
        fruitless = 0
        checked.add(promise)
        problem = _problem(judge, recorded, tree, expected, thorough=len(checked) % _THOROUGH_EVERY == 0)
        if problem:
            _violated.value += 1
            violations.append(f"{task.sequence!r}, {task.model!r}, {crash_point}, {choices}: {problem}")
            if task.first_only:
                break
    return _Done(task.sequence, task.model, len(seen), judge.judged, violations)


def _problem(judge: Judge, recorded: Recorded, tree: Tree, expected: Expectation, *, thorough: bool) -> str:
    def live_on() -> tuple[str, Observed]:
        disk = ObservedFiles.from_tree(tree)
        problem = check_disk(disk, expected, floats=recorded.floats, thorough=thorough)
        return problem, Observed.on(disk)

    return judge.problem(tree, (expected, thorough), live_on)


def _states(recorded: Recorded, task: _Task) -> Iterator[tuple[int, Choices, Tree]]:
    """A few of each crash point in turn, the likeliest first."""
    points = []
    for crash_point, is_last in _crash_points(recorded.operations):
        point = CrashPoint(recorded.initial, recorded.operations[:crash_point], task.model)
        rng = random.Random(f"{task.seed} {task.sequence} {task.model} {crash_point}")
        points.append((crash_point, point, point.choices(rng, is_last=is_last)))
    random.Random(task.seed).shuffle(points)  # so that a small amount is spread over the whole sequence
    while points:
        left = []
        for crash_point, point, choices in points:
            turn = list(itertools.islice(choices, _TURN))
            yield from ((crash_point, chosen, point.tree(chosen)) for chosen in turn)
            if len(turn) == _TURN:
                left.append((crash_point, point, choices))
        points = left


def _crash_points(operations: Sequence[Operation]) -> Iterator[tuple[int, bool]]:
    """After how many operations to cut, and whether a sync, a mark or the end comes next.

    Not right after a sync: it only takes states away from those before it, and nothing more was promised by then.
    """
    ends = {OpKind.SYNC, OpKind.SYNC_DIR, OpKind.MARK}
    for count in range(1, len(operations) + 1):
        if operations[count - 1].kind not in (OpKind.SYNC, OpKind.SYNC_DIR):
            yield count, count == len(operations) or operations[count].kind in ends
