"""The agent's process: takes orders until the training process says Close or is gone, finishes them, and ends.

Nothing stops it but its orders, its deadline and SIGKILL: it has a session of its own and ignores every signal that a
terminal or a scheduler sends to a job. It never outlives the training process by more than a minute.
"""

import os
import signal
import socket
from collections.abc import Callable

from holdfast.agent.channel import Channel, Packet
from holdfast.agent.messages import (
    LINGER_S,
    PROTOCOL,
    Ahead,
    Begin,
    Bye,
    Close,
    Forget,
    Hello,
    NewSlot,
    Progress,
    Ready,
    Report,
    Warning,  # noqa: A004
    Write,
    decode_order,
    encode_report,
)
from holdfast.agent.signals import JOB_SIGNALS
from holdfast.agent.work import MakeWorker, Work, Worker
from holdfast.core.countdown import Countdown
from holdfast.core.errors import ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.tiers.slot import Slot

__all__ = ["BAD_MESSAGE", "DONE", "UNEXPECTED", "UNFINISHED", "run", "serve"]

DONE = 0
BAD_MESSAGE = 65
UNEXPECTED = 70
UNFINISHED = 75

_GIVE_UP_S = 5.0
_CHECK_S = 1.0

AttachSlot = Callable[[int], "Slot"]


def run(arguments: list[str], make_worker: MakeWorker | None = None, attach_slot: AttachSlot | None = None) -> None:
    """`python -m holdfast.agent DESCRIPTOR PID`: does not return."""
    code = UNEXPECTED
    try:
        _ignore_signals()
        channel = Channel(socket.socket(fileno=int(arguments[0])))
        make = _forwarding_log(make_worker or _make_worker, channel)
        code = serve(channel, int(arguments[1]), make, attach_slot or _attach_slot)
    except BaseException:  # noqa: BLE001  whatever it is, the training process reads it in the report of the loss
        import traceback

        traceback.print_exc()
    # Not by way of the interpreter's end: a thread that hangs in the storage would hold that up.
    os._exit(code)


def serve(channel: Channel, trainer_pid: int, make_worker: MakeWorker, attach_slot: AttachSlot) -> int:
    """Do what comes through the channel; the exit status."""
    trainer = _Trainer(trainer_pid)
    try:
        return _Service(channel, trainer, make_worker, attach_slot).run()
    finally:
        trainer.close()


def _make_worker(hello: Hello) -> Worker:
    from holdfast.agent.worker import make_worker

    return make_worker(hello)


def _attach_slot(descriptor: int) -> "Slot":
    from holdfast.tiers.slot import Slot

    return Slot.attach(descriptor)


def _ignore_signals() -> None:
    for number in JOB_SIGNALS:
        try:
            signal.signal(number, signal.SIG_IGN)
        except OSError:
            pass  # reserved by the C library


