"""Agents that the rig can hold up, kill and start again; and a place for their memory that is not the machine's own."""

import errno
import json
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from holdfast.agent.messages import Ahead, Begin, Durable, Failed, Hello, Report, Write
from holdfast.agent.worker import Worker
from holdfast.checkpointer import Checkpointer
from holdfast.core.clock import Clock
from holdfast.storage.files import Files
from holdfast.storage.posix import PosixStore
from holdfast.testing.memory_files import MemoryFiles
from holdfast.testing.recording import Operation, RecordingFiles
from holdfast.tiers.directory import OWNER_NAME
from holdfast.tiers.slot import Slot

__all__ = ["Halt", "HookedFiles", "SimulatedAgent", "arenas_in", "change_owner", "quiesce"]

_DEADLINE_S = 30.0


@contextmanager
def arenas_in(root: Path) -> Iterator[None]:
    """Arenas are made and looked for there."""
    with ExitStack() as stack:
        for module in ("arena", "directory", "finding"):
            stack.enter_context(patch(f"holdfast.tiers.{module}.DEFAULT_ROOT", root))
        yield


def change_owner(arena: Path, **changes: object) -> None:
    """Have the arena say something else about whose it is."""
    owner = arena / OWNER_NAME
    owner.write_text(json.dumps({**json.loads(owner.read_bytes()), **changes}))


def quiesce(checkpointer: Checkpointer) -> None:
    """Wait until the thread that writes has nothing left to do, pruning included: the order of calls is then fixed."""
    if checkpointer._stager is None:
        return
    work = getattr(checkpointer._stager.background._client, "_work", None)
    if work is not None:
        done = threading.Event()
        work._jobs.put(done.set)
        assert done.wait(_DEADLINE_S), "the agent hangs (I7)"


class Halt:
    """A place where a thread stops until it is let go."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._go = threading.Event()

    def stop_here(self) -> None:
        self._reached.set()
        assert self._go.wait(_DEADLINE_S), "the rig forgot somebody who waits"

    def wait_until_reached(self) -> None:
        assert self._reached.wait(_DEADLINE_S), "nobody came by"

    def let_go(self) -> None:
        self._go.set()


class HookedFiles(RecordingFiles):
    """Records, and calls back after the n-th operation of a kind."""

    def __init__(self, inner: Files, operations: list[Operation]) -> None:
        super().__init__(inner, operations)
        self._hook: tuple[str, Callable[[], None]] | None = None
        self._left = 0
        self._fails_sync = False

    def after(self, kind: str, count: int, action: Callable[[], None]) -> None:
        self._hook, self._left = (kind, action), count

    def fail_next_sync(self) -> None:
        """The medium gives an error; as Linux does it, what was to be synced is lost and later syncs succeed."""
        self._fails_sync = True

    def sync(self, descriptor: int) -> None:
        if self._fails_sync:
            self._fails_sync = False
            self.inner.truncate(descriptor, 0)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(descriptor)

    def _record(self, operation: Operation) -> None:
        super()._record(operation)
        if self._hook is not None and operation.kind == self._hook[0]:
            self._left -= 1
            if self._left == 0:
                action, self._hook = self._hook[1], None
                action()


class SimulatedAgent:
    """A worker as in a process of its own: its descriptors and locks are not the training's, and die with it."""

    def __init__(self, disk: MemoryFiles, operations: list[Operation], on_durable: Callable[[int, str], None]) -> None:
        """`on_durable` hears of a save's number and name before the training does."""
        self._disk = disk
        self._operations = operations
        self._on_durable = on_durable
        self._is_dead = False
        self._trainer_is_gone = False
        self.numbers: deque[int] = deque()
        """Of the saves that will be ordered, in their order."""
        self.failures: dict[int, Failed] = {}
        self.before_write: Halt | None = None
        self.before_prune: Halt | None = None
        self.begun = threading.Event()
        """Set when it has begun to write a snapshot that is being copied."""
        self.ahead_bytes = 0
        """How much of that it has written."""

    def stand_in(self, hello: Hello, files: Files | None, clock: Clock) -> "SimulatedAgent":
        """In the place of `holdfast.agent.staging._local_worker`."""
        del files  # the training's
        self._hello, self._clock = hello, clock
        self._start()
        return self

    def begin(self, slot: Slot, message: Begin, report: Callable[[Report], None], goes_on: Callable[[], bool]) -> None:
        del report  # only signs of life

        def note(said: Report) -> None:
            assert isinstance(said, Ahead)
            self.ahead_bytes = said.done_bytes

        self.ahead_bytes = 0
        self.begun.set()
        self._worker.begin(slot, message, note, goes_on)

    def forget(self) -> None:
        self._worker.forget()

    def write(self, slot: Slot, message: Write, report: Callable[[Report], None]) -> None:
        number = self.numbers.popleft()
        if self.before_write is not None:
            self.before_write.stop_here()

        def tell(said: Report) -> None:
            if self._is_dead:
                return
            if isinstance(said, Durable) and not self._trainer_is_gone:
                self._on_durable(number, said.id)
            if isinstance(said, Failed):
                self.failures[number] = said
            if not self._trainer_is_gone:
                report(said)
            if isinstance(said, Durable) and self.before_prune is not None:
                self.before_prune.stop_here()

        self._worker.write(slot, message, tell)
        while self._is_dead and not self._trainer_is_gone:
            # As the client has it: another one takes over, and is sent everything again.
            self._start()
            self._worker.write(slot, message, tell)

    def close(self) -> None:
        if not self._is_dead:
            self._worker.close()

    def die(self) -> None:
        """SIGKILL; unless the training is gone, another one follows."""
        self._is_dead = True
        self._view.die()

    def lose_trainer(self) -> None:
        """SIGKILL for the training process: nobody hears the agent any more, and none follows it."""
        self._trainer_is_gone = True

    def let_go(self) -> None:
        """Hold it up no more."""
        for halt in (self.before_write, self.before_prune):
            if halt is not None:
                halt.let_go()
        self.before_write = self.before_prune = None

    def _start(self) -> None:
        self._view = self._disk.another_process()
        self.files = HookedFiles(self._view, self._operations)
        self._is_dead = False
        self._worker = Worker(
            PosixStore(self._hello.run, files=self.files, clock=self._clock), self._hello, self._clock
        )
