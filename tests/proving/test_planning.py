"""Where a proof interrupts: at the nasty moments always, each later than the one before, behind a checkpoint."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.proving.planning import plan_legs
from holdfast.proving.reading import Course


def _course(steps, epochs=None):
    return Course("run", "step", tuple(steps), tuple(epochs or [None] * len(steps)))


def test_the_nasty_moments_are_always_among_them():
    legs = plan_legs(_course(range(1, 101)), interruptions=6, seed=0)

    by_reason = {leg.why: leg.interruption for leg in legs}
    assert by_reason["at the first step"].step == 1
    assert by_reason["at the last step"].step == 100
    assert by_reason["in the middle of a save"].when == "in save"
    assert {leg.interruption.signal for leg in legs[:-1]} == {"SIGKILL", "SIGTERM"}
    assert len(legs) == 7
    assert legs[-1].interruption is None


def test_with_epochs_one_is_in_the_middle_of_one():
    epochs = [step // 10 for step in range(100)]

    legs = plan_legs(_course(range(1, 101), epochs), interruptions=1, seed=0)

    step = legs[0].interruption.step
    assert legs[0].why == "in the middle of an epoch"
    assert epochs[step - 2] == epochs[step - 1] == epochs[step]
    assert legs[0].save_at == (step,)


def test_the_same_seed_gives_the_same_plan_and_another_seed_another():
    first, same, other = (plan_legs(_course(range(1, 200)), interruptions=9, seed=seed) for seed in (1, 1, 2))

    assert first == same
    assert first != other


@given(
    st.sets(st.integers(1, 10**6), min_size=1, max_size=60),
    st.integers(1, 40),
    st.integers(0, 10),
)
def test_every_start_is_interrupted_later_and_has_a_checkpoint_of_its_own(steps, interruptions, seed):
    course = _course(sorted(steps))

    legs = plan_legs(course, interruptions=interruptions, seed=seed)

    struck = [leg.interruption.step for leg in legs[:-1]]
    assert struck == sorted(set(struck))
    assert len(struck) == min(interruptions, len(steps))
    before = 0
    for leg in legs[:-1]:
        assert set(leg.save_at) <= steps
        assert leg.save_at
        assert all(before < step <= leg.interruption.step for step in leg.save_at)
        before = leg.interruption.step


def test_no_step_behind_the_last_one_is_waited_for():
    few, many = (plan_legs(_course(range(1, last + 1)), interruptions=last, seed=5) for last in (1, 60))

    assert few[0].interruption.when == "after save"
    assert many[-2].interruption.step == 60
    assert many[-2].interruption.when != "in step"


@pytest.mark.parametrize("when", ["in save", "before save", "after save"])
def test_what_is_struck_at_a_save_is_saved(when):
    legs = plan_legs(_course(range(1, 300)), interruptions=60, seed=3)

    struck = [leg for leg in legs[:-1] if leg.interruption.when == when]
    assert struck
    assert all(leg.interruption.step in leg.save_at for leg in struck)


def test_one_that_is_not_where_it_was_wanted_is_not_called_so():
    legs = plan_legs(_course(range(1, 4)), interruptions=4, seed=0)

    assert {leg.interruption.step for leg in legs[:-1] if leg.why == "at the first step"} <= {1}
    assert {leg.interruption.step for leg in legs[:-1] if leg.why == "at the last step"} <= {3}
