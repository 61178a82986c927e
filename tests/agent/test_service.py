"""The agent's loop and the work, within this process: what a packet does, and what is answered."""

import errno
import os
import threading

import pytest

from holdfast.agent import messages
from holdfast.agent.channel import Channel, channel_pair
from holdfast.agent.client import ThreadAgent
from holdfast.agent.main import BAD_MESSAGE, DONE, UNFINISHED, serve
from holdfast.agent.messages import (
    Bye,
    Close,
    Durable,
    Failed,
    Hello,
    NewSlot,
    Ready,
    Write,
    decode_report,
    encode,
)
from holdfast.core.errors import FencedError, SaveFailedError, StorageError, UsageError
from tests.agent.fake_agent import FakeSlot
from tests.agent.rig import DEADLINE_S, AgentGone, Heard, Rig, children, until
from tests.descriptors import open_descriptors as descriptors

HELLO = Hello(run="/run", run_id="run", attempt=1, workers=1, keep={})


class Worker:
    """Does as it is told by the test."""

    def __init__(self, hello=None):
        self.texts = []
        self.closed = 0
        self.hang = threading.Event()
        self.hang.set()
        self.silent = False

    def write(self, slot, message, report):
        self.hang.wait(DEADLINE_S)
        self.texts.append(slot.text())
        if not self.silent:
            report(Durable(message.generation, "id"))

    def close(self):
        self.closed += 1


class Served:
    """A service in a thread, and the training's end of its channel."""

    def __init__(self, make_worker=None, trainer_pid=None):
        self.worker = Worker()
        ours, theirs = channel_pair()
        self.channel, self._theirs = Channel(ours), Channel(theirs)
        arguments = (self._theirs, trainer_pid or os.getppid(), make_worker or (lambda _: self.worker), FakeSlot)
        self.code = None
        self.thread = threading.Thread(target=lambda: setattr(self, "code", serve(*arguments)))
        self.thread.start()

    def end(self):
        """The exit status, and what was reported."""
        self.thread.join(DEADLINE_S)
        reports = []
        while (packet := self.channel.receive()) is not None:
            reports.append(decode_report(packet.data))
        self.channel.close()
        self._theirs.close()
        return self.code, reports


@pytest.fixture
def memory():
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC)
    os.pwrite(descriptor, b"snapshot", 0)
    yield descriptor
    os.close(descriptor)


def test_orders_are_done_and_the_end_is_said(memory):
    before = descriptors()
    served = Served()
    for packet, descriptor in (
        (encode(HELLO), None),
        (encode(NewSlot(0)), memory),
        (encode(NewSlot(0)), memory),
        (encode(Write(0, 1)), None),
        (encode(Close()), None),
    ):
        served.channel.send(packet, descriptor)

    assert served.end() == (DONE, [Ready(os.getpid()), Durable(1, "id"), Bye()])
    assert served.worker.texts == ["snapshot"]
    assert served.worker.closed == 1
    assert descriptors() == before


@pytest.mark.parametrize(
    ("packets", "what"),
    [
        ([(Write(0, 1), False)], "Write came before Hello"),
        ([(Close(), False)], "Close came before Hello"),
        ([(HELLO, False), (HELLO, False)], "Hello of protocol 3"),
        ([(Hello(run="/", run_id="r", attempt=1, workers=1, keep={}, protocol=4), False)], "Hello of protocol 4"),
        ([(HELLO, True)], "1 descriptors came with Hello"),
        ([(HELLO, False), (Write(0, 1), True)], "1 descriptors came with Write"),
        ([(Bye(), False)], "makes no sense"),
    ],
)
def test_messages_out_of_place_end_it_cleanly(memory, packets, what, capsys):
    before = descriptors()
    served = Served()
    for message, with_descriptor in packets:
        served.channel.send(encode(message), memory if with_descriptor else None)

    code, _ = served.end()

    assert code == BAD_MESSAGE
    assert what in capsys.readouterr().err
    assert descriptors() == before


def test_a_slot_without_its_descriptor_fails_the_snapshots_in_it_and_says_why(memory):
    served = Served()
    for message in (HELLO, NewSlot(0), Write(0, 1), Close()):
        served.channel.send(encode(message))

    code, reports = served.end()

    assert code == DONE
    assert next(report for report in reports if isinstance(report, Failed)).kind == "ProtocolError"
    [warning] = [report for report in reports if isinstance(report, messages.Warning)]
    assert "its descriptor did not come with it" in warning.message
    assert "ulimit -n" in warning.message


