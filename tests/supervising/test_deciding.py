"""What follows an attempt: by its outcome, its progress and what came before."""

import itertools

import pytest

from holdfast.supervising.deciding import Rules, SoFar, Tried, Verdict, judge

CRASH = Tried("failed", 1, took_s=1.0)
ASKED = Tried("again", 85, took_s=1.0)


def follow(tried: list[Tried], rules: Rules) -> list[Verdict]:
    """The verdicts of attempts, one after the other, up to the last."""
    so_far, verdicts = SoFar(), []
    for one in tried:
        verdict, so_far = judge(one, so_far, rules)
        verdicts.append(verdict)
        if not verdict.goes_on:
            break
    return verdicts


def test_a_program_that_is_done_is_not_started_again():
    (verdict,) = follow([Tried("done", 0, took_s=1.0)], Rules())

    assert verdict == Verdict(goes_on=False, status=0)


@pytest.mark.parametrize("outcome", ["done", "again", "failed"])
@pytest.mark.parametrize("status", [0, 1, 2, 85, 127, 137])
def test_after_a_signal_to_stop_nothing_is_started_and_the_status_passes_through(outcome, status):
    (verdict,) = follow([Tried(outcome, status, took_s=1.0, stopped_by="SIGTERM")], Rules(max_crashes=None))

    assert (verdict.goes_on, verdict.status) == (False, status)


def test_who_stopped_a_program_that_has_more_to_do_is_told_how_to_go_on():
    stopped = Tried("again", 85, took_s=1.0, stopped_by="SIGINT")

    assert "start the same command again" in follow([stopped], Rules())[0].advice
    assert not follow([stopped], Rules(restarts_when_asked=False))[0].advice  # the scheduler does that
    assert not follow([stopped._replace(outcome="done", status=0)], Rules())[0].advice


def test_asked_for_a_restart_it_starts_at_once_where_the_attempt_led_somewhere():
    far = [Tried("again", 85, took_s=1.0, from_step=10 * n, step=10 * n + 10) for n in range(50)]

    assert {(verdict.goes_on, verdict.after_s) for verdict in follow(far, Rules())} == {(True, 0.0)}


def test_in_a_schedulers_job_it_leaves_the_restart_to_the_scheduler():
    (verdict,) = follow([ASKED], Rules(restarts_when_asked=False))

    assert (verdict.goes_on, verdict.status) == (False, 85)
    assert "scheduler" in verdict.why


def test_crashes_are_tried_again_in_a_schedulers_job_too():
    assert follow([CRASH], Rules(restarts_when_asked=False))[0].goes_on


def test_the_wait_doubles_up_to_a_minute_and_begins_anew_with_progress():
    crashes = [Tried("failed", 1, took_s=1.0, from_step=5, step=5)] * 9
    rules = Rules(max_crashes=None)

    verdicts = follow([*crashes, Tried("failed", 1, took_s=1.0, from_step=5, step=6), *crashes], rules)

    doubling = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert [verdict.after_s for verdict in verdicts] == [*doubling, 1.0, *doubling]


def test_a_longer_first_wait_stays_and_none_at_all_is_none():
    rules = Rules(max_crashes=None)

    assert [v.after_s for v in follow([CRASH] * 3, rules._replace(backoff_s=300.0))] == [300.0, 300.0, 300.0]
    assert [v.after_s for v in follow([CRASH] * 3, rules._replace(backoff_s=0.0))] == [0.0, 0.0, 0.0]


def test_thousands_of_crashes_do_not_overflow_the_wait():
    assert follow([CRASH] * 5000, Rules(max_crashes=None, max_restarts=None))[-1].after_s == 60.0


@pytest.mark.parametrize("most", [1, 2, 5])
def test_a_crash_loop_ends_with_the_programs_own_status_and_advice(most):
    verdicts = follow([CRASH._replace(status=139)] * 20, Rules(max_crashes=most))

    assert len(verdicts) == most
    assert (verdicts[-1].goes_on, verdicts[-1].status) == (False, 139)
    assert "given up" in verdicts[-1].why
    assert "start the same command again" in verdicts[-1].advice


