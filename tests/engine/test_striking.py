"""When the signal of a plan comes, and that it comes once: real signals, to this process, which counts them."""

import signal
import time

import pytest

from holdfast.engine.evidence import Interruption
from holdfast.engine.striking import Striker


@pytest.fixture
def got():
    """How often SIGUSR1 came, with the steps that were told before."""
    seen = {"signals": 0, "told": []}

    def count(*_):
        seen["signals"] += 1

    before = signal.signal(signal.SIGUSR1, count)
    yield seen
    signal.signal(signal.SIGUSR1, before)


def striker(got, when, *, step=5, share=0.5, sends=True):
    def tell(planned):
        got["told"].append(planned.step)
        return sends

    return Striker(Interruption("SIGUSR1", step, when, share), tell)


def until_struck(got):
    end_s = time.monotonic() + 10
    while not got["signals"] and time.monotonic() < end_s:
        time.sleep(0.001)


@pytest.mark.parametrize("when", ["before save", "after save"])
def test_it_comes_at_its_moment_of_its_step_and_only_once(got, when):
    striking = striker(got, when)

    striking.strike_at(when, 4)
    striking.strike_at("in save", 5)
    assert got == {"signals": 0, "told": []}

    striking.strike_at(when, 5)
    striking.strike_at(when, 5)
    assert got == {"signals": 1, "told": [5]}
    assert not striking.is_time(when, 5)


def test_in_the_middle_of_a_step(got):
    striking = striker(got, "in step", share=0.01)

    striking.begin_step(4, 1.0)
    striking.end_step(5)
    assert got["signals"] == 0

    striking.begin_step(5, 1.0)
    until_struck(got)
    striking.end_step(6)
    assert got == {"signals": 1, "told": [5]}


def test_a_step_that_is_shorter_than_thought_is_struck_at_its_end(got):
    striking = striker(got, "in step", share=1.0)

    striking.begin_step(5, 3600.0)
    striking.end_step(6)

    assert got == {"signals": 1, "told": [5]}


def test_in_the_middle_of_a_save_whose_end_waits_for_it(got):
    striking = striker(got, "in save", share=1.0)

    striking.begin_save(5, 2.0)
    assert got["signals"] == 0
    striking.end_save(5)

    assert got == {"signals": 1, "told": [5]}


def test_a_save_that_does_not_come_is_struck_all_the_same(got):
    striking = striker(got, "in save")

    striking.end_save(5)

    assert got == {"signals": 1, "told": [5]}


def test_whoever_is_told_may_say_that_it_is_not_to_be_sent(got):
    striking = striker(got, "after save", sends=False)

    striking.strike_at("after save", 5)
    striking.strike_at("after save", 5)

    assert got == {"signals": 0, "told": [5]}


def test_without_a_plan_nothing_comes(got):
    striking = Striker(None, lambda _: True)

    striking.begin_step(0, 0.0)
    striking.end_step(1)
    striking.begin_save(1, 0.0)
    striking.end_save(1)
    striking.strike_at("after save", 1)

    assert got["signals"] == 0
