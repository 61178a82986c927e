"""Order, live line, abandoned branches, and which checkpoint a restore tries."""

import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.core.errors import NoCheckpointError, UsageError
from holdfast.core.values import Fork
from holdfast.policy.lineage import (
    ABANDONED,
    LIVE,
    abandoned_tips,
    branches,
    choose,
    in_order,
    latest,
    latest_undamaged,
    live_line,
)


@pytest.fixture
def rolled_back(make):
    """Attempt 1 came to step 500; attempt 2 went back to 200 and came to 400."""
    first = [make(step, 1) for step in (100, 200, 300, 400, 500)]
    second = [make(step, 2, origin=first[1]) for step in (300, 400)]
    return first + second


def _steps(checkpoints):
    return [(c.attempt, c.step) for c in checkpoints]


def test_the_latest_is_what_choosing_it_would_try_first(rolled_back, make):
    damaged = [c._replace(quarantined="bad") if c.attempt == 2 else c for c in rolled_back]

    for checkpoints in (rolled_back, rolled_back[::-1], damaged):
        assert latest(checkpoints) == choose(checkpoints, "latest")[0]
    for unusable in ([], [make(1, quarantined="bad")]):
        with pytest.raises(NoCheckpointError, match=r"^latest: "):
            latest(unusable)


def test_the_latest_undamaged_one_is_the_first_fallback_that_nobody_found_damaged(rolled_back):
    def found_damaged(*places):
        return [c._replace(damaged="chunk 3 differs" if (c.attempt, c.step) in places else "") for c in rolled_back]

    line = [(2, 400), (2, 300), (1, 200), (1, 100)]

    assert latest_undamaged(rolled_back) == latest(rolled_back)
    assert latest_undamaged(found_damaged(*line[:2])).step == 200
    # Of what the rollback left, never the one of a later step.
    assert _steps([latest_undamaged(found_damaged(*line))]) == [(1, 400)]
    assert latest_undamaged(found_damaged(*line, (1, 300), (1, 400))) is None
    assert latest_undamaged([]) is None


def test_order_is_by_attempt_and_step_and_never_by_time(make):
    late_clock = make(100, 1, utc_s=9e9)
    early_clock = make(50, 2, utc_s=1.0)
    between = make(200, 1, utc_s=5.0)

    ordered = in_order([early_clock, between, late_clock])

    assert ordered == [late_clock, between, early_clock]


def test_the_order_does_not_depend_on_the_order_of_the_listing(rolled_back):
    shuffled = rolled_back.copy()
    random.Random(1).shuffle(shuffled)

    assert in_order(shuffled) == in_order(rolled_back)


def test_two_checkpoints_of_one_step_are_ordered_by_their_count(make):
    second, first = make(100, twin=1, seq=2), make(100, seq=1)

    assert in_order([second, first]) == [first, second]


def test_a_rollback_abandons_what_came_after_the_checkpoint_it_went_back_to(rolled_back):
    found = branches(rolled_back)

    assert list(found.values()) == [LIVE, LIVE, ABANDONED, ABANDONED, ABANDONED, LIVE, LIVE]


def test_a_running_attempt_that_has_not_saved_yet_has_a_line_already(rolled_back):
    live = live_line(rolled_back, attempt=3, origin=rolled_back[0].id)

    assert live == {rolled_back[0].id}


def test_an_attempt_that_started_fresh_ends_the_line(make):
    old, fresh = make(100, 1), make(10, 2)

    assert live_line([old, fresh]) == {fresh.id}


def test_a_pruned_origin_still_says_where_the_line_came_from(rolled_back):
    without_origin = [c for c in rolled_back if (c.attempt, c.step) != (1, 200)]

    live = live_line(without_origin)

    assert _steps(c for c in without_origin if c.id in live) == [(1, 100), (2, 300), (2, 400)]


def test_the_line_goes_on_past_an_attempt_whose_checkpoints_are_all_pruned(make):
    first = [make(step, 1) for step in (100, 200)]
    second = make(300, 2, origin=first[1])
    third = make(400, 3, origin=second)

    live = live_line([*first, third])

    assert live == {first[0].id, first[1].id, third.id}


