"""Part (d), continued: flipped bits in a snapshot that is in memory only, and in what says whose it is."""

import shutil
import traceback
from pathlib import Path
from typing import Literal

from holdfast.core.errors import HoldfastError, SaveFailedError
from holdfast.core.limits import PAGE_BYTES
from holdfast.testing.memory_files import MemoryFiles
from holdfast.tiers.control import CONTROL_BYTES, RECORD_BYTES
from tests.crash.agent_life import AgentLife
from tests.crash.agents import Halt, quiesce
from tests.crash.models import Tree
from tests.crash.oracle import describe
from tests.crash.outcome import Hang, Outcome, Progress, deadline
from tests.crash.subject import Program, forget_processes, quiet, small_and_fast

__all__ = ["flip_bits_in_memory"]

_FLOATS = 600
_ON_DISK, _IN_MEMORY = 1, 2
_DEADLINE_S = 20.0


def flip_bits_in_memory(
    *, at_most: int, first_only: bool = False, floats: int = _FLOATS, chunk_bytes: int = PAGE_BYTES
) -> Outcome:
    """That many bits, each alone, evenly spread: the next attempt has the snapshot exactly, or what is on disk."""
    with small_and_fast(chunk_bytes), quiet(), AgentLife(floats=floats) as life:
        arena = _leave_in_memory(life)
        tree, kept = life.tree(), arena.parent.with_name("kept")
        shutil.copytree(arena, kept)
        bits = [(path.name, bit) for path in sorted(kept.iterdir()) for bit in _bits_in_use(path)]
        chosen = bits[:: max(1, len(bits) // at_most)]
        progress = Progress("bit flips in memory", len(chosen))
        violations: list[str] = []
        for done, (name, bit) in enumerate(chosen, 1):
            shutil.rmtree(arena.parent)
            arena.parent.mkdir(mode=0o700)
            shutil.copytree(kept, arena)
            _flip(arena / name, bit)
            problem = _restart(tree, floats)
            if problem:
                violations.append(f"bit {bit} of {name} in memory: {problem}")
            progress.show(done, len(violations))
            if first_only and violations:
                break
    return Outcome(len(chosen), violations)


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
