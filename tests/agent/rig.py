"""Agents to test with, and a look at what is left of them."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.agent.client import Agent, AgentGone, Event
from holdfast.agent.messages import Begin, Bye, Durable, Failed, Forget, Hello, Ready, Write

FAKE_AGENT = Path(__file__).with_name("fake_agent.py")
DEADLINE_S = 60  # for what takes a second; the machine may be busy


class MemorySlot:
    """Memory with a text in it, as a slot has it."""

    def __init__(self, text: str) -> None:
        self.descriptor = os.memfd_create("test-slot", os.MFD_CLOEXEC)
        os.pwrite(self.descriptor, text.encode(), 0)

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class Heard:
    """The events of an agent, as they came."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def wait_for(self, kind: type, count: int = 1) -> Event:
        """The count-th event of that kind."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.all(kind)) >= count, DEADLINE_S), self.events
            return self.all(kind)[count - 1]

    def all(self, kind: type) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


class Rig:
    """An agent with a fake worker, two slots, and what was heard of it."""

    def __init__(self, place: Path, *, point: str = "-", linger_s: float = 50.0, **wishes: object) -> None:
        self.mark = place / "mark"
        self.mark.touch()
        self.log = place / "log"
        self.heard = Heard()
        self.hello = Hello(
            run=str(place / "run"),
            run_id="run",
            attempt=1,
            workers=1,
            keep={"log": str(self.log), **wishes},
            linger_s=linger_s,
        )
        self.agent = Agent(self.hello, self.heard, program=(str(FAKE_AGENT), str(self.mark), point))
        self.slots = [MemorySlot("zero"), MemorySlot("one")]

    def start(self) -> None:
        assert self.agent.start()
        for index, slot in enumerate(self.slots):
            self.agent.send_slot(index, slot)

    def write(self, generation: int) -> None:
        self.agent.write(Write(generation % 2, generation))

    def write_with_hints(self, generation: int) -> None:
        """As an overlapped capture does it, after one that came to nothing."""
        for number in (1, 2):
            step = f"{2 * generation + number:09d}"
            self.agent.hint(Begin(generation % 2, f"{step}-e000-20260101T000000Z-a0001", 100, attempt=1))
            if number == 1:
                self.agent.hint(Forget(generation % 2))
        self.agent.write(Write(generation % 2, generation, begun=True))

    def lines(self, word: str) -> list[str]:
        """The worker's lines that begin with the word."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if line.split()[0] == word]

    def processes(self) -> list[int]:
        """Every process, also a zombie's, that was started for this rig, or is a child of this process."""
        return processes_of(str(self.mark))

    def close(self) -> None:
        left = self.agent.close(DEADLINE_S)
        for slot in self.slots:
            slot.close()
        assert left == []


@contextmanager
def rig(place: Path, **options: object) -> Iterator[Rig]:
    """A started one; nothing is left of it afterwards."""
    made = Rig(place, **options)
    made.start()
    try:
        yield made
    finally:
        made.close()
        assert made.processes() == []


def processes_of(mark: str) -> list[int]:
    """The processes with that argument; those that have ended but were not reaped have none, and are not seen."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark.encode() in arguments and b"fake_agent.py" in b" ".join(arguments):
                found.append(int(entry.name))
    return found


def state_of(pid: int) -> str:
    """`R`, `S`, `T`, `Z`, …; empty for none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def children() -> set[int]:
    """Of this process, zombies included."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that ended in between has no children
            found |= set(map(int, (task / "children").read_text().split()))
    return found


def until(condition: Callable[[], object]) -> None:
    """Wait for it; fails where it does not come."""
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s, "it did not come"
        time.sleep(0.01)


__all__ = [
    "DEADLINE_S",
    "FAKE_AGENT",
    "Heard",
    "MemorySlot",
    "Rig",
    "children",
    "processes_of",
    "rig",
    "state_of",
    "until",
    "AgentGone",
    "Bye",
    "Durable",
    "Failed",
    "Ready",
]
