"""Lives of runs on a disk in memory, driven and written down: what the explorer cuts short at every operation."""

from typing import NamedTuple

from holdfast.checkpointer import Checkpointer
from holdfast.core.names import parse_checkpoint_id, shard_name
from holdfast.policy.keep import KEEP_ALL, Keep
from holdfast.storage.posix import PosixStore
from holdfast.testing.memory_files import MemoryFiles
from holdfast.testing.recording import Operation, OpKind, RecordingFiles
from tests.crash.models import Nodes, Tree
from tests.crash.subject import RUN, Program

__all__ = [
    "ACK",
    "BEGIN",
    "DAMAGED",
    "DAMAGING",
    "FORBIDDEN",
    "REMOVE",
    "REMOVED",
    "Expectation",
    "Life",
    "Recorded",
    "reused_names",
]

BEGIN = "begin"
ACK = "ack"
REMOVE = "remove"
REMOVED = "removed"
DAMAGING = "damaging"
DAMAGED = "damaged"
FORBIDDEN = 666
"""The number of a state that must never be restored."""


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

    def tree(self) -> Tree:
        """What is on the disk now."""
        return self._disk.tree()

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


def reused_names(operations: list[Operation]) -> list[str]:
    """The names of checkpoints, and of what is in them, that were given twice (I3)."""
    checkpoints: set[int] = set()
    given: set[tuple[int | str, str]] = set()
    reused = []
    for op in operations:
        if op.kind == OpKind.MAKE_DIR and parse_checkpoint_id(op.name) is not None:
            checkpoints.add(op.child)
            name: tuple[int | str, str] = ("", op.name)
        elif op.inode in checkpoints and op.kind in (OpKind.CREATE, OpKind.RENAME):
            name = (op.inode, op.new_name or op.name)
        else:
            continue
        if name in given:
            reused.append(name[1])
        given.add(name)
    return reused
