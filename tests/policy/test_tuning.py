"""The tuner, fed by hand: what each rule does, which one wins, and what it makes of odd measurements."""

import math
import random
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import pytest

from holdfast.policy.auto import auto
from holdfast.policy.failures import FailureRate, Lifetime, young_daly
from holdfast.policy.tuning import FIRST, Plan, Profile, Tuner
from holdfast.testing.hindsight import swings

USUAL = FailureRate.of([])


class Costs(NamedTuple):
    step_s: float = 0.1
    stall_s: float = 0.5
    durable_s: float = 2.0
    slow: float = 0.0


USUAL_COSTS = Costs()


class Loop:
    """A training that does what the tuner says, on a clock of its own."""

    def __init__(self, tuner: Tuner, costs: Costs = USUAL_COSTS) -> None:
        self.tuner = tuner
        self.costs = costs
        self.noise: Callable[[int], float] = lambda count: 0.0
        self.queued_s: float | None = None
        self.step = 0
        self.since = 0
        self.intervals: list[int] = []
        self.base_s = 0.0
        self.cost_s = 0.0

    def run(self, checkpoints: int, *, most_steps: int = 10**7) -> "Loop":
        wanted, end = len(self.intervals) + checkpoints, self.step + most_steps
        while len(self.intervals) < wanted and self.step < end:
            interval = self.tuner.interval_steps
            if interval is not None and self.step - self.since >= interval:
                self._save()
            else:
                look = self.tuner.look_steps
                left = look if interval is None else interval - (self.step - self.since)
                self._steps(max(1, min(left, look)), writing=False)
        return self

    def _save(self) -> None:
        costs = self.costs
        self.intervals.append(self.step - self.since)
        self.since = self.step
        self.tuner.note_saved(costs.stall_s)
        slow_s = costs.durable_s * costs.slow / (1 + costs.slow)
        self._steps(max(1, math.ceil((costs.durable_s - slow_s) / costs.step_s)), writing=True, extra_s=slow_s)
        self.tuner.note_durable(costs.durable_s, self.queued_s)
        self.cost_s += costs.stall_s + slow_s

    def _steps(self, count: int, *, writing: bool, extra_s: float = 0.0) -> None:
        seconds = count * self.costs.step_s + self.noise(count)
        self.step += count
        self.base_s += seconds
        self.tuner.note_steps(count, seconds + extra_s, writing=writing)

    @property
    def plan(self) -> Plan:
        return self.tuner.plan()


def tuner_of(failures: FailureRate = USUAL, profile: Profile | None = None, **options: object) -> Tuner:
    """As often as the overhead allows, unless something else is asked for."""
    asked = {"lose_at_most": None, "at_least_every_steps": 1, **options}
    return Tuner(auto(**asked), profile=profile, failures=failures)  # type: ignore[arg-type]


def wish(plan: Plan, name: str) -> int:
    return next(rule.steps for rule in plan.rules if rule.name == name)


# The first checkpoints.


def test_before_anything_is_measured_there_is_no_interval() -> None:
    plan = tuner_of().plan()

    assert (plan.interval_steps, plan.won, plan.rules) == (None, FIRST, ())
    assert "measured" in plan.why


@pytest.mark.parametrize(("step_s", "steps"), [(1e-5, 500_000), (0.01, 500), (0.5, 10), (3.0, 10), (3600.0, 1)])
def test_one_early_checkpoint_measures_what_one_costs(step_s: float, steps: int) -> None:
    loop = Loop(tuner_of(), Costs(step_s=step_s)).run(1)

    assert loop.intervals == [pytest.approx(steps, rel=0.2)]


def test_a_second_one_waits_until_the_first_is_durable() -> None:
    tuner = tuner_of()
    tuner.note_steps(1000, 100.0, writing=False)
    tuner.note_saved(1.0)

    tuner.note_steps(10**6, 10**5, writing=True)

    assert tuner.interval_steps is None


