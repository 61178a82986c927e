"""Who hears a signal: the listener, the handler from before, a forked child, an event loop."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

import holdfast
from holdfast.engine.signals import Signals, listen
from tests.background.rig import until


class Listener:
    """Takes note."""

    def __init__(self, *, takes: bool = True) -> None:
        self.is_taking = takes
        self.heard_of: list[int] = []
        self.told_of: list[int] = []

    def takes(self, number: int) -> bool:
        return self.is_taking

    def stops(self, number: int) -> bool:
        return False

    def hear(self, number: int) -> None:
        self.heard_of.append(number)

    def heard(self, number: int) -> None:
        self.told_of.append(number)


@pytest.fixture
def start() -> Iterator[Callable[..., Signals]]:
    begun: list[Signals] = []

    def start(*numbers: int, listener: Listener) -> Signals:
        begun.append(listen(numbers, listener))
        return begun[-1]

    yield start
    for signals in begun:
        signals.close()


@pytest.fixture(autouse=True)
def handlers_are_as_before() -> Iterator[None]:
    gc.collect()  # what other tests have dropped lets go of its signals
    usual = dict.fromkeys((signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM), signal.SIG_DFL)
    usual[signal.SIGINT] = signal.default_int_handler
    for number, handler in usual.items():
        signal.signal(number, handler)
    signal.set_wakeup_fd(-1)
    yield
    assert {number: signal.getsignal(number) for number in usual} == usual
    assert signal.set_wakeup_fd(-1) == -1


def test_one_signal_is_heard_once_and_told_once(start):
    listener = Listener()
    start(signal.SIGUSR1, listener=listener)

    for _ in range(50):
        before = len(listener.told_of)
        signal.raise_signal(signal.SIGUSR1)
        until(lambda before=before: len(listener.told_of) > before)

    assert listener.heard_of == listener.told_of == [signal.SIGUSR1] * 50


def test_it_is_heard_before_the_next_line_of_the_program(start):
    listener = Listener()
    start(signal.SIGUSR1, listener=listener)

    for count in range(1, 200):
        signal.raise_signal(signal.SIGUSR1)
        assert len(listener.heard_of) == count


def test_it_is_heard_while_the_main_thread_waits_in_a_call(start):
    """Which no handler interrupts: it is begun again by Python after each."""
    listener = Listener()
    start(signal.SIGUSR1, listener=listener)
    heard_meanwhile = []
    ready, done = os.pipe(), threading.Event()

    def send() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        until(lambda: bool(listener.heard_of))
        heard_meanwhile.append(not done.is_set())
        os.write(ready[1], b"x")

    thread = threading.Thread(target=send)
    lock = threading.Lock()
    lock.acquire()
    thread.start()
    os.read(ready[0], 1)
    done.set()
    thread.join()

    assert heard_meanwhile == [True]
    for descriptor in ready:
        os.close(descriptor)


def test_the_handler_from_before_is_called_too_and_is_back_at_the_end(start):
    called = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: called.append(number))
    mine = signal.getsignal(signal.SIGUSR1)
    listener = Listener()
    signals = start(signal.SIGUSR1, listener=listener)

    signal.raise_signal(signal.SIGUSR1)
    signals.close()
    signal.raise_signal(signal.SIGUSR1)

    assert len(called) == 2
    assert len(listener.heard_of) == 1
    assert signal.getsignal(signal.SIGUSR1) is mine
    signal.signal(signal.SIGUSR1, before)


def test_what_nobody_takes_does_what_it_did_before(start):
    listener = Listener(takes=False)
    start(signal.SIGINT, listener=listener)

    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)

    assert listener.heard_of == []


def test_a_handler_that_the_program_puts_in_our_place_is_the_only_one(start):
    listener, called = Listener(), []
    start(signal.SIGUSR1, signal.SIGUSR2, listener=listener)
    ours = signal.signal(signal.SIGUSR1, lambda number, frame: called.append(number))

    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR2)
    until(lambda: listener.told_of == [signal.SIGUSR2])

    assert called == [signal.SIGUSR1]
    assert listener.heard_of == [signal.SIGUSR2]
    signal.signal(signal.SIGUSR1, ours)


def test_a_handler_over_ours_that_calls_it_and_has_ours_over_it_again_is_called_once(start):
    listener, called = Listener(), []
    first = start(signal.SIGUSR1, listener=listener)
    ours = signal.getsignal(signal.SIGUSR1)

    def over(number: int, frame: FrameType | None) -> None:
        called.append(number)
        assert callable(ours)
        ours(number, frame)

    signal.signal(signal.SIGUSR1, over)
    second = start(signal.SIGUSR1, listener=Listener())

    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)

    assert called == listener.heard_of == [signal.SIGUSR1] * 2
    second.close()
    first.close()
    assert signal.signal(signal.SIGUSR1, signal.SIG_DFL) is over


FORK_AT_ONCE = """
import concurrent.futures.thread, logging, os, random, signal, threading
forking, is_forking, has_forked = [], threading.Event(), threading.Event()
def stay_behind():
    forking.append(None)
    if len(forking) == 1:
        is_forking.set()
        assert has_forked.wait(60)
