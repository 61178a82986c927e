"""How a job with a time limit ends: the last checkpoint is begun early enough, and not earlier than it must be."""

import json
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.policy.deadline import Action, Costs, Ending, Margin, StepTimes, decide_end, decide_grace

_COSTS = Costs(stall_s=1, durable_s=19)
_STEPS = StepTimes(usual_s=8, longest_s=8)
_EVEN = Margin(factor=1.5)
# One more step of up to 10 s, a checkpoint of up to 30 s, 5 s to end.
_NEEDED_S = 45


def _decide(left_s: float | None, costs: Costs = _COSTS, **more: object) -> Ending:
    return decide_end(left_s, costs=costs, **{"steps": _STEPS, "margin": _EVEN, **more})  # type: ignore[arg-type]


class TestEnd:
    def test_it_goes_on_while_a_step_and_a_checkpoint_and_the_end_fit(self) -> None:
        assert _decide(_NEEDED_S).action is Action.GO_ON
        assert _decide(_NEEDED_S - 0.1).action is Action.SAVE_AND_STOP

    def test_in_a_short_job_less_is_left_for_what_is_not_known(self) -> None:
        unknown = {"costs": Costs(), "steps": StepTimes(), "margin": Margin(factor=1.5)}

        # Of a long one, 30 s with their margin, and 5 s; of 4 s, a quarter with its margin, and 15 %.
        assert decide_end(50, whole_s=3600, **unknown).action is Action.GO_ON
        assert decide_end(49, whole_s=3600, **unknown).action is Action.SAVE_AND_STOP
        assert decide_end(2.2, whole_s=4, **unknown).action is Action.GO_ON
        assert decide_end(2, whole_s=4, **unknown).action is Action.SAVE_AND_STOP
        assert decide_end(-1, whole_s=-1, **unknown).action is Action.REPORT

    def test_hour_long_steps_stop_at_the_last_safe_point_before(self) -> None:
        steps = StepTimes().note(1, 3500).note(1, 3600)

        assert _decide(4600, steps=steps).action is Action.GO_ON
        assert _decide(4500, steps=steps).action is Action.SAVE_AND_STOP

    def test_it_looks_again_before_the_spare_time_is_gone(self) -> None:
        assert _decide(_NEEDED_S + 4).look_in_s == 2
        assert _decide(_NEEDED_S).look_in_s == 0

    def test_a_limit_may_be_shortened_so_it_looks_again_soon_also_days_before(self) -> None:
        assert _decide(1e6).look_in_s <= 10
        assert _decide(math.inf).look_in_s <= 10

    @pytest.mark.parametrize("left_s", [None, math.nan])
    def test_an_unknown_limit_stops_nothing_and_is_asked_for_again_at_once(self, left_s: float | None) -> None:
        ending = _decide(left_s)

        assert ending.action is Action.GO_ON
        assert ending.look_in_s <= 1

    def test_no_limit_stops_nothing(self) -> None:
        assert _decide(math.inf).action is Action.GO_ON

    def test_more_time_changes_the_answer_again(self) -> None:
        assert [_decide(left_s).action for left_s in (40, 400, 40)] == [
            Action.SAVE_AND_STOP,
            Action.GO_ON,
            Action.SAVE_AND_STOP,
        ]

    def test_a_snapshot_on_its_way_comes_first(self) -> None:
        assert _decide(_NEEDED_S, Costs(1, 19, pending_s=1)).action is Action.SAVE_AND_STOP
        assert _decide(_NEEDED_S + 1.5, Costs(1, 19, pending_s=1)).action is Action.GO_ON

    def test_before_the_first_checkpoint_half_a_minute_is_set_aside_and_a_save_is_tried_in_any_case(self) -> None:
        assert _decide(60, Costs()).action is Action.GO_ON
        assert _decide(59, Costs()).action is Action.SAVE_AND_STOP
        assert _decide(1, Costs()).action is Action.SAVE_AND_STOP

    def test_a_save_that_fits_only_without_the_margin_is_tried(self) -> None:
        assert _decide(20).action is Action.SAVE_AND_STOP

    def test_no_time_for_a_new_snapshot_makes_the_last_one_durable(self) -> None:
        assert _decide(22, Costs(1, 19, pending_s=3)).action is Action.FLUSH
        assert _decide(3, Costs(1, 19, pending_s=3)).action is Action.FLUSH

    def test_no_time_for_anything_is_reported(self) -> None:
        assert _decide(2, Costs(1, 19, pending_s=3)).action is Action.REPORT
        assert _decide(19).action is Action.REPORT

    @pytest.mark.parametrize("left_s", [0, -1, -1e9])
    def test_after_the_end_there_is_nothing_left_to_do(self, left_s: float | None) -> None:
        assert _decide(left_s).action is Action.REPORT
        assert _decide(left_s, Costs()).action is Action.REPORT

    def test_the_reason_says_what_was_weighed(self) -> None:
        assert _decide(40).reason == (
            "40 s left; a step takes up to 10 s, a checkpoint 30 s, the end 5 s: save now, and stop"
        )
        assert _decide(10, Costs(1, 19, 2)).reason == (
            "10 s left; a step takes up to 10 s, a checkpoint 33 s, the end 5 s: too little for a checkpoint, "
            "which takes 22 s; the last snapshot becomes durable in 2 s"
        )

    @pytest.mark.parametrize("bad", [math.nan, -1.0, math.inf])
    def test_costs_that_make_no_sense_count_as_unknown(self, bad: float) -> None:
        assert _decide(60, Costs(bad, bad, bad), steps=StepTimes(bad, bad)).action is Action.GO_ON