class _Trainer:
    """The training process, as its child sees it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        try:
            self._descriptor: int | None = os.pidfd_open(pid)
        except (OSError, AttributeError):
            self._descriptor = None  # before Linux 5.3, or gone already
        self.gone = False
        self.check()

    def check(self) -> None:
        # A child is given to another parent when its own is gone; numbers of processes are used again, this is not.
        self.gone = self.gone or os.getppid() != self._pid

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    @property
    def watched(self) -> list[int]:
        """What to poll for its end."""
        return [] if self._descriptor is None or self.gone else [self._descriptor]

    @property
    def check_s(self) -> float | None:
        """How often to look, where the end cannot be polled."""
        return _CHECK_S if self._descriptor is None and not self.gone else None


class _Service:
    def __init__(self, channel: Channel, trainer: _Trainer, make_worker: MakeWorker, attach_slot: AttachSlot) -> None:
        self._channel = channel
        self._trainer = trainer
        self._make_worker = make_worker
        self._attach_slot = attach_slot
        self._work: Work | None = None
        self._linger_s = LINGER_S
        self._listening = True

    def run(self) -> int:
        code = DONE
        self._report(Ready(os.getpid()))
        try:
            self._listen()
        except ProtocolError as error:
            import sys

            print(f"holdfast agent: {error.message}", file=sys.stderr)  # noqa: T201  read by the training process
            code = BAD_MESSAGE
        if self._work is None:
            return code
        self._work.finish()
        return code if self._finish(self._work) else UNFINISHED

    def _listen(self) -> None:
        while True:
            # Also from a training process that is gone, and was before this one began: what it sent is in the queue. A
            # forked child of it may hold the other end open for hours, so the end of the queue is not waited for.
            self._take_orders()
            if self._abandoned or not self._listening:
                return
            self._channel.poll(self._trainer.watched, timeout_s=self._trainer.check_s)
            self._trainer.check()

    @property
    def _abandoned(self) -> bool:
        return self._channel.ended or self._trainer.gone

    def _take_orders(self) -> None:
        while self._listening and (packet := self._channel.receive()) is not None:
            try:
                self._take(packet)
            finally:
                packet.close()

    def _take(self, packet: Packet) -> None:
        order = decode_order(packet.data)
        if packet.descriptors and not (isinstance(order, NewSlot) and len(packet.descriptors) == 1):
            raise ProtocolError(f"{len(packet.descriptors)} descriptors came with {type(order).__name__}")
        if isinstance(order, Hello):
            self._begin(order)
            return
        if self._work is None:
            raise ProtocolError(f"{type(order).__name__} came before Hello")
        match order:
            case NewSlot():
                self._take_slot(self._work, order, packet)
            case Begin() | Forget():
                self._work.hint(order)
            case Write():
                self._work.write(order)
            case Close():
                self._listening = False

    def _begin(self, hello: Hello) -> None:
        if self._work is not None or hello.protocol != PROTOCOL:
            raise ProtocolError(f"Hello of protocol {hello.protocol}, expected one of protocol {PROTOCOL}")
        self._linger_s = hello.linger_s
        os.nice(hello.nice)
        self._work = Work(
            hello,
            self._report,
            self._make_worker,
            release=lambda slot: slot.close(),
            on_finished=self._channel.wake,
        )

    def _take_slot(self, work: Work, order: NewSlot, packet: Packet) -> None:
        if packet.descriptors:
            descriptor = packet.descriptors.pop()
            work.attach(order.index, lambda: self._attach_slot(descriptor))
        else:
            work.attach(order.index, _no_descriptor)

    def _report(self, report: Report) -> None:
        _send(self._channel, report)

    def _finish(self, work: Work) -> bool:
        """Whether all that was ordered is done, also where the training process is gone and time is short."""
        left: Countdown | None = None
        while not work.finished:
            if left is None and self._abandoned:
                left = Countdown(self._linger_s)
            step_s = _CHECK_S if left is None else left.step_s()
            if step_s <= 0:
                work.give_up(_GIVE_UP_S)
                return False
            self._wait(step_s)
        self._report(Bye())
        while not (self._channel.idle or self._abandoned):
            self._wait(_CHECK_S)
        return True

    def _wait(self, timeout_s: float) -> None:
        self._channel.poll(self._trainer.watched, timeout_s=timeout_s)
        self._trainer.check()
        self._drop_packets()

    def _drop_packets(self) -> None:
        """Nothing is taken any more; this finds out whether the other end is closed."""
        try:
            while (packet := self._channel.receive()) is not None:
                packet.close()
        except ProtocolError:
            pass


def _no_descriptor() -> "Slot":
    raise ProtocolError(
        "its descriptor did not come with it", hint="the limit of open files may be too low (ulimit -n)"
    )


def _send(channel: Channel, report: Report) -> None:
    """From any thread."""
    for packet in encode_report(report):
        channel.send(packet, droppable=isinstance(report, Ahead | Progress | Warning))


def _forwarding_log(make_worker: MakeWorker, channel: Channel) -> MakeWorker:
    """What the work logs is read in the training process, not here."""

    def make(hello: Hello) -> Worker:
        import logging  # with what the worker needs: not before the agent listens

        class Forwarding(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                _send(channel, Warning(record.getMessage()))

        logger = logging.getLogger("holdfast")
        if not logger.handlers:
            logger.propagate = False
            logger.addHandler(Forwarding(logging.WARNING))
        return make_worker(hello)

    return make