def test_a_first_one_that_fails_is_not_the_last() -> None:
    tuner = tuner_of()
    for _ in range(5):
        tuner.note_steps(100, 10.0, writing=False)
    tuner.note_saved(1.0)
    tuner.note_steps(10, 1.0, writing=True)

    tuner.note_failed()
    tuner.note_steps(20, 2.0, writing=False)

    assert tuner.interval_steps is not None


# The rules.


def test_overhead_decides_where_checkpoints_are_dear() -> None:
    loop = Loop(tuner_of(overhead=0.05), Costs(step_s=0.1, stall_s=4.0)).run(40)

    assert loop.plan.won == "overhead"
    assert loop.intervals[-1] == pytest.approx(4.0 / 0.05 / 0.1, rel=0.1)
    assert loop.cost_s / loop.base_s <= 0.05


def test_slower_steps_while_writing_count_like_a_stall() -> None:
    stalling = Loop(tuner_of(overhead=0.05), Costs(stall_s=4.0, durable_s=20.0)).run(40)
    slowing = Loop(tuner_of(overhead=0.05), Costs(stall_s=0.0, durable_s=20.0, slow=0.25)).run(40)

    assert slowing.plan.measured.slow_s == pytest.approx(4.0, rel=0.05)
    assert slowing.intervals[-1] == pytest.approx(stalling.intervals[-1], rel=0.1)
    assert slowing.cost_s / slowing.base_s <= 0.05


def test_steps_that_are_faster_while_writing_are_chance_and_cost_nothing() -> None:
    loop = Loop(tuner_of(), Costs(slow=-0.1)).run(20)

    assert loop.plan.measured.slow_s == 0.0


def test_a_checkpoint_is_durable_before_the_next_one() -> None:
    loop = Loop(tuner_of(overhead=1.0), Costs(stall_s=0.001, durable_s=30.0)).run(30)

    assert loop.plan.won == "durable"
    assert 300 <= loop.intervals[-1] <= 350


def test_failures_decide_where_checkpoints_are_cheap() -> None:
    loop = Loop(tuner_of(at_least_every_steps=None), Costs(stall_s=0.02, durable_s=0.2)).run(30)

    assert loop.plan.won == "failures"
    assert loop.intervals[-1] * 0.1 == pytest.approx(young_daly(0.02, loop.tuner.mtbf_s), rel=0.1)


def test_more_failures_make_it_more_frequent() -> None:
    frail = FailureRate.of([Lifetime(1800.0, failed=True)] * 30)

    often = Loop(tuner_of(frail, at_least_every_steps=None), Costs(stall_s=0.02)).run(20)
    seldom = Loop(tuner_of(at_least_every_steps=None), Costs(stall_s=0.02)).run(20)

    assert often.intervals[-1] < 0.4 * seldom.intervals[-1]


def test_a_user_may_ask_for_more_than_failures_do_but_not_for_more_than_the_overhead_allows() -> None:
    frequent = Loop(tuner_of(at_least_every_steps=50), Costs(stall_s=0.02, durable_s=0.2)).run(20)
    dear = Loop(tuner_of(at_least_every_steps=50), Costs(stall_s=2.0, durable_s=3.0)).run(20)

    assert frequent.intervals[-1] == 50
    assert "asked for" in next(rule.text for rule in frequent.plan.rules if rule.name == "failures")
    assert dear.plan.won == "overhead"


def test_no_more_is_lost_than_was_asked_for_the_time_to_durable_included() -> None:
    loop = Loop(tuner_of(lose_at_most="1 min", at_least_every_steps=None), Costs(stall_s=0.5, durable_s=10.0)).run(20)

    assert loop.plan.won == "lose_at_most"
    assert loop.intervals[-1] * 0.1 + 10.0 <= 60.0
    assert loop.intervals[-1] * 0.1 + 10.0 >= 50.0