def test_a_worker_that_cannot_be_made_is_tried_again_and_fails_the_snapshot(memory):
    tries = []

    def make(hello):
        tries.append(hello)
        if len(tries) < 3:
            raise FencedError("a newer attempt has started")
        return Worker()

    served = Served(make)
    served.channel.send(encode(HELLO))
    served.channel.send(encode(NewSlot(0)), memory)
    for message in (Write(0, 1), Write(0, 2), Close()):
        served.channel.send(encode(message))

    code, reports = served.end()

    assert code == DONE
    assert reports[1:] == [Failed(1, "FencedError", "a newer attempt has started"), Durable(2, "id"), Bye()]


def test_a_snapshot_of_which_the_worker_says_nothing_has_failed(memory):
    served = Served()
    served.worker.silent = True
    served.channel.send(encode(HELLO))
    served.channel.send(encode(NewSlot(0)), memory)
    for message in (Write(0, 1), Close()):
        served.channel.send(encode(message))

    _, reports = served.end()

    assert isinstance(reports[1].error(), SaveFailedError)


def test_where_the_training_is_gone_before_it_begins_what_was_sent_is_done(memory):
    served = Served(trainer_pid=1 if os.getppid() != 1 else 2)
    code, reports = served.end()

    assert (code, reports) == (DONE, [Ready(os.getpid())])


def test_where_the_work_hangs_it_gives_up_after_its_time(memory):
    served = Served()
    served.worker.hang.clear()
    served.channel.send(encode(Hello(run="/", run_id="r", attempt=1, workers=1, keep={}, linger_s=0.1)))
    served.channel.send(encode(NewSlot(0)), memory)
    served.channel.send(encode(Write(0, 1)))
    served.channel._end.shutdown(2)

    served.thread.join(DEADLINE_S)

    assert served.code == UNFINISHED
    assert served.worker.closed == 1
    served.worker.hang.set()
    until(lambda: served.worker.closed == 2)
    served.end()


class TextSlot:
    def __init__(self, text):
        self._text = text

    def text(self):
        return self._text


def test_a_thread_does_the_same():
    heard, worker = Heard(), Worker()
    agent = ThreadAgent(HELLO, heard, make_worker=lambda _: worker)
    agent.send_slot(0, TextSlot("zero"))
    agent.write(Write(0, 1))
    assert not agent.alive

    assert agent.start()
    assert agent.start()
    agent.send_slot(1, TextSlot("one"))
    agent.write(Write(1, 2))
    heard.wait_for(Durable, 2)
    assert (agent.alive, agent.pid, agent.outstanding) == (True, os.getpid(), ())

    assert agent.close(DEADLINE_S) == []
    assert agent.close(DEADLINE_S) == []
    assert not agent.alive
    assert worker.texts == ["zero", "one"]
    assert worker.closed == 1
    assert isinstance(heard.events[-1], Bye)
    with pytest.raises(UsageError, match="closed"):
        agent.write(Write(0, 3))


class StaleWorker(Worker):
    """One whose run was mounted anew, so that what it has open is not known any more."""

    def write(self, slot, message, report):
        report(Failed.of(message.generation, StorageError("run: Stale file handle", errno=errno.ESTALE)))


def test_a_run_that_the_file_server_no_longer_knows_is_opened_again_by_the_next_snapshot():
    stale, good = StaleWorker(), Worker()
    workers = iter([stale, good])
    heard = Heard()
    agent = ThreadAgent(HELLO, heard, make_worker=lambda _: next(workers))
    agent.start()
    agent.send_slot(0, TextSlot("zero"))

    agent.write(Write(0, 1))
    agent.write(Write(0, 2))

    assert heard.wait_for(Failed).generation == 1
    assert heard.wait_for(Durable).generation == 2
    assert agent.close(DEADLINE_S) == []
    assert (stale.closed, good.closed) == (1, 1)


def test_a_thread_whose_storage_hangs_says_what_is_not_durable():
    heard, worker = Heard(), Worker()
    worker.hang.clear()
    agent = ThreadAgent(HELLO, heard, make_worker=lambda _: worker)
    agent.start()
    agent.send_slot(0, TextSlot("zero"))
    agent.write(Write(0, 1))
    agent.write(Write(0, 2))
    with pytest.raises(UsageError, match="one too many"):
        agent.write(Write(0, 3))

    assert agent.close(0.05) == [1, 2]

    worker.hang.set()
    assert agent.close(DEADLINE_S) == []


def test_where_no_thread_can_be_had_that_is_said(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    heard = Heard()
    monkeypatch.setattr(threading.Thread, "start", refuse)

    assert not ThreadAgent(HELLO, heard, make_worker=Worker).start()

    assert "can't start new thread" in heard.wait_for(AgentGone).message


def test_the_agent_that_nobody_can_listen_to_is_ended(monkeypatch, tmp_path):
    made = Rig(tmp_path)
    before = descriptors()

    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)

    assert not made.agent.start()

    assert "cannot be listened to" in made.heard.wait_for(AgentGone).reason
    assert descriptors() == before
    assert children() == set()
