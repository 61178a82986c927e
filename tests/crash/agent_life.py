"""Lives of runs whose checkpoints an agent writes: arena, agent and training process, each of which can die alone."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self
from unittest.mock import patch

from holdfast.agent.background import Background
from holdfast.agent.exiting import is_finished
from holdfast.checkpointer import Checkpointer
from holdfast.engine.outcome import PendingCheckpoint
from holdfast.policy.keep import KEEP_ALL, Keep
from holdfast.testing.memory_files import MemoryFiles
from tests.crash.agents import HookedFiles, SimulatedAgent, arenas_in, change_owner, quiesce
from tests.crash.life import ACK, BEGIN, Life
from tests.crash.subject import Program

__all__ = ["AgentLife", "Trainer"]

_NOBODY = 1 << 23  # above any pid that Linux gives
_BURIAL_S = 30.0


class Trainer(NamedTuple):
    """A training process and what belongs to it."""

    view: MemoryFiles
    files: HookedFiles
    program: Program
    checkpointer: Checkpointer
    agent: SimulatedAgent


class AgentLife(Life):
    """As `Life`, with an agent. Nothing is left of it, on disk, in memory or as a thread, when it is exited."""

    def __init__(self, *, floats: int) -> None:
        super().__init__(floats=floats)
        self._stack = ExitStack()
        self._alive: list[Trainer] = []

    def __enter__(self) -> Self:
        root = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-arenas-"))
        self._stack.enter_context(arenas_in(Path(root)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            for trainer in list(self._alive):
                self.kill(trainer)

    @property
    def trainer(self) -> Trainer:
        """The newest."""
        return self._alive[-1]

    @property
    def agent(self) -> SimulatedAgent:
        return self.trainer.agent

    def new_process(
        self, *, retain: Keep = KEEP_ALL, kill: bool = True, takeover: bool = False, adopts: int | None = None
    ) -> Checkpointer:
        """`adopts` is the save that is in memory only by then, and has to be made durable again."""
        if kill and self._alive:
            self.kill(self.trainer)
        self._view = self._disk.another_process()
        self._files = files = HookedFiles(self._view, self.operations)
        self.program = Program(floats=self._floats)
        agent = SimulatedAgent(self._disk, self.operations, self._note_durable)
        with patch("holdfast.agent.staging._local_worker", agent.begin):
            self.checkpointer = self.program.checkpointer(files, retain=retain, takeover=takeover, background="thread")
            self._alive.append(Trainer(self._view, files, self.program, self.checkpointer, agent))
            quiesce(self.checkpointer)
        if adopts is not None:
            agent.numbers.append(adopts)
        restored = self.checkpointer.restore()
        quiesce(self.checkpointer)
        if adopts is not None:
            assert restored is not None, f"save {adopts} was in memory, and nothing was restored"
            assert self.program.saved() == adopts, f"save {adopts} was in memory, {self.program.saved()} was restored"
            assert adopts in self.ids, f"save {adopts} was in memory only and did not become durable: {agent.failures}"
        return self.checkpointer

    def save(self, step: int) -> int:
        pending = self.stage(step)
        self.settle()
        assert pending.durable, f"without a fault the save of step {step} failed: {pending.error}"
        return self._last

    def stage(self, step: int) -> PendingCheckpoint:
        """Train to the step and hand its snapshot over."""
        self.begin()
        self.agent.numbers.append(self._last)
        return self.checkpointer.save(step=step)

    def begin(self) -> None:
        """Train to the next state; from now on it may be found."""
        self._last += 1
        self.program.become(self._last)
        self.mark(BEGIN, self._last)

    @property
    def newest(self) -> int:
        """The number of the save that was begun last."""
        return self._last

    def settle(self) -> None:
        """Wait until the newest training's agent has done everything, pruning included."""
        quiesce(self.checkpointer)

    def settle_all(self) -> None:
        for trainer in self._alive:
            quiesce(trainer.checkpointer)

    def flip_bit_in_memory(self) -> None:
        """In the data of the newest snapshot."""
        slot = max(_background(self.trainer).arena.slots, key=lambda slot: slot.generation())
        content = slot.content()
        assert content is not None, "there is no snapshot in memory"
        with slot.image(content.image_bytes) as image:
            image[-1] ^= 1

    @contextmanager
    def no_memory(self) -> Iterator[None]:
        """There is no room for another snapshot."""
        with patch.object(_background(self.trainer), "has_room", lambda size_bytes: False):
            yield

    def kill(self, trainer: Trainer, *, with_agent: bool = True) -> Path:
        """SIGKILL for the training, and for its agent or not: then that finishes what it has, unless it is held up.

        Where the snapshots are.
        """
        trainer.view.die()
        trainer.agent.lose_trainer()
        background = _background(trainer)
        path = background.arena.path
        assert path is not None, background.arena.obstacle
        if path.exists():
            change_owner(path, pid=_NOBODY)
        is_finished(trainer.checkpointer._finish)
        trainer.checkpointer._closed = True
        if with_agent:
            trainer.agent.die()
            trainer.agent.let_go()
            self.bury(trainer)
        return path

    def bury(self, trainer: Trainer) -> None:
        """Wait for the end of a dead training's agent. The snapshots stay in memory."""
        background = _background(trainer)
        left = background._client.close(_BURIAL_S)
        assert not left, f"snapshots {left} keep the agent of a dead training busy for ever"
        background.arena.forget()
        self._alive.remove(trainer)

    def _note_durable(self, number: int, checkpoint_id: str) -> None:
        self.mark(ACK, number)
        self.ids[number] = checkpoint_id


def _background(trainer: Trainer) -> Background:
    stager = trainer.checkpointer._stager
    assert stager is not None
    return stager.background
