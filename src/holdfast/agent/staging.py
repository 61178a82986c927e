"""One save in the background: encode, choose how to copy, copy, hand over. And how much that cost the training."""

import math
import os
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

from holdfast.agent.background import Background
from holdfast.agent.client import Agent, Client, OnEvent, ThreadAgent
from holdfast.agent.messages import Hello
from holdfast.agent.worker import Worker
from holdfast.core.clock import Clock
from holdfast.core.errors import HoldfastError
from holdfast.core.limits import CHUNK_BYTES
from holdfast.core.values import Checkpoint
from holdfast.engine.capture import capture
from holdfast.engine.copier import Copier
from holdfast.engine.device import HostCopies, torch_device
from holdfast.engine.gate import Gate
from holdfast.engine.laying import Laid, Layouts
from holdfast.engine.outcome import PendingCheckpoint
from holdfast.engine.overlap import Overlapped
from holdfast.engine.saving import Document, draft_checkpoint, save_in_foreground
from holdfast.engine.session import Session
from holdfast.format.carriers import ToHost
from holdfast.format.encode import Encoded
from holdfast.format.footprint import Footprint
from holdfast.policy.keep import Keep
from holdfast.storage.files import Files
from holdfast.storage.posix import PosixStore

__all__ = ["CaptureMode", "Stager", "Status"]


CaptureMode = Literal["now", "overlapped", "auto"]
Encode = Callable[[ToHost, Footprint | None], Encoded]
"""Gives the state as it is now, with what brings tensors of an accelerator to the host; Moved where it is not where
the footprint says."""

# What a copy may take before "auto" lets it overlap with the computation: shorter ones are not worth a thread.
_WORTH_OVERLAPPING_S = 0.005
# Memory for less than this is there in no time.
_LEAST_PREPARED_BYTES = 16 << 20
# Beside one that writes. A thread digests about as fast as a good disk writes; the other cores are for the training.
_MOST_DIGESTING = 4
_AGENT_NICE = 5
# A storage that is slow but alive gets this long at the end of a program, and this long without any sign of life.
_CLOSE_DEADLINE_S = 600.0
_CLOSE_PATIENCE_S = 30.0


class Status(NamedTuple):
    """What is going on, for a status line; `str()` gives the line."""

    durable_step: int | None
    """The newest step of this process that survives a power cut."""
    staged_step: int | None
    """The newest step that was copied, or is being copied."""
    stall_s: float
    """What saving has cost the training thread so far."""
    saved: int
    failed: int
    skipped: int
    """Saves that were due while two were on their way, and left out."""
    doing: str
    """What the agent does now."""

    def __str__(self) -> str:
        durable = "nothing durable yet" if self.durable_step is None else f"durable: step {self.durable_step}"
        failed = f" · {self.failed} failed" if self.failed else ""
        skipped = f" · {self.skipped} skipped" if self.skipped else ""
        stall = f"stall {self.stall_s * 1e3:,.0f} ms in all"
        return f"{durable} · {self.saved} saved{failed}{skipped} · {stall} · {self.doing}"


