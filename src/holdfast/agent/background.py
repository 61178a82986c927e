"""Saving in the background, as the training process sees it: fill a slot, hand it over, keep account of it."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from holdfast.agent.client import AgentGone, Client, Event, OnEvent
from holdfast.agent.messages import Ahead, Begin, Durable, Failed, Forget, Progress, Removed, Write
from holdfast.agent.messages import Warning as Notice
from holdfast.core.countdown import Countdown
from holdfast.core.errors import FencedError, HoldfastError, SaveFailedError
from holdfast.core.interrupts import interrupts_let_through
from holdfast.core.limits import CHUNK_BYTES
from holdfast.core.names import shard_name
from holdfast.core.values import Checkpoint
from holdfast.engine.copier import Run
from holdfast.engine.filled import NoteFilled
from holdfast.engine.outcome import PendingCheckpoint
from holdfast.engine.session import Session
from holdfast.engine.writing import Draft
from holdfast.format.manifest import ShardRecord, encode_manifest
from holdfast.tiers.arena import Arena
from holdfast.tiers.slot import Slot

__all__ = ["Background", "Copying"]

_log = logging.getLogger("holdfast")

# A storage that gives no sign of life for this long is taken for hung: saves are skipped instead of waiting for it.
_PATIENCE_S = 1.0
# While it does move, a save waits for a place in memory at most this long.
_BUSY_DEADLINE_S = 60.0
_PAUSE_S = 0.05
# Less is copied before an agent is awake.
_LEAST_AHEAD_BYTES = 32 << 20

OnFailure = Callable[[PendingCheckpoint, HoldfastError], None]


class Copying(Protocol):
    """A copy that goes on while the program computes (engine.overlap.Overlapped)."""

    error: HoldfastError | None
    xxh3: list[str]

    def wait(self, timeout_s: float | None = None) -> bool: ...


@dataclass
class _Job:
    """A snapshot on its way to the disk."""

    pending: PendingCheckpoint
    checkpoint: Checkpoint
    index: int
    done_bytes: int = 0


class Background:
    """One per Checkpointer. Called by the training process; `hear` by whoever listens to the agent."""

    def __init__(
        self,
        session: Session,
        start: Callable[[OnEvent], Client],
        stand_in: Callable[[OnEvent], Client],
        *,
        memory_bytes: int | None,
        on_failure: OnFailure,
    ) -> None:
        """`start` makes the agent; `stand_in` the one that takes over if it cannot be had, or keeps dying."""
        self._session = session
        self._stand_in = stand_in
        self._on_failure = on_failure
        # `with` this, not the condition: that one is entered by code in Python, where Ctrl-C leaves it locked for ever.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        # While an order is given, its client must not be replaced: the one that takes over would not know of it.
        self._ordering = threading.RLock()
        self._jobs: dict[int, _Job] = {}
        # Those that have failed, or may, and are no job any more, while that is being told: on their way until then.
        self._failing = 0
        self._filling: set[int] = set()
        # How much of what is in a slot is written, though it was not ordered yet: of those that were begun.
        self._ahead: dict[int, int] = {}
        self._newest: dict[int, int] = {}
        self._sent: dict[int, Slot] = {}
        self._told_of_shortage = False
        self._last_sign_s = time.monotonic()
        self._waited_s = 0.0
        self._has_stand_in = False
        self._is_broken = False
        self._undurable = 0
        self._is_settling = False
        self._untold: list[tuple[str, dict[str, object]]] = []
        self._closed = False
        self.durable_step: int | None = None
        self.on_durable: Callable[[], None] | None = None
        """Called once, when the first checkpoint of this attempt is durable."""
        self.arena = Arena.create(
            run_id=session.run_id,
            run=os.path.abspath(session.store.location),
            attempt=session.attempt,
            limit_bytes=memory_bytes,
        )
        self._client = start(self.hear)
        self._client.start()  # where it cannot, `hear` is told, and has another one take over

    def has_room(self, size_bytes: int) -> bool:
        """Whether a snapshot of that size can be held in memory, and written from there; said once if not."""
        if self._is_broken:
            return False
        if not self.arena.is_fitting and self.arena.has_room(size_bytes):
            return True
        # What is on its way is read where it is; a slot that must be replaced would drop it.
        self.settle(_BUSY_DEADLINE_S, patience_s=_PATIENCE_S)
        slots = self.arena.fit(size_bytes)
        if self.arena.shortage and not self._told_of_shortage:
            self._told_of_shortage = True
            effect = "a save waits until the one before is written" if slots else "a save returns when it is written"
            _log.warning("%s: %s", effect, self.arena.shortage)
        return slots > 0

    def reserve(self, pending: PendingCheckpoint) -> int:
        """A slot to fill. SaveFailedError where none becomes free in time: the storage is too slow, or hangs."""
        left = Countdown(_BUSY_DEADLINE_S)
        with self._lock:
            while True:
                busy = self._filling | {job.index for job in self._jobs.values()}
                free = [index for index in range(len(self.arena.slots)) if index not in busy]
                if free:
                    # The other one stays for a restart from memory until this one is complete.
                    index = min(free, key=lambda index: self._newest.get(index, 0))
                    self._filling.add(index)
                    return index
                if left.step_s() <= 0 or self._waited_s > _PATIENCE_S:
                    silent_s = time.monotonic() - self._last_sign_s
                    raise SaveFailedError(
                        f"the checkpoint of step {pending.step} was skipped: {len(self._jobs)} before it are still "
                        f"being written, and the storage has given no sign of life for {silent_s:.1f} s",
                        hint="holdfast doctor RUN tests the storage; the training goes on",
                    )
                self._wait()

    def hangs(self) -> bool:
        """Whether the storage gives no sign of life: whoever touches it now may not come back."""
        with self._lock:
            return bool(self._jobs) and time.monotonic() - self._last_sign_s > _PATIENCE_S

    def note(self, event: str, **details: object) -> None:
        """Journal it, or later where the storage hangs: the training must not hang with it."""
        self._untold.append((event, details))
        if not self.hangs():
            self._tell_journal()

    def is_busy(self) -> bool:
        """Whether a snapshot is being copied or written."""
        return bool(self._filling or self._jobs)

    def is_full(self) -> bool:
        """Whether `reserve` would have to wait."""
        slots = len(self.arena.slots)
        with self._lock:
            return 0 < slots <= len(self._filling | {job.index for job in self._jobs.values()})

    def image(self, index: int, size_bytes: int) -> memoryview:
        """The memory of the slot, which holds nothing from now on until it is handed over."""
        slot = self.arena.slots[index]
        slot.begin()
        return slot.image(size_bytes)

    def write_ahead(self, index: int, checkpoint: Checkpoint, is_awaited: Callable[[], bool]) -> NoteFilled | None:
        """Whom to tell how far the copy into the slot is: once it is awaited, it is written while more is copied.

        Only then: beside a program that computes, one after the other disturbs it less (decision 30).
        """
        if checkpoint.size_bytes < _LEAST_AHEAD_BYTES:
            return None
        slot = self.arena.slots[index]

        def note(filled_bytes: int) -> None:
            slot.note_filled(filled_bytes)
            if index not in self._ahead and (self._is_settling or is_awaited()):
                # By whoever copies: the training waits for nothing.
                self._ahead[index] = 0
                self._order_quietly(slot, Begin(index, checkpoint.id, checkpoint.size_bytes, checkpoint.attempt))

        return note

    def forget_ahead(self, index: int) -> None:
        """The copy was given up."""
        with self._lock:
            is_begun = self._ahead.pop(index, None) is not None
        if is_begun:
            self._order_quietly(self.arena.slots[index], Forget(index))

    def drop(self, index: int) -> None:
        """Nothing came of the slot that was reserved."""
        with self._lock:
            self._filling.discard(index)
            self._changed.notify_all()

    def hand_over(self, index: int, draft: Draft, pending: PendingCheckpoint, xxh3: list[str]) -> None:
        """The slot holds the image: complete the snapshot, and have it written."""
        checkpoint = draft.checkpoint
        try:
            shard = ShardRecord(
                name=shard_name(0), size_bytes=checkpoint.size_bytes, chunk_bytes=CHUNK_BYTES, xxh3=xxh3, blake3=[]
            )
            manifest = encode_manifest(checkpoint, self._session.run_id, draft.body.with_shards([shard]))
            slot = self.arena.slots[index]
            generation = slot.finish(checkpoint.size_bytes, manifest)
            with self._lock:
                if not self._jobs:  # until now, nothing was wanted from the storage
                    self._last_sign_s = time.monotonic()
                    self._waited_s = 0.0
                written = self._ahead.pop(index, None)
                self._jobs[generation] = _Job(pending, checkpoint, index, written or 0)
                self._newest[index] = generation
        finally:
            self.drop(index)
        session = self._session
        try:
            pending.note_staged()
            message = Write(
                index,
                generation,
                origin=session.origin,
                forks=session.forks,
                attempt=checkpoint.attempt,
                suspect=checkpoint.suspect,
                safe_before=session.safe_before,
                begun=written is not None,
            )
            self._order(slot, message)
        except BaseException as error:
            with self._lock:
                self._jobs.pop(generation, None)
                # Nobody else has it: it stays in memory, for the next start.
                self._undurable = max(self._undurable, generation)
                self._changed.notify_all()
            if isinstance(error, HoldfastError) or not isinstance(error, OSError):
                raise
            raise SaveFailedError(f"step {pending.step} cannot be given to the agent: {error}") from error

    def hand_over_later(self, index: int, draft: Draft, pending: PendingCheckpoint, copying: Copying, run: Run) -> None:
        """The same once the copy is complete; done by `run`, which waits for that."""

        def finish() -> None:
            copying.wait()
            with self._until_told():
                try:
                    if copying.error is not None:
                        raise copying.error
                    self.hand_over(index, draft, pending, copying.xxh3)
                except Exception as error:  # noqa: BLE001  whoever waits for the checkpoint must hear of every fault
                    self.forget_ahead(index)
                    self.drop(index)
                    if not isinstance(error, HoldfastError):
                        error = SaveFailedError(f"unexpected {type(error).__name__}: {error}")
                    self._on_failure(pending, error)
                    pending.note_failed(error)

        run(finish)

    @contextmanager
    def _until_told(self) -> Iterator[None]:
        """What fails meanwhile is on its way until that was told."""
        with self._lock:
            self._failing += 1
        try:
            yield
        finally:
            with self._lock:
                self._failing -= 1
                self._changed.notify_all()

    def settle(self, deadline_s: float, *, patience_s: float) -> list[PendingCheckpoint]:
        """Wait until nothing is on its way, at most that long, while there are signs of life; what still is."""
        self._is_settling = True
        try:
            return self._settle(deadline_s, patience_s)
        finally:
            self._is_settling = False

    def _settle(self, deadline_s: float, patience_s: float) -> list[PendingCheckpoint]:
        left = Countdown(deadline_s)
        with self._lock:
            # Whoever has waited since the last sign of life has used it up for all.
            sign_s, patience = self._last_sign_s, Countdown(patience_s - self._waited_s)
            while self._jobs or self._filling or self._failing:
                if sign_s != self._last_sign_s:
                    sign_s, patience = self._last_sign_s, Countdown(patience_s)
                if left.step_s() <= 0 or (patience.step_s() <= 0 and not self._filling):
                    break
                self._wait()
            return [job.pending for job in self._jobs.values()]

    def _wait(self) -> None:
        """Wait for news, and count that: between two signs of life, all saves together wait no longer than patience.

        The time that this process itself was stopped does not count: what the agent said then was not heard yet.
        """
        began_s = time.monotonic()
        with interrupts_let_through():
            self._changed.wait(_PAUSE_S)
        self._waited_s += min(time.monotonic() - began_s, 2 * _PAUSE_S)

    def doing(self) -> str:
        """What the agent does now."""
        with self._lock:
            jobs = list(self._jobs.values())
        if not jobs:
            return "agent idle"
        first = jobs[0]
        percent = 100 * first.done_bytes / max(1, first.checkpoint.size_bytes)
        waiting = f", {len(jobs) - 1} waiting" if len(jobs) > 1 else ""
        return f"writing step {first.checkpoint.step}: {percent:.0f} %{waiting}"

    def close(self, deadline_s: float, *, patience_s: float) -> bool:
        """Finish, and let everything go; whether the storage still answers.

        What is not durable then has failed. The newest of it stays in memory, for the next start.
        """
        self.settle(deadline_s, patience_s=patience_s)
        with self._lock:
            self._closed = True
            left = list(self._jobs.values())
            self._jobs.clear()
        for job in left:
            error = SaveFailedError(
                f"the checkpoint of step {job.checkpoint.step} is not durable: the storage did not finish in time",
                hint="it is in memory, and restored from there by the next start on this machine",
            )
            self._fail(job, error)
        with self._let_go():
            self._client.close(0.0 if left else deadline_s)
        if not left:
            self._tell_journal()
        if left or self._undurable:
            self.arena.forget()
        else:
            self.arena.release()
        return not left

    @contextmanager
    def _let_go(self) -> Iterator[None]:
        """For the agent's last words. A signal handler that closes may have interrupted lines that hold the lock."""
        held = 0
        try:
            while True:
                self._lock.release()
                held += 1
        except RuntimeError:
            pass  # it is not held any more
        try:
            yield
        finally:
            for _ in range(held):
                self._lock.acquire()

    def hear(self, report: Event) -> None:
        """A report of the agent, or the news that it is gone."""
        if isinstance(report, AgentGone):
            self._note_loss(report)
            return
        failed: tuple[_Job, HoldfastError] | None = None
        first_durable = False
        with self._lock:
            self._last_sign_s = time.monotonic()
            self._waited_s = 0.0
            match report:
                case Ahead():
                    if report.index in self._ahead:
                        self._ahead[report.index] = report.done_bytes
                    for ordered in self._jobs.values():
                        if ordered.index == report.index:
                            ordered.done_bytes = report.done_bytes
                case Progress():
                    if report.generation in self._jobs:
                        self._jobs[report.generation].done_bytes = report.done_bytes
                case Durable():
                    first_durable = self._note_durable(report)
                case Failed():
                    job = self._jobs.pop(report.generation, None)
                    failed = None if job is None else (job, report.error())
                    self._failing += failed is not None
                    self._undurable = max(self._undurable, report.generation)
                case Removed():
                    for checkpoint_id in report.ids:
                        self._session.heads.pop(checkpoint_id, None)
                case Notice():
                    _log.warning("%s", report.message)
            self._changed.notify_all()
        if failed is not None:
            try:
                self._fail(*failed)
            finally:
                with self._lock:
                    self._failing -= 1
                    self._changed.notify_all()
        if isinstance(report, Durable) and self._untold:
            self._tell_journal()
        if first_durable and self.on_durable is not None:
            self.on_durable()

    def note_durable(self, step: int) -> None:
        """A checkpoint was written without the agent, where memory has no room for a snapshot."""
        with self._lock:
            is_first = self.durable_step is None
            self.durable_step = step
            self._undurable = 0
        if is_first and self.on_durable is not None:
            self.on_durable()

    def _note_durable(self, report: Durable) -> bool:
        """Whether it is the first."""
        if report.generation > self._undurable:
            self._undurable = 0
        job = self._jobs.pop(report.generation, None)
        if job is None:
            return False
        if self._session.parent == job.checkpoint.id:
            self._session.parent = report.id  # it was written again, under another name
        is_first = self.durable_step is None
        self.durable_step = max(job.checkpoint.step, self.durable_step or 0)
        job.pending.note_durable(report.id)
        return is_first

    def _note_loss(self, lost: AgentGone) -> None:
        if self._closed:
            return
        _log.warning("%s", lost.message)
        self.note("agent_lost", reason=lost.message)
        if not lost.restarted:
            self._take_over(lost.reason)

    def _order_quietly(self, slot: Slot, message: Begin | Forget) -> None:
        try:
            self._order(slot, message)
        except (HoldfastError, OSError):
            pass  # nothing depends on it; the order to write will tell

    def _order(self, slot: Slot, message: Begin | Forget | Write) -> None:
        with self._ordering:
            if self._is_broken:
                raise SaveFailedError("neither a process nor a thread can be had that writes checkpoints")
            if self._sent.get(message.index) is not slot:
                self._client.send_slot(message.index, slot)
                self._sent[message.index] = slot
            if isinstance(message, Write):
                self._client.write(message)
            else:
                self._client.hint(message)

    def _take_over(self, reason: str) -> None:
        with self._ordering:
            if self._has_stand_in:
                self._give_up(reason)
                return
            self._has_stand_in = True
            _log.warning("checkpoints are written by a thread of this process from now on: %s", reason)
            outstanding = self._client.outstanding
            self._client = self._stand_in(self.hear)
            if not self._client.start():
                return  # it has said so, and that was heard
            for index, slot in self._sent.items():
                self._client.send_slot(index, slot)
            for message in outstanding:
                self._client.write(message)

    def _give_up(self, reason: str) -> None:
        """The stand-in cannot be had either: what was staged has failed, and saves are made in the foreground."""
        _log.warning("checkpoints are written in the foreground from now on: %s", reason)
        self._is_broken = True
        with self._until_told():
            with self._lock:
                left = list(self._jobs.values())
                # Nobody else has it: it stays in memory, for the next start.
                self._undurable = max([self._undurable, *self._jobs])
                self._jobs.clear()
                self._changed.notify_all()
            for job in left:
                self._fail(job, SaveFailedError(f"the checkpoint of step {job.checkpoint.step} was lost: {reason}"))

    def _tell_journal(self) -> None:
        while True:
            try:
                event, details = self._untold.pop(0)
            except IndexError:  # another thread may be telling, too
                return
            self._session.journal.record(event, durable=False, **details)

    def _fail(self, job: _Job, error: HoldfastError) -> None:
        if isinstance(error, FencedError) and job.checkpoint.attempt != self._session.attempt:
            # Not by another process: this one went back to an earlier checkpoint, and began a new attempt itself.
            job.pending.note_failed(SaveFailedError(f"step {job.pending.step} was left behind by a restore"))
            return
        # In this order: who waits for the checkpoint goes on at once, and must find the failure noted.
        self._on_failure(job.pending, error)
        job.pending.note_failed(error)
