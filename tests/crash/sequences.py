"""Recorded lives of runs: what the explorer cuts short at every operation."""

from collections.abc import Callable
from typing import NamedTuple

from holdfast.checkpointer import Checkpointer
from holdfast.core.clock import SystemClock
from holdfast.core.errors import FencedError
from holdfast.core.names import shard_name
from holdfast.engine.commit import remove_checkpoint
from holdfast.engine.marks import PINNED, clear_mark, set_mark
from holdfast.policy.keep import KEEP_ALL, Keep, keep
from holdfast.storage.posix import PosixStore
from holdfast.testing.memory_files import MemoryFiles
from holdfast.testing.recording import Operation, OpKind, RecordingFiles
from tests.crash.models import Nodes
from tests.crash.subject import RUN, Program

__all__ = ["SEQUENCES", "Expectation", "Recorded", "record"]

BEGIN = "begin"
ACK = "ack"
REMOVE = "remove"
REMOVED = "removed"
DAMAGING = "damaging"
DAMAGED = "damaged"
_FORBIDDEN = 666


class Expectation(NamedTuple):
    """What a restore may yield."""

    allowed: frozenset[int]
    """The newest acknowledged save, and those that were begun after it."""
    may_be_empty: bool
    """Nothing was acknowledged that has to be there."""
    may_quarantine: bool
    """Somebody damaged a checkpoint on purpose."""


class Recorded(NamedTuple):
    """One sequence: the disk before it, and every operation and mark."""

    name: str
    initial: Nodes
    operations: list[Operation]
    floats: int

    def expectation(self, crash_point: int) -> Expectation:
        """What must hold after a crash when that many operations were issued."""
        marked: dict[str, set[int]] = {what: set() for what in (BEGIN, ACK, REMOVE, REMOVED, DAMAGING, DAMAGED)}
        for op in self.operations[:crash_point]:
            if op.kind == OpKind.MARK:
                marked[op.mark[0]].add(op.mark[1])
        certain = marked[ACK] - marked[REMOVE] - marked[DAMAGING]
        floor = max(certain, default=0)
        gone = marked[REMOVED] | marked[DAMAGED]
        allowed = frozenset(number for number in marked[BEGIN] - gone if number >= floor)
        return Expectation(allowed, not certain, bool(marked[DAMAGING]))


class Life:
    """A run that is driven and recorded, over several processes on one disk."""

    def __init__(self, *, floats: int) -> None:
        self._disk = MemoryFiles()
        self._view = self._disk
        self.operations: list[Operation] = []
        self.initial = self._disk.nodes()
        self._floats = floats
        self.ids: dict[int, str] = {}
        self._last = 0

    def new_process(self, *, retain: Keep = KEEP_ALL, kill: bool = True, takeover: bool = False) -> Checkpointer:
        """SIGKILL for the process that ran before, if any; a new one opens the run and restores."""
        if kill:
            self._view.die()
        self._view = self._disk.another_process()
        self._files = RecordingFiles(self._view, self.operations)
        self.program = Program(floats=self._floats)
        self.checkpointer = self.program.checkpointer(self._files, retain=retain, takeover=takeover)
        self.checkpointer.restore()
        return self.checkpointer

    def save(self, step: int) -> int:
        """Train to the step and save it, acknowledged."""
        self._last += 1
        self.program.become(self._last)
        self._files.mark(BEGIN, self._last)
        pending = self.checkpointer.save(step=step)
        assert pending.id is not None, f"without any fault the save of step {step} failed: {pending.error}"
        self._files.mark(ACK, self._last)
        self.ids[self._last] = pending.id
        return self._last

    def mark(self, what: str, number: int) -> None:
        self._files.mark(what, number)

    def store(self) -> PosixStore:
        """The run as the command line opens it."""
        return PosixStore(RUN, files=self._files)

    def damage_newest(self) -> None:
        """Flip a bit in the data of the newest checkpoint, durably, behind the program's back."""
        path = f"{RUN[1:]}/{self.ids[self._last]}/{shard_name(0)}"
        data = bytearray(self._disk.tree()[path] or b"")
        data[-1] ^= 1
        self._disk.put(path, bytes(data))
        descriptor = self._view.open_read(self._view.open_root(path.rpartition("/")[0]), path.rpartition("/")[2])
        inode = self._view.info(descriptor).inode
        self.mark(DAMAGING, self._last)
        self.operations.append(Operation(OpKind.WRITE, inode, offset=len(data) - 1, data=bytes(data[-1:])))
        self.operations.append(Operation(OpKind.SYNC, inode))
        self.mark(DAMAGED, self._last)


def _first_save(life: Life) -> None:
    life.new_process()
    life.save(1)


def _several_saves(life: Life) -> None:
    life.new_process()
    for step in (5, 6, 9):
        life.save(step)


def _save_and_prune(life: Life) -> None:
    life.new_process(retain=keep(last=1))
    for step in (1, 2, 3, 4):
        life.save(step)


def _takeover(life: Life) -> None:
    life.new_process()
    life.save(1)
    life.new_process()
    life.save(2)
    life.new_process(retain=keep(last=2))
    life.save(3)


def _repair(life: Life) -> None:
    life.new_process()
    life.save(1)
    life.save(2)
    life.damage_newest()
    life.new_process(retain=keep(last=1))
    life.save(2)
    life.save(3)


def _pin_and_unpin(life: Life) -> None:
    life.new_process()
    life.save(1)
    store = life.store()
    set_mark(store, life.ids[1], PINNED, reason="best so far", clock=SystemClock())
    life.new_process(retain=keep(last=1))
    life.save(2)
    life.save(3)
    clear_mark(life.store(), life.ids[1], PINNED)
    life.save(4)


def _remove(life: Life) -> None:
    life.new_process()
    for step in (1, 2, 3):
        life.save(step)
    for number in (3, 1):
        store = life.store()
        life.mark(REMOVE, number)
        remove_checkpoint(store, life.ids[number], attempt=None)
        life.mark(REMOVED, number)
    life.new_process()
    life.save(7)


def _zombie(life: Life) -> None:
    """An older attempt that still lives when a newer one has taken the run: whatever it does must not count."""
    zombie, program = life.new_process(), life.program
    life.save(1)
    life.new_process(kill=False, takeover=True)
    life.save(2)
    program.become(_FORBIDDEN)
    try:
        pending = zombie.save(step=9)
    except FencedError:
        pass
    else:
        raise AssertionError(f"an older attempt was let through by the fence: {pending} (I11)")
    life.save(3)


def record(name: str) -> Recorded:
    """Run the sequence once and write it down."""
    drive, floats = SEQUENCES[name]
    life = Life(floats=floats)
    drive(life)
    return Recorded(name, life.initial, life.operations, floats)


SEQUENCES: dict[str, tuple[Callable[[Life], None], int]] = {
    "first save": (_first_save, 3000),
    "several saves": (_several_saves, 3000),
    "save and prune": (_save_and_prune, 1600),
    "takeover of a dead attempt": (_takeover, 1600),
    "damage, fallback, save, prune": (_repair, 1600),
    "pin and unpin": (_pin_and_unpin, 1600),
    "remove by hand": (_remove, 1600),
    "zombie of an older attempt": (_zombie, 1600),
}
"""Name to what happens, and how many floats the state has (512 of them are one block)."""
