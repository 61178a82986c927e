"""An agent in a real process: how it starts, lives, dies and ends."""

import gc
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from holdfast.agent.client import MAX_DEATHS, Agent, ThreadAgent
from holdfast.agent.main import BAD_MESSAGE
from holdfast.agent.messages import Hello, Write
from holdfast.agent.messages import Warning as Notice
from holdfast.core.errors import NoSpaceError, ProtocolError, UsageError
from tests.agent.fake_agent import FakeWorker
from tests.agent.rig import (
    DEADLINE_S,
    AgentGone,
    Bye,
    Durable,
    Failed,
    Heard,
    Ready,
    Rig,
    children,
    rig,
    state_of,
    until,
)
from tests.descriptors import open_descriptors as descriptors


def test_snapshots_become_durable_in_the_order_they_were_given(tmp_path):
    with rig(tmp_path) as made:
        made.write(1)
        made.write(2)
        made.heard.wait_for(Durable, 2)
        made.write(3)
        made.heard.wait_for(Durable, 3)

    assert made.heard.all(Durable) == [Durable(1, "id-1"), Durable(2, "id-2"), Durable(3, "id-3")]
    assert made.lines("durable") == ["durable 1 one", "durable 2 zero", "durable 3 one"]
    assert made.lines("close") == ["close"]
    assert isinstance(made.heard.events[-1], Bye)


def test_a_slot_can_be_replaced_between_snapshots(tmp_path):
    with rig(tmp_path) as made:
        made.write(1)
        made.heard.wait_for(Durable)
        made.agent.send_slot(1, made.slots[0])
        made.write(3)
        made.heard.wait_for(Durable, 2)

    assert made.lines("durable") == ["durable 1 one", "durable 3 zero"]


def test_it_is_light_and_says_how_light(tmp_path, capsys):
    heard = Heard()
    agent = Agent(Rig(tmp_path).hello, heard)
    begin_s = time.perf_counter()

    agent.start()
    heard.wait_for(Ready)
    ready_s = time.perf_counter() - begin_s
    status = Path(f"/proc/{agent.pid}/status").read_text()
    maps = Path(f"/proc/{agent.pid}/maps").read_text()
    agent.close(DEADLINE_S)

    resident_kb = int(status.split("VmRSS:")[1].split()[0])
    with capsys.disabled():
        print(f"\nagent: ready after {ready_s * 1e3:.0f} ms, {resident_kb / 1024:.1f} MB resident")
    assert resident_kb < 40 * 1024
    assert not [name for name in ("numpy", "torch") if f"/{name}/" in maps]


def test_it_has_a_session_of_its_own_and_holds_nothing_of_the_trainings(tmp_path):
    mine = os.memfd_create("not-for-the-agent")
    os.set_inheritable(mine, True)

    with rig(tmp_path) as made:
        made.heard.wait_for(Ready)
        pid = made.agent.pid
        open_files = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
        assert os.getsid(pid) == pid
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        assert not any("not-for-the-agent" in link for link in open_files)
    os.close(mine)


def test_signals_to_the_job_do_not_reach_it_at_its_start_or_later(tmp_path):
    numbers = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE}
    numbers -= {signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])

    with rig(tmp_path) as made:
        for _ in range(2):
            for number in numbers:
                os.kill(made.agent.pid, number)
            made.heard.wait_for(Ready)
        made.write(1)
        made.heard.wait_for(Durable)

    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == blocked
    assert not made.heard.all(AgentGone)


def test_failures_come_back_as_the_errors_they_were(tmp_path):
    with rig(tmp_path, fail=True) as made:
        made.write(1)
        error = made.heard.wait_for(Failed).error()

    assert isinstance(error, NoSpaceError)
    assert (error.message, error.hint, error.errno) == ("full", "remove something", 28)
    assert made.agent.outstanding == ()


def test_a_fault_in_the_work_is_answered_and_the_agent_lives(tmp_path):
    with rig(tmp_path, **{"raise": True}) as made:
        made.write(1)
        made.write(2)
        made.heard.wait_for(Failed, 2)

    assert made.heard.all(Failed)[0].message == "unexpected ZeroDivisionError: somewhere deep"
    assert not made.heard.all(AgentGone)


def test_two_are_outstanding_and_no_more(tmp_path):
    with rig(tmp_path, gate=str(tmp_path / "gate")) as made:
        made.write(1)
        made.write(2)
        assert [order.generation for order in made.agent.outstanding] == [1, 2]
        with pytest.raises(UsageError, match="one too many"):
            made.write(3)
        (tmp_path / "gate").touch()


def test_closing_says_what_is_not_durable_and_the_agent_goes_on(tmp_path):
    with rig(tmp_path, gate=str(tmp_path / "gate")) as made:
        made.write(1)
        made.write(2)
        assert made.agent.close(0.05) == [1, 2]
        with pytest.raises(UsageError, match="closed"):
            made.write(3)
        (tmp_path / "gate").touch()
        assert made.agent.close(DEADLINE_S) == []

    assert len(made.lines("durable")) == 2


