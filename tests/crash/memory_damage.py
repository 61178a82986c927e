"""Part (d), continued: flipped bits in a snapshot that is in memory only, and in what says whose it is."""

import multiprocessing
import shutil
import tempfile
import traceback
from pathlib import Path
from typing import Literal, NamedTuple

from holdfast.core.errors import HoldfastError, SaveFailedError
from holdfast.core.limits import PAGE_BYTES
from holdfast.testing.memory_files import MemoryFiles
from holdfast.tiers.control import CONTROL_BYTES, RECORD_BYTES
from tests.crash.agent_life import AgentLife
from tests.crash.agents import Halt, arenas_in, quiesce
from tests.crash.models import Tree
from tests.crash.oracle import describe
from tests.crash.outcome import Hang, Outcome, Progress, deadline
from tests.crash.slices import WHOLE, Slice
from tests.crash.subject import Program, forget_processes, quiet, small_and_fast

__all__ = ["flip_bits_in_memory"]

_FLOATS = 600
_ON_DISK, _IN_MEMORY = 1, 2
_DEADLINE_S = 20.0
_BATCH = 25
_PROCESSES = 2


def flip_bits_in_memory(
    *,
    at_most: int,
    first_only: bool = False,
    floats: int = _FLOATS,
    chunk_bytes: int = PAGE_BYTES,
    part: Slice = WHOLE,
) -> Outcome:
    """That many bits, each alone, evenly spread: the next attempt has the snapshot exactly, or what is on disk."""
    with small_and_fast(chunk_bytes), quiet(), AgentLife(floats=floats) as life:
        arena = _leave_in_memory(life)
        tree, kept = life.tree(), arena.parent.with_name("kept")
        shutil.copytree(arena, kept)
        bits = [(path.name, bit) for path in sorted(kept.iterdir()) for bit in _bits_in_use(path)]
        chosen = part.of(bits[:: max(1, len(bits) // at_most)])
        left = _Left(tree, kept, Path(arena.parent.name, arena.name), floats)
        tasks = [(left, chosen[begin : begin + _BATCH]) for begin in range(0, len(chosen), _BATCH)]
        progress = Progress("bit flips in memory", len(chosen))
        done, violations = 0, []
        with multiprocessing.get_context("fork").Pool(_PROCESSES) as pool:
            for count, problems in pool.imap_unordered(_flip_some, tasks):
                done += count
                violations += problems
                progress.show(done, len(violations))
                if first_only and violations:
                    break
    return Outcome(done, violations)


class _Left(NamedTuple):
    """What a dead training has left: its disk, its memory, and where in the place of such memory that has to be."""

    tree: Tree
    kept: Path
    arena: Path
    floats: int


def _flip_some(task: tuple[_Left, list[tuple[str, int]]]) -> tuple[int, list[str]]:
    left, bits = task
    violations = []
    with tempfile.TemporaryDirectory(prefix="arenas-", dir=left.kept.parent) as root, arenas_in(Path(root)):
        arena = root / left.arena
        for name, bit in bits:
            arena.parent.mkdir(mode=0o700)
            shutil.copytree(left.kept, arena)
            _flip(arena / name, bit)
            problem = _restart(left.tree, left.floats)
            if problem:
                violations.append(f"bit {bit} of {name} in memory: {problem}")
            shutil.rmtree(arena.parent)
    return len(bits), violations


def _leave_in_memory(life: AgentLife) -> Path:
    """A run with one checkpoint on the disk, and a newer one in the memory of a training that is dead."""
    life.new_process()
    life.save(_ON_DISK)
    life.agent.before_write = halt = Halt()
    life.stage(_IN_MEMORY)
    halt.wait_until_reached()
    return life.kill(life.trainer)


def _bits_in_use(path: Path) -> list[int]:
    """All but those of padding behind the control record."""
    bits = range(path.stat().st_size * 8)
    is_slot = path.name.startswith("slot")
    return [bit for bit in bits if not is_slot or not RECORD_BYTES * 8 <= bit < CONTROL_BYTES * 8]


def _flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def _restart(tree: Tree, floats: int) -> str:
    """What is wrong with the next attempt, and with what it made durable; or nothing."""
    disk = MemoryFiles.from_tree(tree)
    try:
        with deadline(_DEADLINE_S):
            first, failed = _live(disk, "thread", floats)
            second, _ = _live(disk, "off", floats)
    except HoldfastError as error:
        return f"refused: {describe(error)}"
    except Hang as error:
        return f"hung: {error}"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"traceback: {type(error).__name__}: {error} at {where.filename}:{where.lineno}"
    finally:
        forget_processes()
    allowed = [(_ON_DISK, _ON_DISK), (_IN_MEMORY, _IN_MEMORY)]
    if failed:
        # The head of the shard is damaged: not needed for the state, which was restored exactly, but not to be written
        # as the shard either. The program was told that the snapshot did not become durable (I8).
        allowed = [(_IN_MEMORY, _ON_DISK)]
    return (
        ""
        if (first, second) in allowed
        else f"restored save {first}, then save {second}{failed and ', '}{failed} (I4, I5)"
    )


def _live(disk: MemoryFiles, background: Literal["thread", "off"], floats: int) -> tuple[int | None, str]:
    """Restore and end; which save that was (0: none), and what was said of a snapshot that did not become durable."""
    program = Program(floats=floats)
    checkpointer = program.checkpointer(disk.another_process(), background=background)
    restored = checkpointer.restore()
    quiesce(checkpointer)
    failed = ""
    try:
        checkpointer.close()
    except SaveFailedError as error:
        failed = describe(error)
    return (0 if restored is None else program.saved()), failed