def test_the_line_goes_on_past_an_attempt_whose_heads_are_all_damaged(make):
    first = [make(step, 1) for step in (100, 200, 300)]
    unreadable = make(250, 2, seq=0, quarantined="the head differs from its digest")

    assert live_line([*first, unreadable]) == {first[0].id, first[1].id, unreadable.id}
    assert choose([*first, unreadable], "latest") == [first[1], first[0]]


def test_a_damaged_head_does_not_hide_where_its_attempt_came_from(make):
    first = [make(step, 1) for step in (100, 200)]
    second = [make(150, 2, origin=first[0]), make(160, 2, seq=0, quarantined="damaged")]

    assert live_line([*first, *second]) == {first[0].id, second[0].id, second[1].id}


def test_the_line_of_no_checkpoints_is_empty():
    assert live_line([]) == set()
    assert branches([]) == {}


def test_the_twin_saved_after_the_origin_at_the_same_step_is_abandoned(make):
    origin, twin = make(100, 1, seq=1), make(100, 1, twin=1, seq=2)
    later = make(200, 2, origin=origin)

    assert live_line([origin, twin, later]) == {origin.id, later.id}


@pytest.mark.parametrize("origin", ["../../etc/passwd", "", "000000100-e000-20260101T000000Z-a0002"])
def test_a_forged_origin_ends_the_line_instead_of_looping(make, origin):
    forged = make(100, 2)._replace(origin=origin)
    older = make(100, 1)

    assert live_line([older, forged]) == {forged.id}


@given(st.data())
def test_hostile_origins_never_loop_and_always_leave_the_newest_attempt_live(make, data):
    places = data.draw(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), min_size=1, unique=True))
    plain = [make(step, attempt) for attempt, step in places]
    names = st.none() | st.sampled_from([c.id for c in plain])
    hostile = [c._replace(origin=data.draw(names)) for c in plain]

    live = live_line(hostile)

    newest = max(c.attempt for c in hostile)
    assert {c.id for c in hostile if c.attempt == newest} <= live


def test_the_tip_of_an_abandoned_branch_is_its_newest(rolled_back):
    assert abandoned_tips(rolled_back, live_line(rolled_back)) == {rolled_back[4].id}


def test_an_abandoned_branch_that_ran_on_in_a_later_attempt_has_one_tip(make):
    first = [make(step, 1) for step in (100, 200, 300)]
    second = [make(step, 2, origin=first[2]) for step in (400, 500)]
    third = [make(200, 3, origin=first[0])]
    everything = first + second + third

    assert abandoned_tips(everything, live_line(everything)) == {second[1].id}


def test_two_abandoned_branches_from_one_attempt_have_two_tips(make):
    first = [make(step, 1) for step in (100, 200, 300)]
    second = [make(400, 2, origin=first[1])]
    third = [make(200, 3, origin=first[0])]
    everything = first + second + third

    assert abandoned_tips(everything, live_line(everything)) == {first[2].id, second[0].id}


def test_a_quarantined_checkpoint_is_no_tip(make, rolled_back):
    damaged = [c._replace(quarantined="bad") if c.step == 500 else c for c in rolled_back]

    assert abandoned_tips(damaged, live_line(damaged)) == {damaged[3].id}


def test_latest_is_the_newest_live_one_followed_by_older_live_then_older_abandoned_ones(rolled_back):
    found = choose(rolled_back, "latest")

    assert _steps(found) == [(2, 400), (2, 300), (1, 200), (1, 100), (1, 400), (1, 300)]


def test_fallbacks_are_never_of_a_later_step(rolled_back):
    assert all(c.step <= 300 for c in choose(rolled_back, 300))


def test_a_step_on_two_branches_means_the_live_one(rolled_back):
    assert _steps(choose(rolled_back, 400))[0] == (2, 400)


def test_a_step_on_a_newer_but_abandoned_branch_means_the_older_live_one(make):
    first = [make(step, 1) for step in (100, 200, 300)]
    second = [make(200, 2, origin=first[0])]
    third = [make(400, 3, origin=first[2])]

    assert choose([*first, *second, *third], 200)[0] == first[1]


