"""Part (e): hostile documents, with little memory, a deadline and an eye on what gets executed."""

import multiprocessing
import random
import resource
import sys
import traceback
from pathlib import Path

from holdfast.core.errors import HoldfastError
from holdfast.testing.memory_files import MemoryFiles
from tests.crash.damage import FLOATS, NEWEST, OLDER, Baseline, check_restore, make_baseline
from tests.crash.models import Tree
from tests.crash.mutations import forge, scramble
from tests.crash.outcome import Hang, Outcome, Progress, deadline
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


def fuzz(wanted: int, *, seed: int, first_only: bool = False) -> Outcome:
    """That many hostile runs: half of them random damage, half forged with right digests."""
    with small_and_fast():
        baseline = make_baseline()
        progress = Progress("fuzzed runs", wanted)
        tasks = [(baseline, seed, begin) for begin in range(0, wanted, _BATCH)]
        count, violations = 0, []
        with multiprocessing.get_context("fork").Pool(_PROCESSES, _begin_worker, (baseline,)) as pool:
            for problems in pool.imap_unordered(_fuzz_batch, tasks):
                count += _BATCH
                violations += problems
                progress.show(count, len(violations))
                if first_only and violations:
                    break
    return Outcome(count, violations)


def _begin_worker(baseline: Baseline) -> None:
    # Once undisturbed, so that everything that is imported on first use is there before imports are forbidden.
    check_restore(MemoryFiles.from_tree(baseline.tree), {NEWEST})
    _read_everything(baseline.tree)
    for codec in _CODECS:
        "".encode(codec)
    _watch.append(_Watch())
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + _SPARE_BYTES,) * 2)


def _fuzz_batch(task: tuple[Baseline, int, int]) -> list[str]:
    baseline, seed, begin = task
    violations = []
    for number in range(begin, begin + _BATCH):
        rng = random.Random(f"{seed} {number}")
        is_forged = number % 2 == 1
        tree = forge(baseline, rng) if is_forged else scramble(baseline, rng)
        _watch[0].seen.clear()
        _watch[0].armed = True
        try:
            problem = _read_everything(tree) or ("" if is_forged else _restore_exactly(tree))
        finally:
            _watch[0].armed = False
        if problem or _watch[0].seen:
            what = "forged" if is_forged else "scrambled"
            violations.append(f"{what} {number} of seed {seed}: {problem or f'executed {_watch[0].seen[:3]}'}")
    return violations


def _restore_exactly(tree: Tree) -> str:
    """Damage without right digests: exact or refused (I4)."""
    problem = check_restore(MemoryFiles.from_tree(tree), {OLDER, NEWEST})
    return "" if problem.startswith("refused: ") else problem


def _read_everything(tree: Tree) -> str:
    """Restore, and load without a model: only errors of our own, in bounded time and memory."""
    for read in (_restore, read_tree):
        disk = MemoryFiles.from_tree(tree)
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
