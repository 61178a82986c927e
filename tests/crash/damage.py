"""Part (d): every bit of every file of a small run flipped, and files cut, emptied, swapped or replaced."""

import multiprocessing
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.core.errors import FormatError, HoldfastError
from holdfast.core.names import JOURNAL_NAME, MARKER_NAME
from holdfast.storage.files import Files
from holdfast.testing.memory_files import MemoryFiles
from tests.crash.models import Tree
from tests.crash.observed import SHARED, Judge, Observed, ObservedFiles
from tests.crash.oracle import describe
from tests.crash.outcome import Hang, Outcome, Progress, deadline
from tests.crash.slices import WHOLE, Slice
from tests.crash.subject import RUN, Program, forget_processes, in_memory, quiet, small_and_fast

__all__ = [
    "FLOATS",
    "NEWEST",
    "OLDER",
    "Baseline",
    "check_restore",
    "flip_every_bit",
    "make_baseline",
    "replace_every_file",
    "write_tree",
]

FLOATS = 20
_DEADLINE_S = 10.0
_PROCESSES = 2
_SLICE_BYTES = 256
OLDER, NEWEST = 1, 2

_judge = Judge()


class Baseline(NamedTuple):
    """A run with two checkpoints, its marks, attempts and journal, at rest."""

    tree: Tree
    older: str
    newest: str

    @property
    def paths(self) -> list[str]:
        return [path for path, data in self.tree.items() if data is not None]

    def allowed(self, path: str) -> set[int]:
        """Which saves may be restored when this file is damaged: the older one only where the newest is hit."""
        return {OLDER, NEWEST} if f"/{self.newest}/" in path else {NEWEST}


def make_baseline(*, floats: int = FLOATS) -> Baseline:
    disk = MemoryFiles()
    ids = []
    program = Program(floats=floats)
    checkpointer = program.checkpointer(disk)
    for number in (OLDER, NEWEST):
        program.become(number)
        ids.append(checkpointer.save(step=number).wait())
    disk.die()
    again = disk.another_process()
    Program(floats=floats).checkpointer(again).restore()  # leaves marks and a second attempt
    again.die()
    return Baseline(disk.tree(), *ids)


def check_restore(
    files: Files, allowed: set[int], *, path: str = RUN, may_refuse: bool = False, floats: int = FLOATS
) -> str:
    """What is wrong with a restore from a damaged run, or nothing."""
    program = Program(floats=floats)
    try:
        with deadline(_DEADLINE_S), quiet():
            ckpt = program.checkpointer(files, path)
            try:
                result = ckpt.restore()
            finally:
                if path != RUN:  # a real directory: what is open of it would stay open in this process
                    ckpt.close()
    except FormatError as error:
        return "" if may_refuse else f"refused: {describe(error)}"
    except HoldfastError as error:
        return f"refused: {describe(error)}"
    except Hang as error:
        return f"hung: {error}"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"traceback: {type(error).__name__}: {error} at {where.filename}:{where.lineno}"
    finally:
        forget_processes()
    if result is None:
        return "started from scratch (I12)"
    found = program.saved()
    if found is None:
        return f"step {result.step} was restored with other bits than were saved (I4)"
    return "" if found in allowed else f"restored save {found}, allowed are {sorted(allowed)}"


