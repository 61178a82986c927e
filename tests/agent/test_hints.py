"""What the agent's thread makes of hints: it goes on with what is being copied while nobody wants another thing."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.agent.messages import Begin, Durable, Forget, Hello, Report, Write
from holdfast.agent.work import Work

HELLO = Hello(run="/", run_id="r", attempt=1, workers=1, keep={})
DEADLINE_S = 60


class Recording:
    """A worker that asks whether to go on when it is let go."""

    def __init__(self) -> None:
        self.did: list[tuple[Any, ...]] = []
        self.is_at_it = threading.Event()
        self.go = threading.Event()
        self.has_asked = threading.Event()

    def begin(self, slot: str, message: Begin, report: Callable[[Report], None], goes_on: Callable[[], bool]) -> None:
        self.is_at_it.set()
        assert self.go.wait(DEADLINE_S)
        self.did.append(("begin", slot, message.id, goes_on()))
        self.has_asked.set()

    def forget(self) -> None:
        self.did.append(("forget",))

    def write(self, slot: str, message: Write, report: Callable[[Report], None]) -> None:
        self.did.append(("write", slot, message.generation))
        report(Durable(message.generation, "id"))

    def close(self) -> None:
        self.did.append(("close",))


@pytest.fixture
def worker() -> Recording:
    return Recording()


@pytest.fixture
def work(worker: Recording) -> Work:
    made = Work(HELLO, lambda report: None, lambda hello: worker, release=lambda slot: None, on_finished=lambda: None)
    for index in range(2):
        made.attach(index, lambda index=index: f"slot {index}")
    return made


BEGIN = Begin(0, "000000001-e000-20260101T000000Z-a0001", 10, attempt=1)


@pytest.mark.parametrize(
    ("order", "goes_on"),
    [
        (lambda work: None, True),
        (lambda work: work.write(Write(0, 1)), True),
        (lambda work: work.write(Write(1, 1)), False),
        (lambda work: work.hint(Begin(0, BEGIN.id, 10, attempt=1)), False),
        (lambda work: work.hint(Forget(0)), False),
        (lambda work: work.attach(1, lambda: "another"), False),
        (lambda work: work.finish(), False),
    ],
    ids=["nothing", "its own", "another slot's", "the next", "to forget it", "another memory", "the end"],
)
def test_what_is_begun_goes_on_until_an_order_comes_that_is_not_for_it(work, worker, order, goes_on):
    work.hint(BEGIN)
    assert worker.is_at_it.wait(DEADLINE_S)
    order(work)
    worker.go.set()
    assert worker.has_asked.wait(DEADLINE_S)
    work.finish()

    assert work.wait(DEADLINE_S)
    assert worker.did[0] == ("begin", "slot 0", BEGIN.id, goes_on)
    assert worker.did[-1] == ("close",)


def test_hints_are_taken_in_their_order_with_the_others(work, worker):
    worker.go.set()
    for order in (BEGIN, Forget(0), Begin(1, BEGIN.id, 10, attempt=1)):
        work.hint(order)
    work.write(Write(1, 7))
    work.finish()

    assert work.wait(DEADLINE_S)
    assert [did[0] for did in worker.did] == ["begin", "forget", "begin", "write", "close"]
    assert worker.did[3] == ("write", "slot 1", 7)


def test_a_hint_that_cannot_be_followed_ends_nothing(work, worker, monkeypatch):
    def fail(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(worker, "begin", fail)
    work.hint(BEGIN)
    work.hint(Begin(5, BEGIN.id, 10, attempt=1))  # of a slot that nobody has sent
    work.write(Write(0, 1))
    work.finish()

    assert work.wait(DEADLINE_S)
    assert worker.did == [("write", "slot 0", 1), ("close",)]
