"""What a new attempt learns of those before it, from a journal that nobody vouches for."""

import math
import time

import pytest

from holdfast.engine.journal import Journal, read_events
from holdfast.engine.pace_history import Past, read_past
from holdfast.policy.failures import FailureRate, Lifetime

BEGAN_S = 1_794_768_121


def at(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(BEGAN_S + seconds))


def attempt(number: int, began_s: float, *others: tuple[float, str, dict[str, object]], **details: object):
    """The events of one attempt: (seconds after it began, kind, fields)."""
    events = [{"time": at(began_s), "attempt": number, "event": "attempt", "pid": 100 + number, **details}]
    for after_s, kind, fields in others:
        events.append({"time": at(began_s + after_s), "attempt": number, "event": kind, **fields})
    return events


CLOSED = ("closed", {"clean": True})
LEFT = ("closed", {"clean": False})
SAVED = ("committed", {"step": 5})
STOPPED = ("stopped", {"step": 9, "why": "2 min left", "lost_steps": 0})


class TestLifetimes:
    def test_one_that_closed_the_run_did_not_fail(self):
        events = attempt(1, 0, (60, *SAVED), (100, *CLOSED))

        assert read_past(events, attempt=2).lifetimes == (Lifetime(100, False),)

    def test_one_that_was_killed_failed_and_lived_until_its_last_sign_of_life(self):
        events = attempt(1, 0, (60, *SAVED), (100, *SAVED))

        assert read_past(events, attempt=2).lifetimes == (Lifetime(100, True),)

    def test_one_that_stopped_itself_did_not_fail(self):
        events = attempt(1, 0, (60, *SAVED), (90, *STOPPED), (91, *LEFT))

        assert read_past(events, attempt=2).lifetimes == (Lifetime(91, False),)

    def test_one_that_an_exception_ended_failed(self):
        events = attempt(1, 0, (60, *SAVED), (100, "closed", {"clean": False, "error": "ValueError"}))

        assert read_past(events, attempt=2).lifetimes == (Lifetime(100, True),)

    def test_one_that_was_not_closed_and_came_to_its_end_did_not(self):
        events = attempt(1, 0, (60, *SAVED), (100, *LEFT))

        assert read_past(events, attempt=2).lifetimes == (Lifetime(100, False),)

    def test_one_that_went_back_did_not_fail(self):
        events = attempt(1, 0, (60, *SAVED), (70, "restoring", {"step": 3}))
        events += attempt(2, 70, (0, "restored", {"step": 3}), (30, *SAVED), pid=101)

        assert read_past(events, attempt=3).lifetimes == (Lifetime(70, False), Lifetime(30, True))

    def test_one_that_went_back_just_now_did_not_fail_either(self):
        events = attempt(1, 0, (60, *SAVED), (70, "restoring", {"step": 3}))
        events += attempt(2, 70, (0, "restored", {"step": 3}), pid=101)

        assert read_past(events, attempt=2).lifetimes == (Lifetime(70, False),)

    def test_they_come_in_order_and_this_attempt_is_not_among_them(self):
        events = [*attempt(1, 0, (10, *CLOSED)), *attempt(2, 50, (20, *SAVED)), *attempt(3, 100, (5, *SAVED))]

        assert read_past(events, attempt=3).lifetimes == (Lifetime(10, False), Lifetime(20, True))

    def test_only_the_last_fifty_count(self):
        events = [event for number in range(1, 100) for event in attempt(number, 100 * number, (number, *CLOSED))]

        lifetimes = read_past(events, attempt=100).lifetimes

        assert len(lifetimes) == 50
        assert [each.seconds for each in lifetimes] == list(range(50, 100))

    def test_one_whose_beginning_is_lost_does_not_count(self):
        events = attempt(1, 0, (60, *SAVED), (100, *SAVED))[1:] + attempt(2, 200, (7, *SAVED))

        assert read_past(events, attempt=3).lifetimes == (Lifetime(7, True),)

    def test_a_file_that_was_imported_was_no_training(self):
        events = attempt(1, 0, (0, "imported", {"step": 5}))

        assert read_past(events, attempt=2).lifetimes == ()

    def test_a_file_that_could_not_be_imported_was_no_training_either(self):
        events = attempt(1, 0, (0, "importing", {"step": 5}))

        assert read_past(events, attempt=2).lifetimes == ()

    def test_those_of_another_machine_are_marked(self):
        events = attempt(1, 0, (10, *CLOSED), host="a") + attempt(2, 50, (20, *CLOSED), host="b")
        events += attempt(3, 100, host="b")

        assert [each.same_host for each in read_past(events, attempt=3).lifetimes] == [False, True]

    def test_a_journal_that_names_no_machine_is_of_this_one(self):
        events = attempt(1, 0, (10, *CLOSED)) + attempt(2, 50)

        assert [each.same_host for each in read_past(events, attempt=2).lifetimes] == [True]

    def test_commands_and_future_attempts_say_nothing(self):
        events = attempt(1, 0, (10, *CLOSED)) + attempt(7, 50, (20, *SAVED))
        events.append({"time": at(0), "attempt": 0, "event": "removed", "removed": ["x"]})

        assert len(read_past(events, attempt=2).lifetimes) == 1

    def test_a_clock_that_went_back_gives_no_negative_life(self):
        events = attempt(1, 1000, (-500, *SAVED), (-400, *CLOSED))

        (lifetime,) = read_past(events, attempt=2).lifetimes
        assert lifetime.seconds >= 0


