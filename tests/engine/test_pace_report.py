"""What the journal says of the pace: what is known, and what only looks as if it were."""

from typing import Any

import pytest

from holdfast.engine.pace_report import Pace, report_pace
from tests.cli.paced_run import THREE_ATTEMPTS, Diary


def _pace(*, wants: int | None = None, steps: int = 2014, won: str = "failures", **changed: Any) -> Pace:
    diary = Diary()
    diary.begin()
    diary.pace(60, 30, steps, won, wants=wants, **changed)
    now = report_pace(diary.events).now
    assert now is not None
    return now


@pytest.mark.parametrize(
    ("wants", "kept"), [(2014, None), (2015, 2015), (2107, 2107), (1900, 1900), (4000, None), (200, None)]
)
def test_an_interval_is_kept_where_another_one_would_be_nearly_the_same(wants: int, kept: int | None) -> None:
    assert _pace(wants=wants).kept_against == kept


@pytest.mark.parametrize(("steps", "wants", "kept"), [(15, 14, 14), (2, 1, 1), (1, 2, 2), (3, 1, None)])
def test_one_step_may_be_nearly_the_same_for_wishes_are_rounded(steps: int, wants: int, kept: int | None) -> None:
    assert _pace(steps=steps, wants=wants, won="overhead").kept_against == kept


@pytest.mark.parametrize("won", ["overhead", "lose_at_most"])
def test_next_to_a_cap_one_step_is_a_matter_of_rounding(won: str) -> None:
    diary = Diary()
    diary.begin()
    rules = [{"name": name, "steps": steps} for name, steps in {"overhead": 16, "lose_at_most": 14}.items()]
    diary.note("paced", 60, step=30, interval_steps=15, won=won, rules=rules)

    now = report_pace(diary.events).now

    assert now is not None
    assert now.kept_against is None


def test_the_overhead_lately_is_known_from_the_second_checkpoint_on() -> None:
    assert [_pace(saved=saved, overhead_window=0.01).overhead_lately for saved in (0, 1, 2)] == [None, None, 0.01]


def test_the_overhead_of_the_run_is_that_of_the_last_attempt_which_counts_all_before_it() -> None:
    report = report_pace(THREE_ATTEMPTS)

    assert report.overhead_all == 0.0236
    assert report.now is not None
    assert report.now.overhead_run == 0.0236


def test_failures_are_those_of_the_attempts_before() -> None:
    report = report_pace(THREE_ATTEMPTS)

    assert [report.failed_before(number) for number in (1, 2, 3, 4)] == [0, 1, 2, 2]


def test_short_intervals_are_told_though_events_have_whole_seconds() -> None:
    diary = Diary()
    diary.begin()
    for index in range(100):
        diary.commit(0.4 * index, 50 * index)

    spacing = report_pace(diary.events).spacing

    assert spacing is not None
    assert (spacing.steps, spacing.is_even) == (50, True)
    assert spacing.seconds == pytest.approx(0.4, rel=0.05)


def test_a_run_is_automatic_from_its_first_measurement_on() -> None:
    diary = Diary()
    diary.begin()
    diary.commit(5, 10)
    before = report_pace(diary.events)
    diary.note("paced", 6, step=12, interval_steps=None, won="first", why="the first steps are being measured")
    after = report_pace(diary.events)

    assert (before.is_auto, after.is_auto) == (False, True)
    assert after.now is None
