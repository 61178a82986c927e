"""Lives of runs whose checkpoints an agent writes: arena, agent and training process, each of which can die alone."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from unittest.mock import patch

from holdfast.agent.background import Background
from holdfast.agent.exiting import is_finished
from holdfast.checkpointer import Checkpointer
from holdfast.core.countdown import Countdown
from holdfast.core.errors import SaveFailedError
from holdfast.core.values import Checkpoint
from holdfast.engine.capture import capture
from holdfast.engine.outcome import PendingCheckpoint
from holdfast.engine.saving import draft_checkpoint
from holdfast.engine.writing import Draft
from holdfast.policy.keep import KEEP_ALL, Keep
from holdfast.testing.memory_files import MemoryFiles
from tests.crash.agents import HookedFiles, SimulatedAgent, arenas_in, change_owner, quiesce
from tests.crash.life import ACK, BEGIN, Life
from tests.crash.subject import RUN, Program

__all__ = ["AgentLife", "Copy", "Trainer"]

_NOBODY = 1 << 23  # above any pid that Linux gives
_BURIAL_S = 30.0
_AGENT_S = 30.0


Copy = Callable[[Callable[[], list[str]], memoryview, Callable[[int], None]], list[str]]
"""Makes the copy that it is given, or not; with the image, and whom to tell how far that is filled."""


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
        with patch("holdfast.agent.staging._local_worker", agent.stand_in):
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

    @contextmanager
    def copying(self, copy: "Copy | None" = None) -> Iterator[None]:
        """The agent writes snapshots while they are copied, as it does with overlapped ones, however small.

        Here each copy begins when the agent has, so that the order of the operations is always the same. `copy` is
        called in its place, with what makes it.
        """
        agent = self.agent

        def draft_and_order(*arguments: Any) -> Draft:
            draft = draft_checkpoint(*arguments)
            drafts.append(draft.checkpoint)
            return draft

        def copy_beside_the_agent(layout: Any, carriers: Any, image: memoryview, **options: Any) -> list[str]:
            [index] = background._filling
            note_filled = background.write_ahead(index, drafts[-1], lambda: True)
            assert note_filled is not None
            note_filled(0)
            assert agent.begun.wait(_AGENT_S), "the agent does not begin"
            agent.begun.clear()

            def make() -> list[str]:
                xxh3 = capture(layout, carriers, image, **options)
                note_filled(len(image))
                return xxh3

            try:
                return make() if copy is None else copy(make, image, note_filled)
            except SaveFailedError:
                background.forget_ahead(index)
                raise

        drafts: list[Checkpoint] = []
        background = _background(self.trainer)
        with (
            patch("holdfast.agent.staging.draft_checkpoint", draft_and_order),
            patch("holdfast.agent.staging.capture", copy_beside_the_agent),
            patch("holdfast.agent.background._LEAST_AHEAD_BYTES", 1),
        ):
            yield

    def listing(self) -> list[str]:
        """What lies in the run's directory."""
        view = self._disk.another_process()
        return sorted(name for name, _ in view.list_dir(view.open_root(RUN)))

    def fill(self, size_bytes: int, note_filled: Callable[[int], None]) -> None:
        """Say that so much of the image is filled, and wait until the agent has written it."""
        note_filled(size_bytes)
        left = Countdown(_AGENT_S)
        while self.agent.ahead_bytes < size_bytes:
            assert left.step_s() > 0, f"the agent has written {self.agent.ahead_bytes} bytes of {size_bytes}"
            time.sleep(0.001)

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