class Stager:
    """Saves for one Checkpointer. Called with its lock held."""

    def __init__(
        self,
        session: Session,
        state: object,
        keep: Keep,
        *,
        process: bool,
        mode: CaptureMode,
        memory_bytes: int | None,
        files: Files | None,
        on_failure: Callable[[PendingCheckpoint, HoldfastError], None],
    ) -> None:
        self._session = session
        self._keep = keep
        self._mode = mode
        self._on_failure = on_failure
        self._gate = Gate(state) if mode != "now" else None
        self._copier = Copier()
        self._layouts = Layouts()
        self._copy_s = 0.0
        self.stall_s = 0.0
        self.saved = 0
        self.failed = 0
        self.skipped = 0
        self.staged_step: int | None = None
        session.shares_attempt = True
        hello = Hello(
            # The agent has another working directory, and one that is started later finds another run behind a link.
            run=os.path.realpath(session.store.location),
            run_id=session.run_id,
            attempt=session.attempt,
            workers=1 + max(1, min(_MOST_DIGESTING, len(os.sched_getaffinity(0)) // 2)),
            keep=keep.to_plain(),
            nice=_AGENT_NICE,
        )

        def thread(on_event: OnEvent) -> Client:
            return ThreadAgent(hello, on_event, make_worker=lambda hello: _local_worker(hello, files, session.clock))

        self.background = Background(
            session,
            (lambda on_event: Agent(hello, on_event)) if process else thread,
            thread,
            memory_bytes=memory_bytes,
            on_failure=self._note_failure,
        )

    def save(self, encode: Encode, document: Document, pending: PendingCheckpoint) -> None:
        """Stage the state; HoldfastError where that fails, and nothing is changed."""
        began_s = time.perf_counter()
        try:
            if self._gate is not None and (self._mode == "overlapped" or self._copy_s > _WORTH_OVERLAPPING_S):
                self._save_overlapped(self._gate, encode, document, pending)
            else:
                self._save_now(encode, document, pending)
        finally:
            self.stall_s += time.perf_counter() - began_s
        self.saved += 1
        self.staged_step = document.step

    def prepare(self, size_bytes: int, *, after_s: float = 0.0) -> None:
        """Make memory for a snapshot of about that size ready, while the program does something else."""
        background = self.background
        # A slot that is being filled or written stays as it is; the next save asks for more if it needs more.
        if (
            size_bytes >= _LEAST_PREPARED_BYTES
            and not background.is_busy()
            and not background.arena.has_room(size_bytes)
        ):
            background.arena.fit_in_background(size_bytes + size_bytes // 50 + CHUNK_BYTES, after_s=after_s)

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Around code that changes the state in place, outside of the steps of the optimizers in it."""
        if self._gate is None:
            yield
            return
        with self._gate.updating():
            yield

    def settle(self, within_s: float = math.inf) -> None:
        """Wait for what is on its way."""
        self.background.settle(min(_CLOSE_DEADLINE_S, within_s), patience_s=_CLOSE_PATIENCE_S)

    def status(self) -> Status:
        background = self.background
        return Status(
            background.durable_step,
            self.staged_step,
            self.stall_s + (self._gate.waited_s if self._gate is not None else 0.0),
            self.saved,
            self.failed,
            self.skipped,
            background.doing(),
        )

    def close(self, within_s: float = math.inf) -> bool:
        """Finish what is on its way; what cannot be finished in time has failed. Whether the storage still answers."""
        if self._gate is not None:
            self._gate.close()
        self._copier.close()
        return self.background.close(min(_CLOSE_DEADLINE_S, within_s), patience_s=_CLOSE_PATIENCE_S)

    def _look(self, encode: Encode, guarded: Container[int]) -> tuple[Laid, HostCopies]:
        """The state, and its tensors that are on their way from an accelerator; the addresses say which are guarded."""
        copies = HostCopies(torch_device, guarded=guarded)

        def look(footprint: Footprint | None) -> Encoded:
            nonlocal copies
            copies = HostCopies(torch_device, guarded=guarded)
            return encode(copies.take, footprint)

        return self._layouts.take(look), copies

    def _save_now(self, encode: Encode, document: Document, pending: PendingCheckpoint) -> None:
        session, background = self._session, self.background
        laid, copies = self._look(encode, ())
        layout = laid.layout
        copies.finish()
        if not background.has_room(layout.size_bytes):
            self._save_synchronously(laid, document, pending)
            return
        index = background.reserve(pending)
        try:
            draft = draft_checkpoint(session, laid, document)
            image = background.image(index, layout.size_bytes)
            began_s = time.perf_counter()
            try:
                xxh3 = capture(layout, laid.encoded.carriers, image, workers=max(1, session.workers // 2))
            finally:
                image.release()
            self._copy_s = time.perf_counter() - began_s
        except BaseException:
            background.drop(index)
            raise
        session.note_commit(draft.checkpoint)
        background.hand_over(index, draft, pending, xxh3)

    def _save_overlapped(self, gate: Gate, encode: Encode, document: Document, pending: PendingCheckpoint) -> None:
        session, background = self._session, self.background
        index: int | None = None
        copying: Overlapped | None = None
        try:
            with gate.capturing():
                guarded = gate.guarded_tensors()
                laid, copies = self._look(encode, guarded.addresses)
                encoded, layout = laid.encoded, laid.layout
                if not background.has_room(layout.size_bytes):
                    copies.finish()
                    self._save_synchronously(laid, document, pending)
                    return
                index = background.reserve(pending)
                draft = draft_checkpoint(session, laid, document)
                deferral = gate.deferrable(encoded, guarded)
                copying = Overlapped(
                    layout,
                    encoded.carriers,
                    deferral.leaves | copies.leaves(encoded.leaves),
                    background.image(index, layout.size_bytes),
                    workers=1,
                    changed=deferral.changed,
                    before=copies.finish,
                    note_filled=background.write_ahead(index, draft.checkpoint, lambda: pending.is_awaited),
                    run=self._copier.run,
                )
                gate.hold(copying)
        except BaseException:
            if copying is not None:
                copying.cancel("the capture was given up")
                copying.wait()
            if copying is not None and index is not None:
                background.forget_ahead(index)
            if index is not None:
                background.drop(index)
            raise
        session.note_commit(draft.checkpoint)
        background.hand_over_later(index, draft, pending, copying, self._copier.run)

    def _save_synchronously(self, laid: Laid, document: Document, pending: PendingCheckpoint) -> None:
        """Where memory has no room for a snapshot: written from where the arrays are, before the program goes on."""

        def note(checkpoint: Checkpoint) -> None:
            pending.note_durable(checkpoint.id)
            self.background.note_durable(checkpoint.step)

        save_in_foreground(self._session, laid, document, self._keep, note)

    def _note_failure(self, pending: PendingCheckpoint, error: HoldfastError) -> None:
        self.failed += 1
        self._on_failure(pending, error)


def _local_worker(hello: Hello, files: Files | None, clock: Clock) -> Worker:
    store = PosixStore(hello.run, create=False, files=files, clock=clock)
    try:
        return Worker(store, hello, clock)
    except BaseException:
        store.close()
        raise