def test_lose_at_most_wins_over_the_overhead_and_says_so() -> None:
    loop = Loop(tuner_of(lose_at_most="1 min"), Costs(stall_s=6.0, durable_s=10.0)).run(20)

    assert loop.plan.won == "lose_at_most"
    assert "an overhead of 3.5 % cannot be held" in loop.plan.why
    assert "allow more" in loop.plan.why


def test_a_storage_that_is_too_slow_for_lose_at_most_is_said_to_be() -> None:
    loop = Loop(tuner_of(lose_at_most="1 min"), Costs(stall_s=0.1, durable_s=90.0)).run(20)

    assert loop.plan.won == "durable"
    assert 900 <= loop.intervals[-1] <= 1100
    assert "cannot be held" in loop.plan.why
    assert "faster storage" in loop.plan.why


def test_an_interval_that_no_attempt_lives_to_see_is_not_asked_for() -> None:
    frail = FailureRate.of([Lifetime(300.0, failed=True)] * 300)

    tuner = tuner_of(frail, Profile(step_s=0.1, stall_s=100.0, slow_s=0.0, durable_s=100.0), overhead=0.01)

    assert (tuner.interval_steps or 0) * 0.1 < 700
    assert "failures every" in tuner.plan().why


def test_every_rule_is_told_with_its_wish() -> None:
    plan = Loop(tuner_of(lose_at_most="10 min")).run(10).plan

    assert [rule.name for rule in plan.rules] == ["durable", "overhead", "failures", "lose_at_most"]
    assert all(rule.steps >= 1 and rule.text for rule in plan.rules)
    assert plan.won in plan.why
    assert str(plan.interval_steps) in plan.why


# Risk.


def test_risk_makes_it_more_frequent_at_once_and_back() -> None:
    loop = Loop(tuner_of(at_least_every_steps=None), Costs(stall_s=0.02, durable_s=0.2)).run(20)
    calm = loop.tuner.interval_steps or 0

    loop.tuner.risk = 25.0
    alarmed = loop.tuner.interval_steps or 0
    loop.tuner.risk = 1.0

    assert alarmed == pytest.approx(calm / 5, rel=0.1)
    assert loop.tuner.interval_steps == pytest.approx(calm, rel=0.1)


def test_under_risk_what_was_saved_of_the_overhead_may_be_spent_but_no_more() -> None:
    loop = Loop(tuner_of(overhead=0.01, at_least_every_steps=None), Costs(stall_s=0.02, durable_s=0.2)).run(20)
    loop.costs = Costs(stall_s=0.5, durable_s=1.0)

    loop.tuner.risk = 1000.0
    loop.run(40)

    assert min(loop.intervals[20:]) * 0.1 < 0.5 / 0.01  # more often than the overhead alone would allow
    assert loop.cost_s / loop.base_s <= 0.0101


@pytest.mark.parametrize("risk", [0.0, -3.0, math.nan, math.inf])
def test_a_risk_that_makes_no_sense_is_none(risk: float) -> None:
    tuner = tuner_of()

    tuner.risk = risk

    assert tuner.risk == 1.0


# What is measured.


def test_compilation_and_slow_first_steps_do_not_count() -> None:
    loop = Loop(tuner_of(overhead=0.05), Costs(stall_s=4.0))
    first = [True]

    def warm_up(count: int) -> float:
        extra_s = 60.0 if first[0] else 0.0
        first[0] = False
        return extra_s + (0.3 * count if loop.step < 200 else 0.0)

    loop.noise = warm_up
    loop.run(20)

    assert loop.plan.measured.step_s == pytest.approx(0.1, rel=0.05)
    assert loop.intervals[-1] == pytest.approx(800, rel=0.15)


