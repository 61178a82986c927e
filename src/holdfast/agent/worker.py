"""The agent's work, the same in a process and in a thread: make a snapshot durable, then prune."""

import logging
from collections.abc import Callable

from holdfast.agent import messages
from holdfast.agent.messages import Ahead, Begin, Durable, Failed, Hello, Progress, Removed, Report, Write
from holdfast.core.clock import Clock, SystemClock
from holdfast.core.errors import BlobExistsError, FencedError, HoldfastError, IntegrityError, RunError
from holdfast.core.names import ATTEMPTS_DIR, agent_key, attempt_key
from holdfast.core.values import Checkpoint, Fork
from holdfast.engine.ahead import WrittenAhead, may_write_ahead, write_ahead
from holdfast.engine.blocks import BlockPool
from holdfast.engine.catalog import HeadCache
from holdfast.engine.commit import remove_checkpoint
from holdfast.engine.identity import identify
from holdfast.engine.journal import Journal
from holdfast.engine.persist_image import persist_image
from holdfast.engine.writing import Draft, prune_run, renamed, write_checkpoint
from holdfast.format.manifest import Manifest, ShardRecord, decode_staged
from holdfast.policy.keep import Keep
from holdfast.storage.posix import PosixStore
from holdfast.storage.store import Store, Writer
from holdfast.tiers.slot import Slot

__all__ = ["Worker", "make_worker"]

_log = logging.getLogger("holdfast")

# Half of those of a save in the foreground, which are no faster: the agent is to need little memory.
_BLOCK_BYTES = 4 << 20

SendReport = Callable[[Report], None]


