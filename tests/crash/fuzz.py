"""Part (e): hostile documents, with little memory, a deadline and an eye on what gets executed."""

import functools
import multiprocessing
import random
import resource
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from holdfast.core.errors import HoldfastError
from holdfast.testing.memory_files import MemoryFiles
from tests.crash.damage import FLOATS, NEWEST, OLDER, Baseline, check_restore, make_baseline
from tests.crash.models import Tree
from tests.crash.mutations import forge, scramble
from tests.crash.observed import SHARED, Judge, Observed, ObservedFiles
from tests.crash.outcome import Hang, Outcome, Progress, deadline
from tests.crash.slices import WHOLE, Slice
from tests.crash.subject import Program, forget_processes, quiet, read_tree, small_and_fast

__all__ = ["fuzz"]

_BATCH = 100
_PROCESSES = 2
_SPARE_BYTES = 256 << 20
_DEADLINE_S = 20.0
# Imported by the interpreter when a damaged text makes it look for byte order marks, or a message is escaped.
_CODECS = ("unicode_escape", "utf-16", "utf-16-be", "utf-16-le", "utf-32", "utf-32-be", "utf-32-le", "utf-8-sig")
_FORBIDDEN = {
    "compile",
    "ctypes.dlopen",
    "exec",
    "import",
    "marshal.loads",
    "os.exec",
    "os.posix_spawn",
    "os.system",
    "pickle.find_class",
    "socket.connect",
    "subprocess.Popen",
}


class _Watch:
    """Sees what the interpreter is made to execute (I10). The hook stays for ever: for child processes only."""

    def __init__(self) -> None:
        self.armed = False
        self.seen: list[str] = []
        sys.addaudithook(self._notice)

    def _notice(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.armed and event in _FORBIDDEN:
            self.seen.append(f"{event} {str(arguments)[:80]}")


_watch: list[_Watch] = []
_judge = Judge()


def fuzz(wanted: int, *, seed: int, first_only: bool = False, part: Slice = WHOLE) -> Outcome:
    """That many hostile runs: half of them random damage, half forged with right digests."""
    with small_and_fast():
        baseline = make_baseline()
        tasks = part.of([(baseline, seed, begin) for begin in range(0, wanted, _BATCH)])
        progress = Progress("fuzzed runs", len(tasks) * _BATCH)
        count, judged, violations = 0, 0, []
        with multiprocessing.get_context("fork").Pool(_PROCESSES, _begin_worker, (baseline,)) as pool:
            for newly_judged, problems in pool.imap_unordered(_fuzz_batch, tasks):
                count += _BATCH
                judged += newly_judged
                violations += problems
                progress.show(count, len(violations))
                if first_only and violations:
                    break
    return Outcome(count, violations, remark=f"{judged:,} {SHARED}")


def _begin_worker(baseline: Baseline) -> None:
    # Once undisturbed, so that everything that is imported on first use is there before imports are forbidden.
    check_restore(MemoryFiles.from_tree(baseline.tree), {NEWEST})
    _read(read_tree, ObservedFiles.from_tree(baseline.tree))
    for codec in _CODECS:
        "".encode(codec)
    _watch.append(_Watch())
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + _SPARE_BYTES,) * 2)


def _fuzz_batch(task: tuple[Baseline, int, int]) -> tuple[int, list[str]]:
    baseline, seed, begin = task
    judged_before = _judge.judged
    violations = []
    for number in range(begin, begin + _BATCH):
        rng = random.Random(f"{seed} {number}")
        is_forged = number % 2 == 1
        tree = forge(baseline, rng) if is_forged else scramble(baseline, rng)
        problem = _judge.problem(tree, is_forged, functools.partial(_read_watched, tree, is_forged=is_forged))
        if problem:
            violations.append(f"{'forged' if is_forged else 'scrambled'} {number} of seed {seed}: {problem}")
    return _judge.judged - judged_before, violations


def _read_watched(tree: Tree, *, is_forged: bool) -> tuple[str, Observed]:
    """Restore, and load without a model; what is wrong, and what was looked at."""
    disks = ObservedFiles.from_tree(tree), ObservedFiles.from_tree(tree)
    _watch[0].seen.clear()
    _watch[0].armed = True
    try:
        restored = _read(_restore, disks[0]) if is_forged else _restore_exactly(disks[0])
        problem = restored or _read(read_tree, disks[1])
    finally:
        _watch[0].armed = False
    if not problem and _watch[0].seen:
        problem = f"executed {_watch[0].seen[:3]}"
    return problem, Observed.on(*disks)


def _restore_exactly(disk: ObservedFiles) -> str:
    """Damage without right digests: exact or refused (I4)."""
    problem = check_restore(disk, {OLDER, NEWEST})
    return "" if problem.startswith("refused: ") else problem


def _read(read: Callable[[MemoryFiles], object], disk: ObservedFiles) -> str:
    """Only errors of our own, in bounded time and memory."""
    try:
        with deadline(_DEADLINE_S), quiet():
            read(disk)
    except HoldfastError:
        pass
    except Hang as error:
        return f"hung: {error}"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"traceback: {type(error).__name__}: {str(error)[:200]} at {where.filename}:{where.lineno}"
    finally:
        forget_processes()
    return ""


def _restore(disk: MemoryFiles) -> None:
    Program(floats=FLOATS).checkpointer(disk).restore()
