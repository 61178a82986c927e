"""A program that is the agent in all but its work: the real loop, with a worker that writes to a log.

    fake_agent.py MARK POINT DESCRIPTOR PID

MARK tells this test's processes from others. At POINT (`receive Write 2`, `send Durable 1`, `sent Durable 1`, or `-`)
it kills itself, once: while the file MARK exists.
"""

import logging
import os
import signal
import sys
import time
from pathlib import Path

from holdfast.agent import main
from holdfast.agent.channel import Channel
from holdfast.agent.messages import Ahead, Durable, Failed, Progress, decode_order, decode_report
from holdfast.core.errors import NoSpaceError


class FakeSlot:
    """The text that the training put into the memory."""

    def __init__(self, descriptor):
        self.descriptor = descriptor

    def text(self):
        return os.pread(self.descriptor, 100, 0).decode()

    def close(self):
        os.close(self.descriptor)


class FakeWorker:
    """Writes a line to `log` for everything; waits for `gate` to exist, fails or hangs as `keep` of Hello says."""

    def __init__(self, hello):
        self.wishes = hello.keep
        self.log("make")

    def log(self, line):
        with Path(self.wishes["log"]).open("a") as file:
            file.write(line + "\n")

    def begin(self, slot, message, report, goes_on):
        self.log(f"ahead {message.id} {goes_on()}")
        report(Ahead(message.index, 1))

    def forget(self):
        self.log("forget")

    def write(self, slot, message, report):
        generation = message.generation
        if self.wishes.get("raise"):
            raise ZeroDivisionError("somewhere deep")
        if "warn" in self.wishes:
            logging.getLogger("holdfast").warning("%s", self.wishes["warn"])
        self.log(f"begin {generation}")
        while "gate" in self.wishes and not Path(self.wishes["gate"]).exists():
            time.sleep(0.01)
        for _ in range(int(self.wishes.get("flood", 0))):
            report(Progress(generation, 1))
        if self.wishes.get("fail"):
            report(Failed.of(generation, NoSpaceError("full", hint="remove something", errno=28)))
            return
        report(Progress(generation, 1))
        self.log(f"durable {generation} {slot.text()}")
        report(Durable(generation, f"id-{generation}"))

    def close(self):
        self.log("close")


def kill_at(mark, point):
    """Have this process killed when the n-th message of a kind is about to be sent, was sent, or was received."""
    if point == "without pidfd 0":
        del os.pidfd_open
    if point in ("-", "without pidfd 0"):
        return
    moment, kind, count = point.split()
    seen = 0

    def pass_by(now, message):
        nonlocal seen
        if (now, type(message).__name__) == (moment, kind):
            seen += 1
            if seen == int(count) and os.path.exists(mark):
                os.unlink(mark)
                os.kill(os.getpid(), signal.SIGKILL)

    def decoded(data):
        for decode in (decode_order, decode_report):
            try:
                return decode(data)
            except ValueError:
                pass
        return None

    send, receive = Channel.send, Channel.receive

    def killing_send(self, data, descriptor=None, **options):
        pass_by("send", decoded(data))
        send(self, data, descriptor, **options)
        pass_by("sent", decoded(data))

    def killing_receive(self):
        packet = receive(self)
        if packet is not None:
            pass_by("receive", decoded(packet.data))
        return packet

    Channel.send, Channel.receive = killing_send, killing_receive


if __name__ == "__main__":
    mark, point, *rest = sys.argv[1:]
    kill_at(mark, point)
    main.run(rest, FakeWorker, FakeSlot)