def flip_every_bit(*, at_most: int | None = None, first_only: bool = False, part: Slice = WHOLE) -> Outcome:
    """Each bit alone. `at_most` takes that many, evenly spread; `first_only` ends at the first violation."""
    with small_and_fast():
        baseline = make_baseline()
        bits = sum(len(baseline.tree[path] or b"") * 8 for path in baseline.paths)
        stride = 1 if at_most is None else max(1, bits // at_most)
        tasks = part.of(
            [(baseline, path, begin, stride) for path in baseline.paths for begin in _slices(baseline, path)]
        )
        progress = Progress("bit flips", bits // stride // part.count)
        flips, judged, violations = 0, 0, []
        with multiprocessing.get_context("fork").Pool(_PROCESSES) as pool:
            for done, newly_judged, problems in pool.imap_unordered(_flip_slice, tasks):
                flips += done
                judged += newly_judged
                violations += problems
                progress.show(flips, len(violations))
                if first_only and violations:
                    break
    return Outcome(flips, violations, remark=f"{judged:,} {SHARED}")


def _slices(baseline: Baseline, path: str) -> range:
    return range(0, len(baseline.tree[path] or b""), _SLICE_BYTES)


def _flip_slice(task: tuple[Baseline, str, int, int]) -> tuple[int, int, list[str]]:
    baseline, path, begin, stride = task
    judged_before = _judge.judged
    data = baseline.tree[path] or b""
    last = min(len(data), begin + _SLICE_BYTES)
    problems = []
    bits = [bit for bit in range(begin * 8, last * 8) if bit % stride == 0]
    for bit in bits:
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        tree = {**baseline.tree, path: bytes(damaged)}
        problem = _problem(tree, baseline.allowed(path), may_refuse=path.endswith(MARKER_NAME))
        if problem:
            problems.append(f"bit {bit} of {path}: {problem}")
    return len(bits), _judge.judged - judged_before, problems


def _problem(tree: Tree, allowed: set[int], *, may_refuse: bool) -> str:
    def restore() -> tuple[str, Observed]:
        disk = ObservedFiles.from_tree(tree)
        return check_restore(disk, allowed, may_refuse=may_refuse), Observed.on(disk)

    return _judge.problem(tree, (frozenset(allowed), may_refuse), restore)


def replace_every_file(*, first_only: bool = False, part: Slice = WHOLE) -> Outcome:
    """Each file cut, emptied, zeroed, swapped, or replaced by a link, a FIFO or a directory, on a real file system."""
    violations: list[str] = []
    count = 0
    with small_and_fast(), tempfile.TemporaryDirectory(prefix="holdfast-damage-", dir=in_memory()) as scratch:
        baseline = make_baseline()
        replaced = [(path, *how) for path in baseline.paths for how in _replacements(baseline, path)]
        for path, what, replace in part.of(replaced):
            root = Path(scratch) / str(count)
            write_tree(baseline.tree, root)
            replace(root)
            problem = check_restore(
                Files(), baseline.allowed(path), path=f"{root}{RUN}", may_refuse=not path.endswith(JOURNAL_NAME)
            )
            if problem and not _is_excused(path, problem):
                violations.append(f"{path} {what}: {problem}")
                if first_only:
                    return Outcome(count, violations)
            shutil.rmtree(root)
            count += 1
    return Outcome(count, violations)


def _is_excused(path: str, problem: str) -> bool:
    """Losing the marker or the lock altogether may be refused: holdfast cannot tell whose directory it is."""
    return path.endswith((MARKER_NAME, "/lock")) and problem.startswith("refused: ")


def _replacements(baseline: Baseline, path: str) -> Iterator[tuple[str, Callable[[Path], object]]]:
    data = baseline.tree[path] or b""
    for length in sorted({0, 1, len(data) // 2, len(data) - 1, 512, 4096}):
        if 0 <= length < len(data):
            yield f"cut to {length} bytes", lambda root, length=length: (root / path).write_bytes(data[:length])
    yield "zeroed", lambda root: (root / path).write_bytes(bytes(len(data)))
    yield "with a byte more", lambda root: (root / path).write_bytes(data + b"\0")
    yield "a link to the same bytes", lambda root: _link(root, path)
    yield "a link to itself", lambda root: _swap_in(root / path, lambda p: p.symlink_to(p.name))
    yield "a FIFO", lambda root: _swap_in(root / path, os.mkfifo)
    yield "a directory", lambda root: _swap_in(root / path, os.mkdir)
    for one, other in ((baseline.newest, baseline.older), (baseline.older, baseline.newest)):
        if f"/{one}/" in path:
            swapped = path.replace(one, other)
            yield "the other step's", lambda root, swapped=swapped: shutil.copyfile(root / swapped, root / path)
            yield (
                "a link to the other step's",
                lambda root, swapped=swapped: _swap_in(root / path, lambda p: p.symlink_to(root / swapped)),
            )


def _link(root: Path, path: str) -> None:
    elsewhere = root / "elsewhere"
    (root / path).rename(elsewhere)
    (root / path).symlink_to(elsewhere)


def _swap_in(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def write_tree(tree: Tree, root: Path) -> None:
    root.mkdir(mode=0o700)
    for path, data in tree.items():
        if data is None:
            (root / path).mkdir(mode=0o700)
        else:
            (root / path).write_bytes(data)