def test_a_step_that_only_the_abandoned_branch_has_falls_back_along_that_branch(rolled_back):
    found = choose(rolled_back, 500)

    assert _steps(found) == [(1, 500), (1, 400), (1, 300), (1, 200), (1, 100)]


def test_a_step_may_be_given_as_text(rolled_back):
    assert choose(rolled_back, "400") == choose(rolled_back, 400)


def test_an_id_or_its_beginning_names_a_checkpoint(rolled_back):
    wanted = rolled_back[4]

    assert choose(rolled_back, wanted.id)[0] == wanted
    assert choose(rolled_back, "000000500-e")[0] == wanted


def test_a_full_id_wins_over_a_longer_one_that_begins_like_it(make):
    plain, twin = make(100), make(100, twin=1)

    assert choose([plain, twin], plain.id)[0] == plain


def test_an_ambiguous_beginning_is_refused_with_the_candidates(rolled_back):
    with pytest.raises(UsageError, match="ambiguous, 2 begin like this") as caught:
        choose(rolled_back, "000000400-")

    assert rolled_back[3].id in str(caught.value)


def test_quarantined_checkpoints_are_left_out_unless_named_by_id(make):
    good, bad = make(100), make(200, quarantined="chunk 3 differs")

    assert choose([good, bad], "latest") == [good]
    assert choose([good, bad], bad.id) == [bad, good]
    with pytest.raises(NoCheckpointError, match="step 200 is quarantined: chunk 3 differs") as caught:
        choose([good, bad], 200)
    assert bad.id in caught.value.hint


def test_latest_does_not_return_to_an_abandoned_later_step_when_the_line_is_damaged(make, rolled_back):
    only_later = [c._replace(quarantined="" if c.step == 500 else "bad") for c in rolled_back]

    with pytest.raises(NoCheckpointError, match="quarantined") as caught:
        choose(only_later, "latest")

    assert rolled_back[4].id in caught.value.hint


def test_latest_takes_an_abandoned_one_of_an_earlier_step_when_the_line_is_damaged(rolled_back):
    damaged = [c._replace(quarantined="" if (c.attempt, c.step) == (1, 300) else "bad") for c in rolled_back]

    assert _steps(choose(damaged, "latest")) == [(1, 300)]


def test_best_is_the_smallest_and_with_mode_max_the_largest(make):
    run = [make(step, metrics={"loss": value}) for step, value in ((1, 0.5), (2, 0.1), (3, 0.9))]

    assert choose(run, "best")[0].step == 2
    assert choose(run, "best", by="loss", mode="max")[0].step == 3


def test_nan_is_never_best_and_of_equals_the_newer_wins(make):
    values = ((1, 0.5), (2, float("nan")), (3, 0.5), (4, float("nan")))
    run = [make(step, metrics={"loss": value}) for step, value in values]

    assert choose(run, "best", mode="min")[0].step == 3
    assert choose(run, "best", mode="max")[0].step == 3


def test_the_best_is_the_best_also_on_an_abandoned_branch(make, rolled_back):
    scored = [c._replace(metrics={"loss": 1.0 / c.step}) for c in rolled_back]

    assert _steps(choose(scored, "best"))[0] == (1, 500)


def test_a_fork_is_remembered_when_the_attempt_that_made_it_is_gone(make):
    old = [make(attempt=1, step=step) for step in (10, 20, 40)]
    forks = (Fork(2, old[1].id),)
    newest = make(attempt=3, step=100)._replace(forks=forks, origin="000000090-e000-20260101T000000Z-a0002")

    assert live_line([*old, newest]) == {old[0].id, old[1].id, newest.id}
    assert live_line([*old, newest._replace(forks=())]) == {*(c.id for c in old), newest.id}
    assert live_line([*old, newest._replace(forks=(Fork(2, None),))]) == {newest.id}
    assert live_line(old, attempt=3, origin=old[1].id, forks=forks) == {old[0].id, old[1].id}