class TestProfile:
    def test_it_is_that_of_the_last_attempt_that_left_one(self):
        events = attempt(1, 0, (10, "paced", {"profile": {"step_s": 1.0}, "margin": {"factor": 2.0}}))
        events += attempt(2, 50, (10, "paced", {"profile": {"step_s": 2.0}, "margin": {"factor": 3.0}}))
        events += attempt(3, 90, (10, *SAVED))

        past = read_past(events, attempt=4)

        assert (past.profile, past.margin) == ({"step_s": 2.0}, {"factor": 3.0})

    @pytest.mark.parametrize("number", [4, 5, True, "3", 3.0, None, -1, 0, 10**30])
    def test_neither_this_attempt_nor_a_future_one_nor_nobody_left_it(self, number):
        events = [{"time": at(0), "attempt": number, "event": "paced", "profile": {"step_s": 2.0}}]

        assert read_past(events, attempt=4).profile is None

    def test_there_is_none_in_an_empty_journal(self):
        assert read_past([], attempt=1) == Past()


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"event": None},
        {"event": ["paced"]},
        {"event": "paced"},
        {"event": "paced", "attempt": 1, "time": None},
        {"event": "paced", "attempt": 1, "time": at(5), "profile": "fast", "margin": [1]},
        {"event": "closed", "attempt": 1, "time": at(5), "clean": "yes"},
        {"event": "committed", "attempt": 1, "time": "yesterday", "elapsed_s": math.nan},
        {"event": "committed", "attempt": 1, "time": "9999-99-99T99:99:99Z"},
        {"event": "committed", "attempt": 1, "time": 17, "elapsed_s": -5},
        {"event": "committed", "attempt": 1, "time": at(-1e9)},
        {"event": "attempt", "attempt": 1, "time": at(5), "pid": {"a": 1}, "host": [1]},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_skipped(odd):
    events = [*attempt(1, 0, (10, *SAVED)), odd, *attempt(2, 50, (20, *CLOSED))]

    past = read_past(events, attempt=3)

    assert past.lifetimes[-1] == Lifetime(20, False)
    assert all(0 <= each.seconds < math.inf for each in past.lifetimes)
    assert FailureRate.of(past.lifetimes).mtbf_s > 0


def test_a_real_journal_with_torn_lines_is_read_as_far_as_possible(store, clock, tmp_path):
    journal = Journal(store, clock, 1)
    journal.record("attempt", pid=1)
    clock.advance(30)
    journal.record("paced", profile={"step_s": 0.5, "stall_s": math.nan}, margin={"factor": 1.3, "saves": 2})
    with open(tmp_path / "run" / "journal.jsonl", "ab") as file:
        file.write(b'{"event": "paced", "attempt": 1, "profile": {"step_s"\n\xff\xfe\n[]\n')

    past = read_past(read_events(store), attempt=2)

    assert past.profile["step_s"] == 0.5
    assert past.lifetimes == (Lifetime(30, True),)


def test_what_the_last_checkpoint_of_a_stopped_attempt_took_is_known_to_the_next_whatever_its_trigger():
    stopped = ("stopped", {"step": 9, "why": "2 min left", "lost_steps": 0, "durable_s": 4.5})
    events = attempt(1, 0, (60, *SAVED), (90, *stopped), (91, *LEFT)) + attempt(2, 100)

    assert read_past(events, attempt=2).durable_s == 4.5
    assert read_past(events, attempt=1).durable_s is None