class TestFinish:
    def test_a_program_that_is_done_before_the_limit_is_not_stopped(self) -> None:
        # Two steps, 20 s with their margin, a checkpoint of the end, 30 s with its own, and 5 s to end.
        assert _decide(55, steps_left=2).action is Action.FINISH
        assert _decide(54, steps_left=2).action is Action.GO_ON
        assert _decide(44, steps_left=2).action is Action.SAVE_AND_STOP

    def test_one_for_which_a_checkpoint_comes_too_late_is_let_finish_without(self) -> None:
        assert _decide(19, steps_left=1).action is Action.FINISH
        assert _decide(14, steps_left=1).action is Action.REPORT

    def test_one_that_is_not_done_before_is_treated_as_any_other(self) -> None:
        assert _decide(_NEEDED_S, steps_left=1000).action is Action.GO_ON
        assert _decide(_NEEDED_S - 1, steps_left=1000).action is Action.SAVE_AND_STOP

    def test_one_of_the_steps_may_be_as_long_as_the_longest(self) -> None:
        steps = StepTimes(usual_s=8, longest_s=80)

        assert _decide(145, steps=steps, steps_left=2).action is Action.FINISH
        assert _decide(144, steps=steps, steps_left=2).action is Action.GO_ON

    def test_what_is_on_its_way_becomes_durable_before_the_end(self) -> None:
        assert _decide(56.5, Costs(1, 19, 1), steps_left=2).action is Action.FINISH
        assert _decide(56, Costs(1, 19, 1), steps_left=2).action is Action.GO_ON

    def test_after_the_last_step_nothing_is_stopped(self) -> None:
        assert _decide(0.5, steps_left=0).action is Action.FINISH

    @pytest.mark.parametrize("steps_left", [-1, -1000])
    def test_a_program_that_goes_on_after_its_last_step_said_something_wrong(self, steps_left: int) -> None:
        assert _decide(_NEEDED_S, steps_left=steps_left).action is Action.GO_ON
        assert _decide(_NEEDED_S - 1, steps_left=steps_left).action is Action.SAVE_AND_STOP
        assert decide_grace(30, costs=_COSTS, steps=_STEPS, steps_left=steps_left).action is Action.SAVE_AND_STOP

    def test_steps_of_unknown_length_promise_nothing(self) -> None:
        assert _decide(20, steps=StepTimes(), steps_left=1).action is Action.SAVE_AND_STOP

    def test_it_looks_again_in_case_steps_become_longer(self) -> None:
        assert _decide(1000, steps_left=2).look_in_s <= 10
        assert _decide(57, steps_left=2).look_in_s == 1


class TestGrace:
    def test_there_is_time_for_a_checkpoint(self) -> None:
        assert decide_grace(20, costs=_COSTS).action is Action.SAVE_AND_STOP

    def test_the_step_that_is_being_made_comes_before_it(self) -> None:
        assert decide_grace(30, until_safe_s=10, costs=_COSTS).action is Action.SAVE_AND_STOP
        assert decide_grace(30, until_safe_s=10.1, costs=_COSTS).action is Action.REPORT

    def test_three_seconds_and_a_long_step_make_the_last_snapshot_durable(self) -> None:
        ending = decide_grace(3, until_safe_s=60, costs=Costs(0.1, 0.5, pending_s=0.4))

        assert ending.action is Action.FLUSH
        assert ending.reason.startswith("3 s of grace: too little for a checkpoint")

    def test_not_even_that(self) -> None:
        assert decide_grace(3, until_safe_s=60, costs=Costs(1, 9, pending_s=8)).action is Action.REPORT

    @pytest.mark.parametrize("grace_s", [0, -5, math.nan])
    def test_no_grace_at_all(self, grace_s: float) -> None:
        assert decide_grace(grace_s, costs=Costs()).action is Action.REPORT

    def test_a_program_that_is_done_within_the_grace_is_not_stopped(self) -> None:
        assert decide_grace(40, until_safe_s=2, costs=_COSTS, steps=_STEPS, steps_left=1).action is Action.FINISH
        assert decide_grace(20, until_safe_s=2, costs=_COSTS, steps=_STEPS, steps_left=1).action is Action.FINISH
        assert decide_grace(20, until_safe_s=9, costs=_COSTS, steps=_STEPS, steps_left=1).action is Action.REPORT