def test_evaluation_pauses_move_the_interval_little() -> None:
    loop = Loop(tuner_of(overhead=0.05), Costs(stall_s=4.0))
    loop.noise = lambda count: 40.0 * ((loop.step + count) // 3000 - loop.step // 3000)

    loop.run(40)

    assert loop.intervals[-1] == pytest.approx(800, rel=0.2)
    assert loop.plan.measured.slow_s == pytest.approx(0.0, abs=0.2)


def test_gradient_accumulation_is_averaged() -> None:
    loop = Loop(tuner_of(overhead=0.05), Costs(stall_s=4.0))
    loop.noise = lambda count: 0.4 * ((loop.step + count) // 8 - loop.step // 8)

    loop.run(40)

    assert loop.plan.measured.step_s == pytest.approx(0.15, rel=0.05)
    assert loop.plan.measured.slow_s == pytest.approx(0.0, abs=0.2)


@pytest.mark.parametrize("factor", [0.2, 0.5, 2.0, 6.0])
def test_a_change_of_the_step_time_is_followed_within_a_few_checkpoints(factor: float) -> None:
    loop = Loop(tuner_of(overhead=0.05), Costs(stall_s=4.0)).run(20)

    loop.costs = loop.costs._replace(step_s=0.1 * factor)
    loop.run(4)

    assert loop.tuner.interval_steps == pytest.approx(800 / factor, rel=0.25)


@pytest.mark.parametrize("factor", [0.2, 0.5, 2.0, 6.0])
def test_a_change_of_the_cost_is_followed_within_a_few_checkpoints(factor: float) -> None:
    loop = Loop(tuner_of(overhead=0.05), Costs(stall_s=4.0)).run(60)

    loop.costs = loop.costs._replace(stall_s=4.0 * factor)
    loop.run(5)

    # After a rise it is longer for a while: what was spent too much is saved again.
    assert loop.tuner.interval_steps == pytest.approx(800 * factor, rel=0.35)


def test_a_slower_storage_is_followed_within_a_few_checkpoints() -> None:
    loop = Loop(tuner_of(overhead=0.05), Costs(stall_s=0.1, durable_s=20.0, slow=0.25)).run(30)

    loop.costs = loop.costs._replace(durable_s=100.0)
    loop.run(6)

    assert loop.plan.measured.slow_s == pytest.approx(20.0, rel=0.1)
    assert loop.tuner.interval_steps == pytest.approx(20.1 / 0.05 / 0.1, rel=0.35)


def test_a_wrong_step_time_does_not_stay_when_checkpoints_leave_no_gap() -> None:
    # Compiled for so long that the interval is shorter than a write: no step is ever seen without one.
    loop = Loop(tuner_of(overhead=1.0), Costs(step_s=0.01, stall_s=0.001, durable_s=10.0))
    loop.tuner.note_steps(100, 500.0, writing=False)
    loop.tuner.note_steps(100, 500.0, writing=False)

    loop.run(12)

    assert loop.plan.measured.step_s == pytest.approx(0.01, rel=0.1)


def test_the_overhead_is_told_for_the_last_few_and_for_all() -> None:
    loop = Loop(tuner_of(overhead=0.05), Costs(stall_s=4.0)).run(30)
    loop.costs = loop.costs._replace(stall_s=0.4)
    loop.run(30)

    assert loop.tuner.overhead_run == pytest.approx(loop.cost_s / loop.base_s, rel=0.02)
    assert loop.tuner.overhead_window == pytest.approx(0.4 / 0.1 / loop.intervals[-1], rel=0.05)
    assert loop.tuner.overhead_window <= 0.05


def test_the_overhead_lately_is_never_negative_though_earlier_ones_turn_out_cheaper() -> None:
    # The first writes fall together with slow steps; that they are not to blame is known only from those after them.
    loop = Loop(tuner_of(overhead=0.05), Costs(stall_s=0.001, durable_s=2.0))
    seen = []
    for number in range(30):
        loop.costs = loop.costs._replace(slow=5.0 if number < 2 else 0.0)
        loop.run(1)
        seen.append(loop.tuner.overhead_window)

    assert min(seen) >= 0.0
    assert max(seen) > 0.0


# What the kernel says of cores.


def drowned(queued_s: float | None, slow: float) -> Loop:
    """Steps of a second that differ by half of it; a write slows one or two of them a little, or not at all."""
    loop = Loop(tuner_of(overhead=0.05, at_least_every_steps=None), Costs(1.0, 0.02, 1.5, slow))
    loop.queued_s = queued_s
    chance = random.Random(5)
    loop.noise = lambda count: max(-0.8 * count, chance.gauss(0.0, 0.5 * math.sqrt(count)))
    return loop.run(30)


def test_a_slow_down_that_drowns_in_noise_is_told_by_threads_without_a_core() -> None:
    slowed, free = drowned(0.25, 0.2), drowned(0.0, 0.0)

    best_s = [young_daly(cost_s, slowed.tuner.mtbf_s) for cost_s in (0.27, 0.02)]
    found_s = [(loop.tuner.interval_steps or 0) * 1.0 for loop in (slowed, free)]
    assert found_s == pytest.approx(best_s, rel=0.25)


@pytest.mark.parametrize("queued_s", [math.nan, math.inf, -math.inf])
def test_what_makes_no_sense_of_cores_is_not_known(queued_s: float) -> None:
    assert drowned(queued_s, 0.0).intervals == drowned(None, 0.0).intervals


def test_what_was_found_of_cores_is_kept_for_the_next_attempt() -> None:
    kept = Profile.from_plain(drowned(0.25, 0.2).plan.measured.to_plain())

    assert kept.queued_s == pytest.approx(0.25)
    assert drowned(-0.1, 0.0).plan.measured.queued_s == 0.0


# The run as a whole.


def test_one_that_may_cost_as_much_as_the_dearest_until_now_waits_until_that_is_paid_for() -> None:
    loop = Loop(tuner_of(overhead=0.05), Costs(stall_s=1.0)).run(4)
    usual = loop.costs
    loop.costs = usual._replace(stall_s=8.0)
    loop.run(1)
    loop.costs = usual
    loop.run(1)

    # If it had been as dear as that one again, the run would be within 1.2 times the limit all the same.
    assert (loop.cost_s - 1.0 + 8.0) / loop.base_s <= 1.2 * 0.05


@pytest.mark.parametrize("before", [1, 2, 3, 5, 10, 20, 40])
def test_the_run_can_pay_for_one_that_costs_eight_times_as_much_as_any_before(before: int) -> None:
    loop = Loop(tuner_of(overhead=0.05), Costs(stall_s=1.0)).run(before)
    loop.costs = loop.costs._replace(stall_s=8.0)

    loop.run(1)

    assert loop.cost_s / loop.base_s <= 1.2 * 0.05


def test_what_the_attempts_before_have_not_spent_is_there_for_that() -> None:
    measured = Loop(tuner_of(overhead=0.05), Costs(stall_s=1.0)).run(10).plan.measured

    def first_interval(base_s: float, spent_s: float) -> int:
        profile = msgspec.structs.replace(measured, base_s=base_s, spent_s=spent_s)
        return Loop(tuner_of(profile=profile, overhead=0.05), Costs(stall_s=1.0)).run(1).intervals[0]

    # At 5 %, checkpoints of one second are 21 s apart, in steps of a tenth of one.
    assert first_interval(10_000.0, 400.0) == pytest.approx(210, rel=0.1)
    assert first_interval(100.0, 5.0) == pytest.approx(8 / (1.15 * 0.05 * 0.1), rel=0.1)


# Odd input.


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, -1.0])
def test_notes_that_make_no_sense_are_left_out(seconds: float) -> None:
    loop = Loop(tuner_of()).run(5)
    before = loop.tuner.interval_steps

    loop.tuner.note_steps(10, seconds, writing=False)
    loop.tuner.note_steps(0, 5.0, writing=False)
    loop.tuner.note_steps(-3, 5.0, writing=True)
    loop.tuner.note_durable(seconds)
    loop.tuner.note_durable(seconds)

    assert loop.tuner.interval_steps == before
    assert math.isfinite(loop.tuner.overhead_run)


