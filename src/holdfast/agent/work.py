"""The thread that does the agent's work in the order it was told to, in the agent's process or in the training's."""

import errno
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from holdfast.agent.messages import Begin, Durable, Failed, Forget, Hello, Report, Warning, Write  # noqa: A004
from holdfast.core.errors import ProtocolError, SaveFailedError

# As in holdfast/__init__.py: the module of the type is loaded only where a slot is attached.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.tiers.slot import Slot

__all__ = ["MakeWorker", "Work", "Worker"]


# What is open there stays unusable, whatever comes back under its name.
_GONE = (errno.ESTALE, errno.ENOTCONN, errno.ENODEV)


class Worker(Protocol):
    """Makes snapshots durable."""

    def begin(
        self, slot: "Slot", message: Begin, report: Callable[[Report], None], goes_on: Callable[[], bool]
    ) -> None:
        """Write what the slot holds so far, and what comes to it while that goes on. Nothing of it counts yet."""
        ...

    def forget(self) -> None:
        """Nothing comes of what was begun."""
        ...

    def write(self, slot: "Slot", message: Write, report: Callable[[Report], None]) -> None:
        """Make the slot's snapshot durable, and report Durable or Failed, whatever happens."""
        ...

    def close(self) -> None:
        """Let the run go, and journal what is not finished. May be called while `write` hangs in another thread."""
        ...


MakeWorker = Callable[[Hello], Worker]


class Work:
    """Does one thing after the other; every Write is answered by Durable or Failed."""

    def __init__(
        self,
        hello: Hello,
        report: Callable[[Report], None],
        make_worker: MakeWorker,
        *,
        release: Callable[["Slot"], None],
        on_finished: Callable[[], None],
    ) -> None:
        """All are called from the thread; `release` with a slot that is not used any more."""
        self._hello = hello
        self._report = report
        self._make_worker = make_worker
        self._release = release
        self._on_finished = on_finished
        self._worker: Worker | None = None
        self._slots: dict[int, Slot] = {}
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # Of the jobs that wait, in their order: what is being written ahead goes on only for its own.
        self._orders: deque[Begin | Forget | Write | None] = deque()
        self._finished = threading.Event()
        # Daemon: where the storage hangs, the process must be able to end without this thread.
        self._thread = threading.Thread(target=self._run, name="holdfast-work", daemon=True)
        self._thread.start()

    @property
    def finished(self) -> bool:
        """Whether all was done after `finish`."""
        return self._finished.is_set()

    def attach(self, index: int, attach: Callable[[], "Slot"]) -> None:
        """From now on, that is the slot of that index."""
        self._put(None, lambda: self._attach(index, attach))

    def hint(self, message: Begin | Forget) -> None:
        """Have written what there is of a snapshot in the making, until an order comes that is not for it; or not."""
        self._put(message, lambda: self._take_hint(message))

    def write(self, message: Write) -> None:
        """Have the snapshot made durable."""
        self._put(message, lambda: self._write(message))

    def finish(self) -> None:
        """Take nothing more; when all is done, close the worker."""
        self._orders.append(None)
        self._jobs.put(None)

    def wait(self, timeout_s: float) -> bool:
        """Whether it finished within that time."""
        return self._finished.wait(timeout_s)

    def give_up(self, timeout_s: float) -> None:
        """Have the worker journal what is not finished; the storage that hangs may not take that either."""
        worker = self._worker
        if worker is not None:
            thread = threading.Thread(target=worker.close, name="holdfast-give-up", daemon=True)
            thread.start()
            thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._ready_worker()  # before the first snapshot is complete, so that it need not wait for imports
        except Exception:  # noqa: BLE001, S110  tried again, and answered, with the first snapshot
            pass
        while (job := self._jobs.get()) is not None:
            job()
        self._close_worker()
        self._finished.set()
        self._on_finished()

    def _ready_worker(self) -> Worker:
        if self._worker is None:
            self._worker = self._make_worker(self._hello)
        return self._worker

    def _attach(self, index: int, attach: Callable[[], "Slot"]) -> None:
        previous = self._slots.pop(index, None)
        try:
            if previous is not None:
                self._release(previous)
            self._slots[index] = attach()
        except Exception as error:  # noqa: BLE001  every snapshot in that slot is answered with Failed
            self._report(Warning(f"the agent cannot use slot {index}: {type(error).__name__}: {error}"))

    def _put(self, order: Begin | Forget | Write | None, job: Callable[[], None]) -> None:
        def run() -> None:
            self._orders.popleft()
            job()

        self._orders.append(order)
        self._jobs.put(run)

    def _take_hint(self, message: Begin | Forget) -> None:
        def goes_on() -> bool:
            """Whether the next order is the one to make it durable, or is not known yet."""
            try:
                following = self._orders[0]
            except IndexError:
                return True
            return isinstance(following, Write) and following.index == message.index

        slot = self._slots.get(message.index)
        try:
            if isinstance(message, Forget):
                self._ready_worker().forget()
            elif slot is not None:
                self._ready_worker().begin(slot, message, self._report, goes_on)
        except Exception:  # noqa: BLE001, S110  tried again, and answered, when it is complete
            pass

    def _write(self, message: Write) -> None:
        answered = is_gone = False

        def report(answer: Report) -> None:
            nonlocal answered, is_gone
            is_gone = is_gone or (isinstance(answer, Failed) and answer.errno in _GONE)
            self._report(answer)
            answered = answered or (isinstance(answer, Durable | Failed) and answer.generation == message.generation)

        try:
            slot = self._slots.get(message.index)
            if slot is None:
                raise ProtocolError(f"there is no slot {message.index} for snapshot {message.generation}")
            self._ready_worker().write(slot, message, report)
            if not answered:
                raise SaveFailedError(f"nothing is known of snapshot {message.generation} after it was written")
        except Exception as error:  # noqa: BLE001  whoever waits for the snapshot must hear of every fault
            if not answered:
                report(Failed.of(message.generation, error))
        if is_gone:
            self._let_go()  # the next snapshot opens the run again

    def _close_worker(self) -> None:
        self._let_go()
        try:
            for slot in self._slots.values():
                self._release(slot)
        except Exception as error:  # noqa: BLE001  all snapshots are answered; this cannot change them
            self._report(Warning(f"the agent could not give its memory back: {type(error).__name__}: {error}"))
        self._slots.clear()

    def _let_go(self) -> None:
        worker, self._worker = self._worker, None
        try:
            if worker is not None:
                worker.close()
        except Exception as error:  # noqa: BLE001  all snapshots are answered; this cannot change them
            self._report(Warning(f"the agent could not let the run go: {type(error).__name__}: {error}"))