class TestMargin:
    def test_a_save_that_took_twice_as_long_raises_it_at_once(self) -> None:
        assert Margin().note(10, 20.5).factor == pytest.approx(2.2)

    def test_it_comes_down_slowly_and_not_below_the_floor(self) -> None:
        margin = Margin(factor=3)

        once = margin.note(10, 10)
        for _ in range(1000):
            margin = margin.note(10, 1)

        assert 2.5 < once.factor < 3
        assert margin.factor == 1.2

    def test_it_has_a_cap(self) -> None:
        assert Margin().note(1, 1000).factor == 4

    def test_the_noise_of_short_saves_teaches_nothing(self) -> None:
        assert Margin().note(0.001, 0.1).factor <= Margin().factor

    @pytest.mark.parametrize(("expected_s", "actual_s"), [(math.nan, 1), (1, math.nan), (-1, 1), (1, math.inf)])
    def test_times_that_make_no_sense_teach_nothing(self, expected_s: float, actual_s: float) -> None:
        assert Margin().note(expected_s, actual_s) == Margin()

    def test_it_is_kept_as_plain_values(self) -> None:
        margin = Margin().note(10, 25).note(10, 11)

        assert Margin.from_plain(json.loads(json.dumps(margin.to_plain()))) == margin

    @pytest.mark.parametrize(
        "plain",
        [None, [], "x", {}, {"factor": "2", "saves": 1}, {"factor": math.nan, "saves": 1}, {"factor": 2},
         {"factor": 2, "saves": -1}, {"factor": True, "saves": 1}],
    )  # fmt: skip
    def test_garbage_is_the_first_margin(self, plain: object) -> None:
        assert Margin.from_plain(plain) == Margin()

    @pytest.mark.parametrize(("factor", "kept"), [(0, 1.2), (1e9, 4), (10**400, 4)])
    def test_a_factor_out_of_bounds_is_brought_back(self, factor: float, kept: float) -> None:
        assert Margin.from_plain({"factor": factor, "saves": 1}).factor == kept


class TestStepTimes:
    def test_all_that_is_unusual_is_put_down_to_one_step(self) -> None:
        steps = StepTimes().note(10, 10).note(10, 30)

        assert steps.usual_s == 1.25
        assert steps.longest_s == pytest.approx(30 - 9 * 1.25)

    def test_a_pause_that_comes_again_is_not_forgotten(self) -> None:
        steps = StepTimes()
        for _ in range(5):
            steps = steps.note(1, 60)
            for _ in range(10):
                steps = steps.note(60, 60)

        assert steps.longest_s > 40

    def test_a_pause_that_came_once_is_forgotten_in_the_end(self) -> None:
        steps = StepTimes(1, 1).note(1, 3600)
        remembered = steps.note(3600, 3600).longest_s
        for _ in range(2000):
            steps = steps.note(600, 600)

        assert remembered > 3000
        assert steps.longest_s < 60

    @pytest.mark.parametrize(("count", "seconds"), [(0, 1), (-1, 1), (1, math.nan), (1, -1), (1, math.inf)])
    def test_times_that_make_no_sense_change_nothing(self, count: int, seconds: float) -> None:
        assert _STEPS.note(count, seconds) == _STEPS


@given(
    limit_s=st.floats(60, 1e5),
    step_s=st.floats(0.01, 4000),
    jitter=st.lists(st.floats(0.8, 1.2), min_size=1, max_size=20),
    durable_s=st.floats(0.1, 600),
    slower=st.lists(st.floats(0.5, 1.5), min_size=1, max_size=20),
    changes=st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e4)), max_size=3),
)
def test_a_job_stops_itself_in_time_with_all_its_steps_saved(
    limit_s: float,
    step_s: float,
    jitter: list[float],
    durable_s: float,
    slower: list[float],
    changes: list[tuple[float, float]],
) -> None:
    """Whatever the steps and the costs, which vary, also where the limit is extended meanwhile."""
    longest_s = step_s * max(jitter)
    assume(limit_s > 20 + longest_s * 1.6 + durable_s * 3)
    steps, margin, now_s, end_s, made = StepTimes(), Margin(), 0.0, limit_s, 0
    stall_s, look_s = durable_s / 10, 0.0
    costs = Costs(stall_s, durable_s)

    for made in range(1, 3000):
        took_s = step_s * jitter[made % len(jitter)]
        now_s += took_s
        steps = steps.note(1, took_s)
        for at_s, more_s in changes:
            if now_s - took_s <= at_s < now_s:
                end_s += more_s
        if now_s < look_s:
            continue
        ending = decide_end(end_s - now_s, costs=costs, steps=steps, margin=margin)
        if ending.action is not Action.GO_ON:
            break
        look_s = now_s + ending.look_in_s
    else:
        assume(False)
    saved_s = now_s + (stall_s + durable_s) * slower[made % len(slower)]

    assert ending.action is Action.SAVE_AND_STOP
    assert saved_s + 5 <= end_s + 1e-6
    # Nor did it stop long before: another step with everything at its worst might have been too long.
    assert saved_s + 5 + 1.25 * longest_s + (stall_s + durable_s) * 1.5 > end_s