@pytest.mark.parametrize(
    "costs",
    [
        Costs(step_s=1e-6, stall_s=1e-6, durable_s=1e-5),
        Costs(step_s=1e-6, stall_s=10.0, durable_s=600.0),
        Costs(step_s=3600.0, stall_s=1e-3, durable_s=0.1),
        Costs(step_s=3600.0, stall_s=30.0, durable_s=900.0, slow=0.3),
        Costs(step_s=0.1, stall_s=0.0, durable_s=0.0),
    ],
)
def test_steps_of_microseconds_and_of_hours(costs: Costs) -> None:
    loop = Loop(tuner_of(lose_at_most="10 min", at_least_every_steps=None), costs).run(12, most_steps=10**11)

    assert len(loop.intervals) == 12
    assert (loop.tuner.interval_steps or 0) >= 1
    if costs.step_s == 3600.0:
        assert loop.intervals[-1] == 1
    assert loop.plan.why


def test_no_time_at_all_does_no_harm() -> None:
    tuner = tuner_of()
    for _ in range(100):
        tuner.note_steps(10**6, 0.0, writing=False)
    tuner.note_saved(0.0)
    tuner.note_durable(0.0)

    assert tuner.overhead_run == 0.0
    assert tuner.plan().interval_steps is None or tuner.plan().interval_steps