class Worker:
    """Writes for one attempt, and holds it: whoever comes next waits until what was staged is durable."""

    def __init__(self, store: Store, hello: Hello, clock: Clock) -> None:
        """RunError where the store is not the run of that attempt, and nothing is changed."""
        _check_run(store, hello)
        self.store = store
        self.clock = clock
        self.run_id = hello.run_id
        self.attempt = hello.attempt
        self.journal = Journal(store, clock, hello.attempt)
        self.heads: HeadCache = {}
        self.origin: str | None = None
        self.forks: tuple[Fork, ...] = ()
        self.safe_before: int | None = None
        self.told_of_metric = False
        self.shares_attempt = True
        self._workers = hello.workers
        self._pool = BlockPool(_BLOCK_BYTES)
        self._keep = Keep.from_plain(hello.keep)
        self._ahead: WrittenAhead | None = None
        self._begun = ""
        """The name of the snapshot that was said to be in the making last."""
        self._spent: set[str] = set()
        """Names of what was begun and given up, here or by an agent before us: they are not used again (I3)."""
        self._hold(hello.attempt)

    def begin(self, slot: Slot, message: Begin, report: SendReport, goes_on: Callable[[], bool]) -> None:
        """Write a snapshot while it is being copied, as far as that goes on. Nothing counts before `write` (I5)."""
        self.forget()
        self._begun = message.id
        # After a rollback, `write` begins the other attempt.
        if not goes_on() or message.attempt != self.attempt or message.id in self._spent:
            return
        if not may_write_ahead(self.store, message.id, message.size_bytes):
            return
        done_bytes = 0

        def advance(size_bytes: int) -> None:
            nonlocal done_bytes
            done_bytes += size_bytes
            report(Ahead(message.index, done_bytes))

        image = slot.image(message.size_bytes)
        self._spent.add(message.id)
        try:
            self._ahead = write_ahead(
                self.store,
                message.id,
                image,
                attempt=self.attempt,
                filled_bytes=slot.filled_bytes,
                goes_on=goes_on,
                pool=self._pool,
                workers=self._workers,
                progress=advance,
            )
        finally:
            image.release()

    def forget(self) -> None:
        """Nothing comes of what was written ahead."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.abandon(self.store, self.attempt)

    def write(self, slot: Slot, message: Write, report: SendReport) -> None:
        """Make the snapshot durable; how that went is reported, and nothing is raised for it."""
        try:
            if message.attempt is not None and message.attempt != self.attempt:
                self._hold(message.attempt)  # a rollback began another attempt in the same process
            self.origin, self.forks, self.safe_before = message.origin, message.forks, message.safe_before
            checkpoint, staged_id = self._write(slot, message, report)
        except HoldfastError as error:
            self.journal.record("save_failed", snapshot=message.generation, error=error.message)
            report(Failed.of(message.generation, error))
            return
        # Under another name than it was staged with: the journal knows both, so that it is not taken for another one.
        also = {} if checkpoint.id == staged_id else {"staged": staged_id}
        self.journal.record(
            "committed",
            durable=False,
            id=checkpoint.id,
            step=checkpoint.step,
            size_bytes=checkpoint.size_bytes,
            **also,
        )
        report(Durable(message.generation, checkpoint.id))
        self._prune(report)

    def close(self) -> None:
        """Let the run go."""
        try:
            self.forget()
        finally:
            self.store.let_go(agent_key(self.attempt))
            self.store.close()

    def _write(self, slot: Slot, message: Write, report: SendReport) -> tuple[Checkpoint, str]:
        """The checkpoint, and the name that it was staged with."""
        manifest = _read_staged(slot, message, self.run_id)
        staged = manifest.body.shards[0]
        if message.begun and self._begun != manifest.checkpoint.id:
            self._spent.add(manifest.checkpoint.id)  # an agent before us may have used the name, and removed it
        image = slot.image(staged.size_bytes)
        ahead = self._take_ahead(manifest.checkpoint.id, staged)
        checkpoint, taken = manifest.checkpoint._replace(suspect=message.suspect), list[str]()
        done_bytes = 0

        def advance(size_bytes: int) -> None:
            nonlocal done_bytes
            done_bytes += size_bytes
            report(Progress(message.generation, done_bytes))

        def produce(name: str, writer: Writer) -> ShardRecord:
            del name  # the snapshot has its own, the same
            if ahead is not None and writer is ahead.writer:
                return ahead.finish(staged)
            return persist_image(image, staged, writer, pool=self._pool, workers=self._workers, progress=advance)

        try:
            if ahead is None:
                checkpoint, taken = self._name(checkpoint)
            begun = None if ahead is None else ahead.writer
            written = write_checkpoint(self, Draft(checkpoint, manifest.body), produce, self._keep, begun=begun)
        finally:
            image.release()
        for name in taken:
            self._remove(name)
        return written, manifest.checkpoint.id

    def _take_ahead(self, checkpoint_id: str, staged: ShardRecord) -> WrittenAhead | None:
        """What was written of the snapshot before it was complete, if it is exactly that (I4)."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        if ahead.is_of(checkpoint_id, staged):
            self._spent.discard(checkpoint_id)
            return ahead
        ahead.abandon(self.store, self.attempt)
        return None

    def _name(self, checkpoint: Checkpoint) -> tuple[Checkpoint, list[str]]:
        """The checkpoint under a name that is free, and those that are not: one before us may have died over it.

        Also where that one got as far as the manifest: nobody knows whether its name was made durable (I5).
        """
        taken = []
        while (is_there := bool(self.store.list(checkpoint.id))) or checkpoint.id in self._spent:
            taken += [checkpoint.id] if is_there else []
            checkpoint = renamed(checkpoint)
        return checkpoint, taken

    def _remove(self, checkpoint_id: str) -> None:
        """Remove what an agent that died over it left of a checkpoint that exists under another name now."""
        try:
            remove_checkpoint(self.store, checkpoint_id, attempt=self.attempt)
            self.heads.pop(checkpoint_id, None)
        except HoldfastError as error:
            _log.debug("%s stays behind: %s", checkpoint_id, error.message)

    def _prune(self, report: SendReport) -> None:
        try:
            removed = prune_run(self, self._keep)
        except FencedError:
            return  # by a rollback of the same program, as a rule: whoever has the run now prunes it
        except HoldfastError as error:
            self.journal.record("prune_failed", error=error.message)
            report(messages.Warning(f"old checkpoints could not be removed: {error.message}"))
            return
        if removed.removed:
            report(Removed(tuple(removed.removed), removed.freed_bytes))

    def _hold(self, attempt: int) -> None:
        self.store.let_go(agent_key(self.attempt))
        key = agent_key(attempt)
        try:
            self.store.publish(key, b"{}\n")
        except BlobExistsError:
            pass  # an agent of this attempt that died before us
        self.store.hold(key)
        # Not before: a write that comes after a refusal has to try it again.
        self.attempt = attempt
        self.journal = Journal(self.store, self.clock, attempt)


def make_worker(hello: Hello) -> Worker:
    """The worker for the run that the training process names."""
    clock = SystemClock()
    store = PosixStore(hello.run, create=False, clock=clock)
    try:
        return Worker(store, hello, clock)
    except BaseException:
        store.close()
        raise


def _check_run(store: Store, hello: Hello) -> None:
    """The run is opened by its name, which may be another run's by now (I11)."""
    found, attempt = identify(store), attempt_key(hello.attempt)
    if found != hello.run_id:
        raise RunError(
            f"{store.location} is another run by now (id {found}, the training has {hello.run_id})",
            hint="was it moved, or something else mounted there? start the training again",
        )
    if not any(attempt == f"{ATTEMPTS_DIR}/{entry.name}" for entry in store.list(ATTEMPTS_DIR)):
        raise RunError(
            f"{store.location} does not know attempt {hello.attempt}, which is to be written",
            hint="was it replaced by a copy? start the training again",
        )


def _read_staged(slot: Slot, message: Write, run_id: str) -> Manifest:
    content = slot.content()
    if content is None or content.generation != message.generation:
        found = "nothing complete" if content is None else f"snapshot {content.generation}"
        raise IntegrityError(
            f"snapshot {message.generation} is not in the arena any more: slot {message.index} has {found}"
        )
    return decode_staged(content.manifest, where=f"snapshot {message.generation}", run_id=run_id)
