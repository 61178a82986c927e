"""What a profile takes from a journal that nobody vouches for."""

import math

import pytest

from holdfast.policy.auto import auto
from holdfast.policy.profile import Profile
from holdfast.policy.tuning import Tuner

TIMES = ("step_s", "stall_s", "slow_s", "slow_error_s", "durable_s", "spent_s", "base_s", "queued_s")


def test_what_was_kept_comes_back() -> None:
    profile = Profile(0.1, 0.2, 0.3, 0.01, 2.0, 50, 1000, 20, 10.0, 100.0, 0.2)

    assert Profile.from_plain(profile.to_plain()) == profile


@pytest.mark.parametrize(
    "odd", [1e308, 1e-300, -1.0, math.nan, math.inf, 10**400, "long", None, True, [], {}], ids=repr
)
@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize(
    "limits", [{}, {"overhead": 1e-9}, {"mtbf": 1e308}, {"at_least_every_steps": 10**400}], ids=repr
)
def test_odd_values_end_nothing(name: str, odd: object, limits: dict[str, float]) -> None:
    plain = {**Profile(0.1, 0.2, 0.3, 0.01, 2.0, 50, 1000, 20, 10.0, 100.0, 0.2).to_plain(), name: odd}
    tuner = Tuner(auto(**limits), profile=Profile.from_plain(plain))  # type: ignore[arg-type]

    for _ in range(20):
        tuner.note_steps(20, 2.0, writing=False)
        tuner.note_saved(0.2)
        tuner.note_steps(20, 2.1, writing=True)
        tuner.note_durable(2.0)
        plan = tuner.plan()

    assert plan.interval_steps is not None
    assert plan.interval_steps >= 1
    assert plan.why