def test_best_needs_one_metric_or_a_name(make):
    two = [make(1, metrics={"loss": 1.0, "accuracy": 0.5})]

    with pytest.raises(UsageError, match="by which metric"):
        choose(two, "best")
    with pytest.raises(NoCheckpointError, match="no checkpoint was saved with a metric"):
        choose([make(1)], "best")
    with pytest.raises(NoCheckpointError, match=r"metric 'speed' \(there are: accuracy, loss\)"):
        choose(two, "best", by="speed")
    with pytest.raises(UsageError, match="mode 'down'"):
        choose(two, "best", by="loss", mode="down")


def test_a_missing_step_names_the_nearest_ones(make):
    run = [make(step) for step in range(100, 2000, 100)]

    with pytest.raises(NoCheckpointError, match="no checkpoint of step 950; the nearest of 19: 700, 800, 900, 1000"):
        choose(run, 950)


def test_nothing_there_nothing_matching_and_nonsense_are_told_apart(make):
    with pytest.raises(NoCheckpointError, match="latest: the run has no checkpoints yet"):
        choose([], "latest")
    with pytest.raises(NoCheckpointError, match="no checkpoint is called 'newest'"):
        choose([make(1)], "newest")
    with pytest.raises(NoCheckpointError, match="no checkpoint is called ''"):
        choose([make(1)], "")
    with pytest.raises(UsageError, match="cannot choose"):
        choose([make(1)], True)


def test_importing_lineage_stays_light():
    heavy = "{'dataclasses', 'inspect', 'numpy', 'msgspec'} & set(sys.modules)"
    code = f"import sys; import holdfast.policy.lineage; print(sorted({heavy}))"
    source = str(Path(holdfast.__file__).parents[1])

    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, env={"PYTHONPATH": source}, check=True
    )

    assert done.stdout.strip() == "[]"


class TestHealthy:
    def test_one_whose_loss_is_no_number_is_passed_over_even_if_nobody_looked(self, make):
        run = [make(1, metrics={"loss": 1.0}), make(2, metrics={"loss": math.nan}), make(3, metrics={"loss": math.inf})]

        assert [c.step for c in choose(run, "healthy")] == [1]

    def test_unless_all_are_so(self, make):
        run = [make(1, metrics={"accuracy": math.nan}), make(2, metrics={"accuracy": math.nan})]

        assert [c.step for c in choose(run, "healthy")] == [2, 1]

    def test_it_is_the_newest_that_is_not_suspect_with_healthy_ones_to_fall_back_to(self, make):
        run = [make(1), make(2, suspect="spike"), make(3), make(4, suspect="nan"), make(5, suspect="nan")]

        assert [c.step for c in choose(run, "healthy")] == [3, 1]
        assert [c.step for c in choose(run, "latest")] == [5, 4, 3, 2, 1]
        assert choose(run, 5)[0].suspect == "nan"

    def test_without_suspects_it_is_the_latest(self, rolled_back):
        assert choose(rolled_back, "healthy") == choose(rolled_back, "latest")

    def test_quarantined_ones_are_passed_over_as_well(self, make):
        run = [make(1), make(2, quarantined="damaged"), make(3, suspect="nan")]

        assert [c.step for c in choose(run, "healthy")] == [1]

    def test_what_is_in_memory_only_does_not_count(self, make):
        """Marks are made of what is on the disk: nobody can say of it that it is healthy."""
        run = [make(1), make(2, suspect="nan"), make(3)._replace(where=("memory",))]

        assert choose(run, "healthy")[0].step == 1

    def test_an_abandoned_one_of_a_later_step_is_not_taken(self, make):
        first = [make(1, suspect="nan"), make(5)]
        run = [*first, make(2, 2, origin=first[0], suspect="nan")]

        with pytest.raises(NoCheckpointError, match="suspect: nan"):
            choose(run, "healthy")

    def test_where_all_are_suspect_it_says_why_and_what_to_do(self, make):
        with pytest.raises(NoCheckpointError, match="all 2 usable checkpoints are suspect: the loss is nan") as caught:
            choose([make(1, suspect="spike"), make(2, suspect="the loss is nan")], "healthy")
        assert "latest" in caught.value.hint

        with pytest.raises(NoCheckpointError, match="quarantined"):
            choose([make(1, quarantined="damaged")], "healthy")
