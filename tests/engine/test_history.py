"""Attempts as a journal tells of them: how long they lived, how they ended, whatever the clock did."""

from holdfast.engine.history import Ending, Fields, trace_attempts


def _event(event, second, attempt=1, **details):
    hours, minutes = divmod(second // 60, 60)
    return {
        "time": f"2026-11-15T{hours:02d}:{minutes:02d}:{second % 60:02d}Z",
        "attempt": attempt,
        "event": event,
        **details,
    }


def _attempt(second, attempt=1, pid=7):
    return _event("attempt", second, attempt, pid=pid)


def _endings(*events, **options):
    return [attempt.ending for attempt in trace_attempts(events, Fields(), **options).attempts]


def test_an_attempt_that_says_nothing_of_its_end_was_killed():
    assert _endings(_attempt(0), _event("committed", 10, step=5), _attempt(20, 2, pid=8)) == [Ending.KILLED] * 2


def test_an_attempt_that_says_so_was_closed_or_stopped_itself_or_just_ended():
    assert _endings(_attempt(0), _event("closed", 9, clean=True)) == [Ending.CLOSED]
    assert _endings(_attempt(0), _event("closed", 9, clean=False)) == [Ending.LEFT]
    assert _endings(_attempt(0), _event("closed", 9, clean=False, error="ValueError")) == [Ending.RAISED]
    assert _endings(_attempt(0), _event("stopped", 9), _event("closed", 9, clean=False)) == [Ending.STOPPED]


def test_the_attempt_whose_process_lives_is_running_until_now():
    began = [_attempt(0)]
    now_utc_s = 1_794_700_800 + 100  # 2026-11-15, 00:01:40

    (attempt,) = trace_attempts(began, Fields(), alive=1, now_utc_s=now_utc_s).attempts

    assert attempt.ending == Ending.RUNNING
    assert attempt.lived_s == 100


def test_going_back_is_no_failure():
    events = [_attempt(0), _event("committed", 9, step=5), _event("restoring", 10, step=5)]

    assert _endings(*events, _attempt(10, 2), _event("restored", 11, 2, step=5))[0] == Ending.ROLLED_BACK
    assert _endings(*events, _attempt(10, 2, pid=8))[0] == Ending.KILLED


def test_a_container_in_which_every_start_has_the_same_process_number_can_be_killed():
    started = [_attempt(0), _event("restoring", 1, step=5), _event("restored", 2, step=5)]

    assert _endings(*started, _attempt(90, 2))[0] == Ending.KILLED


def test_pauses_between_attempts_are_no_running_time():
    events = [
        _attempt(0),
        _event("committed", 100, step=5),
        _attempt(50_000, 2),
        _event("committed", 50_030, 2, step=6),
    ]

    history = trace_attempts(events, Fields())

    assert history.running_s == 130
    assert [(a.at_s, a.lived_s) for a in history.attempts] == [(0, 100), (100, 30)]
    assert [placed.at_s for placed in history.events] == [0, 100, 100, 130]


def test_a_clock_that_jumps_does_not_move_what_was_measured():
    events = [
        _attempt(10),
        _event("paced", 40, elapsed_s=20.0),  # the program took 10 s to start
        _event("committed", 60_000, step=5),
        _event("paced", 60_001, elapsed_s=70.0),
        _event("committed", 3, step=6),
    ]

    history = trace_attempts(events, Fields())

    assert [placed.at_s for placed in history.events] == [0, 30, 80, 80, 80]


def test_after_going_back_the_clock_of_the_process_goes_on_and_that_of_the_attempt_begins():
    events = [_attempt(0), _event("paced", 100, elapsed_s=100.0), _event("restoring", 100, step=1)]
    events += [_attempt(101, 2), _event("paced", 111, 2, elapsed_s=111.0), _event("paced", 121, 2, elapsed_s=121.0)]

    assert trace_attempts(events, Fields()).attempts[1].lived_s == 20


def test_an_import_is_no_training():
    events = [_attempt(0), _event("imported", 1, step=5), _event("closed", 1, clean=True), _attempt(10, 2)]

    assert [attempt.number for attempt in trace_attempts(events, Fields()).attempts] == [2]


def test_what_commands_wrote_belongs_to_no_attempt():
    assert trace_attempts([_event("pruned", 0, 0)], Fields()).attempts == ()


def test_a_journal_that_begins_in_the_middle_is_not_whole():
    assert trace_attempts([_attempt(0)], Fields()).is_whole
    assert not trace_attempts([_event("committed", 0, step=3)], Fields()).is_whole


def test_fields_that_make_no_sense_are_counted_and_missing_ones_are_not():
    fields = Fields()
    event = {
        "a": float("nan"),
        "b": "5",
        "c": True,
        "d": -1,
        "e": 10**400,
        "f": 2.5,
        "g": None,
        "h": 7.0,
        "i": 10**17 + 1,
    }

    assert [fields.whole(event, name) for name in "abcdefghij"] == [None] * 7 + [7, 10**17 + 1, None]
    assert fields.odd == 6