os.register_at_fork(before=stay_behind)  # hooks that are registered later are called before it
from holdfast.engine.signals import listen
from tests.engine.test_signals import Listener

listen([signal.SIGUSR1], Listener())
blocked = []
def fork():
    pid = os.fork()
    if pid == 0:
        os._exit(len(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    has_forked.set()
    blocked.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    blocked.append(len(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
first, second = threading.Thread(target=fork), threading.Thread(target=fork)
first.start()
assert is_forking.wait(60)
second.start()
first.join()
second.join()
assert blocked == [0] * 4, blocked
"""


def test_two_threads_that_fork_at_once_leave_no_signal_blocked():
    """A child in which SIGTERM is blocked could not be ended by its parent."""
    root = Path(__file__).parents[2]

    done = subprocess.run(
        [sys.executable, "-c", FORK_AT_ONCE], cwd=root, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr


def test_what_is_ignored_stays_ignored(start):
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    listener = Listener()
    start(signal.SIGUSR1, listener=listener)

    signal.raise_signal(signal.SIGUSR1)

    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    assert listener.heard_of == []
    signal.signal(signal.SIGUSR1, before)


def test_outside_of_the_main_thread_nothing_is_installed():
    said = []

    def begin() -> None:
        said.append(Signals((signal.SIGUSR1,), Listener()).start())

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()

    assert said == [False]
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_a_forked_child_hears_nothing_and_tells_its_parent_nothing(start):
    listener = Listener()
    start(signal.SIGUSR1, signal.SIGTERM, listener=listener)

    statuses = []
    for number in (signal.SIGUSR1, signal.SIGTERM):
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), number)
            os._exit(7)
        statuses.append(os.waitpid(child, 0)[1])

    assert [os.waitstatus_to_exitcode(status) for status in statuses] == [7, -signal.SIGTERM]
    assert listener.heard_of == []


def test_an_event_loop_that_had_the_pipe_hears_it_as_well(start):
    listener = Listener()
    loop_heard = []

    async def main() -> None:
        loop, heard = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR2, lambda: (loop_heard.append(1), heard.set()))
        start(signal.SIGUSR1, signal.SIGUSR2, listener=listener)
        signal.raise_signal(signal.SIGUSR2)
        await asyncio.wait_for(heard.wait(), 30)
        for signals in (listener,):
            assert signals.heard_of == [signal.SIGUSR2]

    asyncio.run(main())

    assert loop_heard == [1]


def test_a_checkpointer_that_is_dropped_lets_the_signals_go(tmp_path):
    made = holdfast.Checkpointer(tmp_path / "run", {"w": np.zeros(3)}, background="off", sensors="off")
    made.save(step=1)
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL

    del made
    gc.collect()

    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_two_checkpointers_both_hear_it_and_the_last_one_puts_the_handlers_back(tmp_path):
    first, second = (
        holdfast.Checkpointer(tmp_path / name, {"w": np.zeros(3)}, background="off", sensors="off", on_stop="return")
        for name in ("first", "second")
    )

    signal.raise_signal(signal.SIGUSR1)
    first.step()
    first.close()
    second.step()

    assert (first.stopped, second.stopped) == ("SIGUSR1", "SIGUSR1")
    second.close()
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (("SIGKILL",), "SIGKILL"),
        (("SIGNOTHING",), "SIGNOTHING"),
        ("SIGTERM", "SIGTERM"),
        ({"SIGTERM": "explode"}, "explode"),
        ((999,), "999"),
        ((None,), "None"),
    ],
)
def test_signals_that_make_no_sense_are_refused_before_anything_is_made(tmp_path, given, word):
    with pytest.raises(holdfast.UsageError, match=word):
        holdfast.Checkpointer(tmp_path / "run", {"w": np.zeros(3)}, signals=given)

    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "option", [{"grace": "soon"}, {"grace": -1}, {"exit_code": 0}, {"exit_code": 256}, {"on_stop": "explode"}]
)
def test_options_of_a_stop_that_make_no_sense_are_refused_before_anything_is_made(tmp_path, option):
    with pytest.raises(holdfast.UsageError, match=next(iter(option))):
        holdfast.Checkpointer(tmp_path / "run", {"w": np.zeros(3)}, **option)

    assert not (tmp_path / "run").exists()
