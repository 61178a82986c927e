"""Signals between lines that belong together: noted, and raised when these are done."""

import os
import signal
import threading

import pytest

from holdfast.core.interrupts import interrupts_are_noted, interrupts_deferred, interrupts_let_through


@pytest.fixture(autouse=True)
def raising_ctrl_c():
    """As in a program at a terminal: one that a shell starts in the background ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def heard():
    """What the program's own handlers were called with."""
    heard = []
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    for number in before:
        signal.signal(number, lambda number, _: heard.append(number))
    yield heard
    for number, handler in before.items():
        signal.signal(number, handler)


def test_ctrl_c_is_raised_at_the_end():
    done = []
    with pytest.raises(KeyboardInterrupt):
        with interrupts_deferred():
            signal.raise_signal(signal.SIGINT)
            assert interrupts_are_noted()
            done.append("all of it")

    assert done == ["all of it"]
    assert not interrupts_are_noted()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_every_signal_reaches_its_handler_also_after_one_that_raises(heard):
    with pytest.raises(KeyboardInterrupt):
        with interrupts_deferred():
            for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGTERM):
                signal.raise_signal(number)
            assert heard == []

    assert heard == [signal.SIGUSR1, signal.SIGTERM]


@pytest.mark.parametrize("number", [signal.SIGCHLD, signal.SIGALRM, signal.SIGPROF, signal.SIGXCPU, signal.SIGTSTP])
def test_what_handlers_of_children_and_of_timers_raise_comes_at_the_end_and_makes_nobody_impatient(number):
    """As those of torch's loaders do, wherever the program is at that moment; a timer may have come many times."""
    heard = []

    def refuse(number, frame):
        heard.append(number)
        raise RuntimeError("a worker was killed")

    done = []
    before = signal.signal(number, refuse)
    try:
        with pytest.raises(RuntimeError, match="a worker was killed"):
            with interrupts_deferred():
                for _ in range(2000):
                    signal.raise_signal(number)
                assert not interrupts_are_noted()
                done.append("all of it")
        assert signal.getsignal(number) is refuse
    finally:
        signal.signal(number, before)

    assert (done, heard) == (["all of it"], [number])


def test_a_wait_lets_them_through_and_defers_again(heard):
    with interrupts_deferred():
        signal.raise_signal(signal.SIGTERM)
        with interrupts_let_through():
            assert heard == [signal.SIGTERM]
            signal.raise_signal(signal.SIGUSR1)
            assert heard == [signal.SIGTERM, signal.SIGUSR1]
        signal.raise_signal(signal.SIGUSR1)
        assert len(heard) == 2
    assert heard == [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR1]


def test_an_interrupt_in_a_wait_ends_it_and_all_handlers_are_back(heard):
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        with interrupts_deferred():
            with interrupts_let_through():
                signal.raise_signal(signal.SIGINT)

    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is handler


def test_one_inside_another_ends_with_the_outer(heard):
    with interrupts_deferred():
        with interrupts_deferred():
            signal.raise_signal(signal.SIGTERM)
        assert heard == []
    assert heard == [signal.SIGTERM]


def test_signals_that_the_program_ignores_or_leaves_to_the_system_are_left_alone():
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        with interrupts_deferred():
            assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_another_thread_defers_nothing():
    found = []

    def look():
        with interrupts_deferred(), interrupts_let_through():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()

    assert found == [signal.default_int_handler]


def test_a_child_that_another_thread_forks_meanwhile_has_the_programs_handlers(heard):
    statuses = []

    def fork():
        child = os.fork()
        if child == 0:
            signal.raise_signal(signal.SIGTERM)
            os._exit(0 if heard == [signal.SIGTERM] else 1)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    with interrupts_deferred():
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()

    assert statuses == [0]
    assert heard == []


def test_a_handler_that_raises_while_others_are_put_back_keeps_none_of_them_away(heard, monkeypatch):
    put_back = signal.signal

    def interrupted(number, handler):
        put_back(number, handler)
        if number == signal.SIGTERM:
            raise InterruptedError("the handler, which is back, was called at once")

    with pytest.raises(InterruptedError):
        with interrupts_deferred():
            signal.raise_signal(signal.SIGUSR1)
            monkeypatch.setattr(signal, "signal", interrupted)
    monkeypatch.undo()

    assert heard == [signal.SIGUSR1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with interrupts_deferred():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
