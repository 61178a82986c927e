"""The training's side: an agent in a process, or a thread that does the same, with the same methods."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from holdfast.agent.messages import (
    Begin,
    Bye,
    Close,
    Durable,
    Failed,
    Forget,
    Hello,
    NewSlot,
    Ready,
    Report,
    Write,
    decode_report,
    encode,
)
from holdfast.agent.process import AGENT, AgentProcess, start_process
from holdfast.agent.work import MakeWorker, Work, Worker
from holdfast.core.countdown import Countdown
from holdfast.core.errors import ProtocolError, UsageError
from holdfast.core.interrupts import interrupts_are_noted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.tiers.slot import Slot

__all__ = ["MAX_DEATHS", "MAX_OUTSTANDING", "Agent", "AgentGone", "Client", "Event", "OnEvent", "ThreadAgent"]

_log = logging.getLogger("holdfast")

MAX_OUTSTANDING = 2
"""One snapshot that is being written, and one that waits."""
MAX_DEATHS = 3
"""In a row, without a checkpoint between them; then no other agent is started."""

_GRACE_S = 2.0
_CHECK_S = 1.0


class AgentGone(NamedTuple):
    """The agent is gone, though it had not been told to end. The snapshots are where they were."""

    reason: str
    status: int | None
    """Its exit status, or below zero the signal that killed it; None where that is not known."""
    said: str
    """The end of what it wrote to its standard error."""
    outstanding: tuple[Write, ...]
    """What it had been told to make durable, and had not."""
    restarted: bool
    """Another one has taken over, with all that is outstanding. If not, it died too often, or cannot be started."""

    @property
    def message(self) -> str:
        """All of it, for people."""
        said = f"; it said: {self.said}" if self.said else ""
        return f"{self.reason}{said}; " + ("another one has taken over" if self.restarted else "no other is started")


Event = Report | AgentGone
OnEvent = Callable[[Event], None]


class Client(Protocol):
    """What a process and a thread have in common."""

    @property
    def alive(self) -> bool:
        """Whether it works. What is ordered from one that does not, waits for `start`."""
        ...

    @property
    def outstanding(self) -> tuple[Write, ...]:
        """What was ordered, and neither is durable nor has failed."""
        ...

    def start(self) -> bool:
        """Begin, or again after it was given up, with all slots and what is outstanding; whether it could.

        Events come from now on, one at a time and mostly from another thread.
        """
        ...

    def send_slot(self, index: int, slot: "Slot") -> None:
        """From now on, that is the slot of that index. It must stay open until it is replaced, or the client closed."""
        ...

    def hint(self, message: Begin | Forget) -> None:
        """Of a snapshot that is being made. Never blocks, and may be to no effect."""
        ...

    def write(self, message: Write) -> None:
        """Have a complete snapshot made durable. Never blocks; UsageError where two are outstanding."""
        ...

    def close(self, deadline_s: float) -> list[int]:
        """Finish what is outstanding, and end; the generations that were neither durable nor failed by the deadline.

        Or until an interrupt is noted. Not from within an event. After the deadline the work goes on while this process
        lives, and that of an agent up to a minute longer.
        """
        ...


class _Account:
    """What is outstanding, and whose it is."""

    def __init__(self, hello: Hello, on_event: OnEvent) -> None:
        self._hello = hello
        self._on_event = on_event
        self._owner = os.getpid()
        # `with` this, not the condition: that one is entered by code in Python, where Ctrl-C leaves it locked for ever.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._outstanding: dict[int, Write] = {}
        self._closing = False

    @property
    def outstanding(self) -> tuple[Write, ...]:
        return tuple(self._outstanding.values())

    @property
    def _ours(self) -> bool:
        """Not in a forked child, where the threads and the socket are missing and locks may be held for ever."""
        return os.getpid() == self._owner

    def _check_usable(self) -> None:
        if not self._ours:
            raise UsageError(
                f"the agent belongs to process {self._owner}, not to its forked child {os.getpid()}",
                hint="save in the process that made the Checkpointer",
            )
        if self._closing:
            raise UsageError("the agent is closed")

    @contextmanager
    def _ordering(self, message: Write) -> Iterator[None]:
        """It is outstanding, unless the order cannot be given: nobody would ever answer it."""
        if len(self._outstanding) >= MAX_OUTSTANDING:
            raise UsageError(f"snapshot {message.generation} is one too many: {MAX_OUTSTANDING} are outstanding")
        self._outstanding[message.generation] = message
        try:
            yield
        except BaseException:
            self._outstanding.pop(message.generation, None)
            raise

    def _note_report(self, report: Report) -> None:
        if isinstance(report, Durable | Failed):
            with self._lock:
                self._outstanding.pop(report.generation, None)
        self._tell(report)

    def _tell(self, event: Event) -> None:
        try:
            self._on_event(event)
        except Exception:  # noqa: BLE001  whatever the callback does, whoever calls it must live
            _log.exception("an event of the agent could not be taken: %s", event)

    def _wait_until(self, ended: Callable[[], bool], deadline_s: float) -> list[int]:
        left = Countdown(deadline_s)
        with self._lock:
            while not ended() and (step_s := left.step_s()) > 0:
                self._changed.wait(step_s)
            return sorted(self._outstanding)


class Agent(_Account):
    """An agent in a process of its own. When it dies, another one takes over and is sent everything again."""

    def __init__(self, hello: Hello, on_event: OnEvent, *, program: Sequence[str] = AGENT) -> None:
        """`program` are the interpreter's arguments that run it. ProtocolError where the Hello cannot be sent."""
        super().__init__(hello, on_event)
        self._program = program
        self._slots: dict[int, Slot] = {}
        self._process: AgentProcess | None = None
        self._is_listening = False
        self._deaths = 0
        encode(hello)

    @property
    def pid(self) -> int | None:
        """Its process, while it lives."""
        process = self._process
        return process.pid if process is not None and self._ours else None

    @property
    def alive(self) -> bool:
        return self.pid is not None

    def start(self) -> bool:
        self._check_usable()
        with self._lock:
            if self._is_listening:
                return True
            self._deaths = 0
            reason = self._begin()
            if self._process is not None:
                try:
                    # Daemon: a training that ends without closing must not wait for it.
                    threading.Thread(target=self._listen, name="holdfast-agent", daemon=True).start()
                except RuntimeError as error:  # the limit of threads
                    reason = f"the agent cannot be listened to: {error}"
                    self._drop(self._process, grace_s=0)
                else:
                    self._is_listening = True
                    return True
        self._tell(AgentGone(reason, None, "", self.outstanding, restarted=False))
        return False

    def send_slot(self, index: int, slot: "Slot") -> None:
        self._check_usable()
        with self._lock:
            self._slots[index] = slot
            if self._process is not None:
                self._process.channel.send(encode(NewSlot(index)), slot.descriptor)

    def hint(self, message: Begin | Forget) -> None:
        self._check_usable()
        packet = encode(message)
        with self._lock:
            if self._process is not None:
                self._process.channel.send(packet, droppable=True)

    def write(self, message: Write) -> None:
        self._check_usable()
        packet = encode(message)
        with self._lock, self._ordering(message):
            if self._process is not None:
                self._process.channel.send(packet)

    def close(self, deadline_s: float) -> list[int]:
        if not self._ours:
            return []
        with self._lock:
            if not self._closing:
                self._closing = True
                if self._process is not None:
                    self._process.channel.send(encode(Close()))
        return self._wait_until(lambda: interrupts_are_noted() or not self._is_listening, deadline_s)

    def _begin(self) -> str:
        """Start a process and tell it all that is known; why not, where that was not possible."""
        try:
            process = start_process(self._program)
        except OSError as error:  # no process, no descriptor, no memory
            return f"the agent cannot be started: {error}"
        try:
            process.channel.send(encode(self._hello))
            # One that the arena has dropped is not used any more.
            self._slots = {index: slot for index, slot in self._slots.items() if slot.descriptor >= 0}
            for index, slot in self._slots.items():
                process.channel.send(encode(NewSlot(index)), slot.descriptor)
        except OSError as error:  # a slot that is closed meanwhile
            self._drop(process, grace_s=0)
            return f"the agent cannot be given its memory: {error}"
        for message in self._outstanding.values():
            process.channel.send(encode(message))
        if self._closing:
            process.channel.send(encode(Close()))
        self._process = process
        return ""

    def _listen(self) -> None:
        """The listener's thread, from the first agent's start to the last one's end."""
        try:
            while (process := self._process) is not None:
                reason, said_bye = self._take_reports(process)
                process.end(_GRACE_S)
                self._note_end(process, reason or _cause(process), said_bye=said_bye)
        finally:
            with self._lock:
                self._is_listening = False
                self._changed.notify_all()

    def _take_reports(self, process: AgentProcess) -> tuple[str, bool]:
        """Take what one process says, until it ends: why it must, if it must, and whether it said Bye."""
        said_bye = False
        timeout_s = None if process.watched else _CHECK_S
        try:
            while not process.channel.ended:
                process.channel.poll(process.watched, timeout_s=timeout_s)
                has_ended = process.has_ended()  # asked first: what it said before is in the queue by now
                while (packet := process.channel.receive()) is not None:
                    packet.close()
                    report = decode_report(packet.data)
                    if isinstance(report, Durable):
                        self._deaths = 0
                    said_bye = said_bye or isinstance(report, Bye)
                    self._note_report(report)
                if has_ended:
                    break
        except (ProtocolError, OSError) as error:
            process.kill()
            return f"the agent cannot be understood: {error}", said_bye
        return "", said_bye

    def _note_end(self, process: AgentProcess, reason: str, *, said_bye: bool) -> None:
        with self._lock:
            said, status, outstanding = process.said(), process.status, self.outstanding
            self._drop(process, grace_s=0)
            if self._closing and not outstanding and said_bye:
                return
            self._deaths += 1
            while self._process is None and self._deaths < MAX_DEATHS and not (self._closing and not outstanding):
                failure = self._begin()
                if failure:
                    self._deaths += 1
                    reason = f"{reason}; {failure}"
            restarted = self._process is not None
        self._tell(AgentGone(reason, status, said, outstanding, restarted))

    def _drop(self, process: AgentProcess, *, grace_s: float) -> None:
        process.end(grace_s)
        process.close()
        self._process = None