# The profile.


def test_the_next_attempt_begins_with_the_interval_of_this_one() -> None:
    loop = Loop(tuner_of(overhead=0.05), Costs(stall_s=4.0)).run(30)
    kept = Profile.from_plain(loop.plan.measured.to_plain())

    following = tuner_of(profile=kept, overhead=0.05)

    assert following.interval_steps == pytest.approx(loop.tuner.interval_steps, rel=0.1)


def test_a_profile_that_is_wrong_is_corrected_within_a_few_checkpoints() -> None:
    wrong = Profile(step_s=1.0, stall_s=0.4, slow_s=0.0, durable_s=20.0, interval_steps=8)

    loop = Loop(tuner_of(profile=wrong, overhead=0.05), Costs(stall_s=4.0)).run(10)

    assert loop.tuner.interval_steps == pytest.approx(800, rel=0.35)


@pytest.mark.parametrize(
    "garbage",
    [
        None,
        7,
        "x",
        [],
        {},
        {"step_s": "fast", "stall_s": -1, "slow_s": math.nan, "durable_s": math.inf, "interval_steps": 1.5},
        {"step_s": True, "interval_steps": -4, "steps": None, "saved": "many", "unknown": 1, 5: 6},
        {"step_s": 10**400},
    ],
)
def test_garbage_is_a_profile_that_knows_nothing(garbage: object) -> None:
    assert Profile.from_plain(garbage) == Profile()


def test_what_makes_sense_of_a_damaged_profile_is_kept() -> None:
    assert Profile.from_plain({"step_s": 0.1, "stall_s": "?"}) == Profile(step_s=0.1)


# Stability.


def noisy(seed: int, sigma: float) -> Loop:
    loop = Loop(tuner_of(overhead=0.05), Costs(stall_s=4.0, durable_s=20.0, slow=0.05))
    chance = random.Random(seed)
    loop.noise = lambda count: chance.gauss(0.0, sigma * 0.1 * math.sqrt(count))
    usual = loop.costs
    while len(loop.intervals) < 120:
        loop.costs = usual._replace(stall_s=4.0 * math.exp(chance.gauss(0.0, sigma)))
        loop.run(1)
    return loop


@pytest.mark.parametrize("sigma", [0.02, 0.1, 0.25])
@pytest.mark.parametrize("seed", range(5))
def test_noise_alone_does_not_make_it_swing(seed: int, sigma: float) -> None:
    loop = noisy(seed, sigma)

    assert swings(loop.intervals[16:]) <= (10 if sigma > 0.2 else 2)


def test_the_interval_stays_the_same_while_nothing_changes() -> None:
    loop = Loop(tuner_of(overhead=0.05), Costs(stall_s=4.0)).run(60)

    assert len(set(loop.intervals[16:])) == 1