def test_an_agent_that_dies_is_replaced_and_the_next_one_writes_what_is_outstanding(tmp_path):
    with rig(tmp_path, gate=str(tmp_path / "gate")) as made:
        made.write(1)
        made.write(2)
        until(lambda: made.lines("begin"))
        first = made.agent.pid
        os.kill(first, signal.SIGKILL)
        gone = made.heard.wait_for(AgentGone)
        (tmp_path / "gate").touch()
        made.heard.wait_for(Durable, 2)

    assert (gone.status, gone.restarted) == (-signal.SIGKILL, True)
    assert gone.message == "the agent was killed by SIGKILL; another one has taken over"
    assert [order.generation for order in gone.outstanding] == [1, 2]
    assert made.lines("durable") == ["durable 1 one", "durable 2 zero"]
    assert len(made.heard.all(Ready)) == 2


def test_one_that_dies_after_a_slot_was_dropped_is_replaced_with_the_others(tmp_path):
    with rig(tmp_path) as made:
        made.heard.wait_for(Ready)
        made.slots[1].close()

        os.kill(made.agent.pid, signal.SIGKILL)
        gone = made.heard.wait_for(AgentGone)
        made.write(2)
        made.heard.wait_for(Durable)

    assert gone.restarted
    assert made.lines("durable") == ["durable 2 zero"]


def test_one_that_dies_in_closing_is_replaced_too(tmp_path):
    with rig(tmp_path, gate=str(tmp_path / "gate")) as made:
        made.write(1)
        until(lambda: made.lines("begin"))
        assert made.agent.close(0.05) == [1]
        os.kill(made.agent.pid, signal.SIGKILL)
        made.heard.wait_for(AgentGone)
        (tmp_path / "gate").touch()
        assert made.agent.close(DEADLINE_S) == []

    assert made.lines("durable") == ["durable 1 one"]


def test_after_three_deaths_without_a_checkpoint_it_is_given_up_and_a_thread_takes_over(tmp_path):
    made = Rig(tmp_path, gate=str(tmp_path / "gate"))
    made.start()
    made.write(1)
    for count in range(1, MAX_DEATHS + 1):
        made.heard.wait_for(Ready, count)
        os.kill(made.agent.pid, signal.SIGKILL)
        gone = made.heard.wait_for(AgentGone, count)
        assert gone.restarted == (count < MAX_DEATHS)

    made.write(2)
    assert not made.agent.alive
    assert made.agent.close(DEADLINE_S) == [1, 2]

    (tmp_path / "gate").touch()
    heard = Heard()
    thread = ThreadAgent(made.hello, heard, make_worker=FakeWorker)
    thread.send_slot(1, TextSlot("from memory"))
    for order in made.agent.outstanding[:1]:
        thread.write(order)
    assert thread.start()
    assert thread.close(DEADLINE_S) == []
    assert heard.all(Durable) == [Durable(1, "id-1")]
    for slot in made.slots:
        slot.close()


class TextSlot:
    """A slot of the same process."""

    def __init__(self, text: str) -> None:
        self._text = text

    def text(self) -> str:
        return self._text


def test_a_checkpoint_between_deaths_makes_them_count_from_the_start(tmp_path):
    with rig(tmp_path) as made:
        for count in range(1, MAX_DEATHS + 2):
            made.write(count)
            made.heard.wait_for(Durable, count)
            os.kill(made.agent.pid, signal.SIGKILL)
            assert made.heard.wait_for(AgentGone, count).restarted


def test_one_that_was_given_up_can_be_started_again_with_all_that_is_outstanding(tmp_path):
    made = Rig(tmp_path, gate=str(tmp_path / "gate"))
    made.start()
    made.write(1)
    for count in range(1, MAX_DEATHS + 1):
        made.heard.wait_for(Ready, count)
        os.kill(made.agent.pid, signal.SIGKILL)
        made.heard.wait_for(AgentGone, count)
    (tmp_path / "gate").touch()
    until(lambda: not made.agent._is_listening)

    assert made.agent.start()

    assert made.heard.wait_for(Durable) == Durable(1, "id-1")
    made.close()


def test_a_stopped_agent_delays_nothing_and_goes_on(tmp_path):
    with rig(tmp_path) as made:
        made.heard.wait_for(Ready)
        os.kill(made.agent.pid, signal.SIGSTOP)
        until(lambda: state_of(made.agent.pid) == "T")
        made.write(1)
        made.write(2)
        assert made.agent.close(0.05) == [1, 2]
        assert not made.heard.all(AgentGone)
        os.kill(made.agent.pid, signal.SIGCONT)
        made.heard.wait_for(Durable, 2)