class ThreadAgent(_Account):
    """The same work in a thread of the training process, where a process cannot be had."""

    def __init__(self, hello: Hello, on_event: OnEvent, *, make_worker: MakeWorker | None = None) -> None:
        super().__init__(hello, on_event)
        self._make_worker = make_worker or _make_worker
        self._work: Work | None = None
        self._is_working = False
        self._waiting: list[Callable[[Work], None]] = []

    @property
    def pid(self) -> int | None:
        """The process it works in, while it does."""
        return self._owner if self.alive else None

    @property
    def alive(self) -> bool:
        return self._ours and self._is_working

    def start(self) -> bool:
        self._check_usable()
        with self._lock:
            if self._work is not None:
                return True
            gone = None
            try:
                self._work = Work(
                    self._hello,
                    self._note_report,
                    self._make_worker,
                    release=lambda slot: None,  # noqa: ARG005  it belongs to the training's arena
                    on_finished=self._note_finished,
                )
            except RuntimeError as error:  # the limit of threads
                reason = f"the agent's thread cannot be started: {error}"
                gone = AgentGone(reason, None, "", self.outstanding, restarted=False)
            else:
                self._is_working = True
                for order in self._waiting:
                    order(self._work)
                self._waiting.clear()
        self._tell(gone or Ready(self._owner))
        return gone is None

    def send_slot(self, index: int, slot: "Slot") -> None:
        self._check_usable()
        with self._lock:
            self._order(lambda work: work.attach(index, lambda: slot))

    def hint(self, message: Begin | Forget) -> None:
        self._check_usable()
        with self._lock:
            if self._work is not None:
                self._work.hint(message)

    def write(self, message: Write) -> None:
        self._check_usable()
        with self._lock, self._ordering(message):
            self._order(lambda work: work.write(message))

    def close(self, deadline_s: float) -> list[int]:
        if not self._ours:
            return []
        with self._lock:
            if not self._closing:
                self._closing = True
                if self._work is not None:
                    self._work.finish()
        return self._wait_until(lambda: interrupts_are_noted() or not self._is_working, deadline_s)

    def _order(self, order: Callable[[Work], None]) -> None:
        if self._work is None:
            self._waiting.append(order)
        else:
            order(self._work)

    def _note_finished(self) -> None:
        self._tell(Bye())
        with self._lock:
            self._is_working = False
            self._changed.notify_all()


def _make_worker(hello: Hello) -> Worker:
    from holdfast.agent.worker import make_worker

    return make_worker(hello)


def _cause(process: AgentProcess) -> str:
    if process.status is None:
        return "the agent is gone"
    if process.status >= 0:
        return f"the agent ended with status {process.status}"
    try:
        name = signal.Signals(-process.status).name
    except ValueError:
        name = f"signal {-process.status}"
    return f"the agent was killed by {name}"