def test_crashes_with_progress_in_between_are_no_loop():
    far = [Tried("failed", 1, took_s=1.0, from_step=n, step=n + 1) for n in range(50)]

    assert all(verdict.goes_on for verdict in follow(far, Rules()))


def test_progress_is_a_later_step_than_ever_not_than_at_the_start():
    first = Tried("failed", 1, took_s=1.0, from_step=0, step=53)
    again = Tried("failed", 1, took_s=1.0, from_step=50, step=53)

    assert len(follow([first, *[again] * 20], Rules())) == 1 + 5


def test_going_back_to_an_older_checkpoint_is_given_as_many_tries_again():
    """A Checkpointer needs three crashes to suspect a checkpoint: five tries must not end before the third of them."""
    crashes = [Tried("failed", 1, took_s=1.0, from_step=start, step=53) for start in (50, 40, 30) for _ in range(3)]
    done = Tried("done", 0, took_s=1.0, from_step=20, step=100)

    verdicts = follow([Tried("failed", 1, took_s=1.0, from_step=0, step=53), *crashes, done], Rules())

    assert len(verdicts) == 11
    assert verdicts[-1].status == 0


def test_going_back_and_forth_is_a_loop_all_the_same():
    there_and_back = itertools.islice(itertools.cycle([50, 40]), 40)
    crashes = [Tried("failed", 1, took_s=1.0, from_step=start, step=53) for start in there_and_back]

    verdicts = follow([Tried("failed", 1, took_s=1.0, from_step=0, step=53), *crashes], Rules())

    assert not verdicts[-1].goes_on
    assert len(verdicts) < 10


def test_without_steps_ten_seconds_are_progress():
    assert len(follow([CRASH._replace(took_s=9.9)] * 20, Rules())) == 5
    assert len(follow([CRASH._replace(took_s=10.0)] * 20, Rules())) == 20


def test_one_that_told_its_steps_once_makes_no_progress_without_them_however_long_it_takes():
    told = Tried("failed", 1, took_s=1.0, from_step=0, step=7)

    assert len(follow([told, *[CRASH._replace(took_s=3600.0)] * 20], Rules())) == 1 + 5


def test_restarts_are_limited_whatever_asks_for_them():
    far = [Tried("again", 85, took_s=1.0, from_step=n, step=n + 1) for n in range(50)]

    verdicts = follow(far, Rules(max_restarts=3))

    assert len(verdicts) == 4
    assert (verdicts[-1].goes_on, verdicts[-1].status) == (False, 85)
    assert "--max-restarts" in verdicts[-1].why


def test_asking_for_restarts_without_steps_is_no_crash_but_waits():
    verdicts = follow([ASKED] * 8, Rules())

    assert all(verdict.goes_on for verdict in verdicts)
    assert [verdict.after_s for verdict in verdicts[:4]] == [1.0, 2.0, 4.0, 8.0]


def test_asking_for_restarts_at_the_same_step_again_and_again_is_a_loop():
    verdicts = follow([Tried("again", 85, took_s=1.0, from_step=7, step=7)] * 20, Rules())

    assert len(verdicts) == 5
    assert verdicts[-1].status == 85


@pytest.mark.parametrize("status", [2, 126, 127])
def test_a_wrong_command_line_is_not_tried_again(status):
    verdicts = follow([CRASH._replace(status=status)] * 3, Rules())

    assert len(verdicts) == 1
    assert verdicts[0].status == status
    assert "not tried again" in verdicts[0].why


@pytest.mark.parametrize("status", [2, 126, 127])
def test_these_statuses_are_tried_again_after_progress_or_where_it_never_gives_up(status):
    far = Tried("failed", status, took_s=3600.0, from_step=0, step=100)

    assert follow([far], Rules())[0].goes_on
    never = Rules(max_restarts=None, max_crashes=None, repeats_usage_errors=True)
    assert follow([CRASH._replace(status=status)], never)[0].goes_on


def test_a_hung_attempt_counts_as_a_crash_even_if_it_saved_and_asked_for_a_restart():
    hung = Tried("again", 85, took_s=3600.0, from_step=7, step=7, is_hung=True)

    verdicts = follow([hung] * 20, Rules(restarts_when_asked=False))

    assert len(verdicts) == 5
    assert verdicts[0].after_s == 1.0