@pytest.mark.parametrize(
    "packet",
    [b"\x00\xff\x80", b"{}", b'{"type":"Destroy"}', b'{"type":"Close","now":1}', b"[" * 60_000, b"x" * 70_000],
    ids=["bytes", "nothing", "unknown", "unknown field", "deep", "too long"],
)
def test_a_message_that_makes_no_sense_ends_the_agent_cleanly_after_what_it_had_taken(tmp_path, packet):
    with rig(tmp_path, gate=str(tmp_path / "gate")) as made:
        made.write(1)
        until(lambda: made.lines("begin"))
        made.agent._process.channel.send(packet)
        (tmp_path / "gate").touch()
        gone = made.heard.wait_for(AgentGone)

        assert (gone.status, gone.restarted) == (BAD_MESSAGE, True)
        assert gone.said.startswith("holdfast agent: a message ")
        assert "Traceback" not in gone.said
        assert made.lines("durable") == ["durable 1 one"]
        assert made.lines("close") == ["close"]


def test_an_agent_that_talks_nonsense_is_ended(tmp_path):
    nonsense = "import socket, sys, time; socket.socket(fileno=int(sys.argv[1])).send(b'{');\ntime.sleep(3600)"
    heard = Heard()
    agent = Agent(Rig(tmp_path).hello, heard, program=("-c", nonsense))

    agent.start()
    gone = heard.wait_for(AgentGone, MAX_DEATHS)

    assert "cannot be understood: a message of 1 bytes makes no sense" in gone.reason
    assert not gone.restarted
    assert agent.close(DEADLINE_S) == []
    assert children() == set()


def test_an_agent_that_cannot_begin_says_why(tmp_path):
    heard = Heard()
    agent = Agent(Rig(tmp_path).hello, heard, program=("-m", "holdfast.no_such_module"))

    agent.start()

    gone = heard.wait_for(AgentGone)
    assert gone.status == 1
    assert "no_such_module" in gone.said
    heard.wait_for(AgentGone, MAX_DEATHS)
    agent.close(DEADLINE_S)


@pytest.mark.parametrize("executable", ["", "/nowhere/python"])
def test_where_no_process_can_be_had_that_is_said_and_nothing_is_left(tmp_path, monkeypatch, executable):
    made = Rig(tmp_path)
    before = descriptors()
    monkeypatch.setattr(sys, "executable", executable)

    assert not made.agent.start()

    assert not made.agent.alive
    assert "cannot be started" in made.heard.wait_for(AgentGone).reason
    assert descriptors() == before
    assert made.agent.close(DEADLINE_S) == []


def test_where_no_descriptor_is_free_that_is_said_and_nothing_is_left(tmp_path):
    made = Rig(tmp_path)
    before = descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, before))

    for spare in range(1, 12):
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + spare, hard))
        try:
            started = made.agent.start()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if started:
            break
        assert "Too many open files" in made.heard.wait_for(AgentGone, spare).reason

    assert started
    made.heard.wait_for(Ready)
    made.close()
    assert len(descriptors()) == len(before) - len(made.slots)


def test_without_process_descriptors_of_the_system_everything_works(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")

    with rig(tmp_path, point="without pidfd 0") as made:
        made.write(1)
        made.heard.wait_for(Durable)
        os.kill(made.agent.pid, signal.SIGKILL)
        made.heard.wait_for(AgentGone)
        made.write(2)
        made.heard.wait_for(Durable, 2)


def test_fifty_starts_leave_no_process_no_zombie_and_no_descriptor(tmp_path):
    gc.collect()  # what other tests have left
    before = descriptors(), children(), threading.active_count()

    for count in range(50):
        place = tmp_path / str(count)
        place.mkdir()
        with rig(place) as made:
            if count % 2:
                made.write(1)

    until(lambda: set(descriptors()) <= set(before[0]))
    until(lambda: set(children()) <= set(before[1]))
    until(lambda: threading.active_count() <= before[2])


def test_an_event_that_cannot_be_taken_does_not_end_the_listening(tmp_path, caplog):
    with rig(tmp_path) as made:
        heard = made.heard

        def failing(event: object) -> None:
            heard(event)
            raise ZeroDivisionError

        made.agent._on_event = failing
        made.write(1)
        made.heard.wait_for(Durable)
        made.write(2)
        made.heard.wait_for(Durable, 2)

    assert "could not be taken" in caplog.text


def test_what_cannot_be_said_is_refused_before_anything_is_started(tmp_path):
    hello = Hello(run="/\udcff", run_id="run", attempt=1, workers=1, keep={})

    with pytest.raises(ProtocolError, match="Hello cannot be sent"):
        Agent(hello, Heard())


def test_the_log_of_the_work_is_heard(tmp_path):
    with rig(tmp_path, warn="mind the gap") as made:
        made.write(1)
        made.heard.wait_for(Durable)

    assert made.heard.all(Notice) == [Notice("mind the gap")]


def test_a_write_to_a_slot_that_was_never_given_fails_alone(tmp_path):
    with rig(tmp_path) as made:
        made.agent.write(Write(7, 1))
        assert "no slot 7" in made.heard.wait_for(Failed).message
        made.write(2)
        made.heard.wait_for(Durable)
