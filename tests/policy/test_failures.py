"""How often a job fails, and the interval that loses the least time."""

import math

import pytest

from holdfast.policy.failures import PRIOR_MTBF_S, FailureRate, Lifetime, young_daly

DAY_S = 86_400.0


def lost_per_second(interval_s: float, cost_s: float, mtbf_s: float) -> float:
    """Exactly, for exponential failures: time taken for each second of work, without the restart."""
    return mtbf_s * math.expm1((interval_s + cost_s) / mtbf_s) / interval_s


def test_without_attempts_the_prior_is_all_there_is() -> None:
    assert FailureRate.of([]).mtbf_s == PRIOR_MTBF_S
    assert FailureRate.of([], prior_mtbf_s=3600.0).mtbf_s == 3600.0


def test_many_attempts_outweigh_the_prior() -> None:
    rate = FailureRate.of([Lifetime(3600.0, failed=True)] * 200)

    assert rate.mtbf_s == pytest.approx(3600.0, rel=0.15)


def test_attempts_that_end_well_count_as_time_without_a_failure() -> None:
    rate = FailureRate.of([Lifetime(DAY_S, failed=False)] * 9)

    assert rate.mtbf_s == pytest.approx(10 * DAY_S)


def test_failures_elsewhere_count_less() -> None:
    here = FailureRate.of([Lifetime(60.0, failed=True)] * 10)
    elsewhere = FailureRate.of([Lifetime(60.0, failed=True, same_host=False)] * 10)

    assert here.mtbf_s < elsewhere.mtbf_s < PRIOR_MTBF_S


def test_the_longer_an_attempt_lives_the_rarer_failures_seem() -> None:
    rate = FailureRate.of([Lifetime(3600.0, failed=True)] * 3)

    assert rate.survived(DAY_S).mtbf_s > rate.mtbf_s
    assert rate.survived(-5.0) == rate


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_lifetimes_that_make_no_sense_are_left_out(seconds: float) -> None:
    assert FailureRate.of([Lifetime(seconds, failed=True)]) == FailureRate.of([])


def test_the_rate_never_becomes_infinite() -> None:
    assert FailureRate.of([Lifetime(0.0, failed=True)] * 10**6, prior_mtbf_s=1.0).mtbf_s >= 1.0


@pytest.mark.parametrize(("cost_s", "mtbf_s"), [(0.1, DAY_S), (10.0, DAY_S), (60.0, 3600.0), (600.0, 3600.0)])
def test_no_other_interval_loses_less(cost_s: float, mtbf_s: float) -> None:
    best_s = young_daly(cost_s, mtbf_s)
    found = lost_per_second(best_s, cost_s, mtbf_s)

    tried = [lost_per_second(best_s * 1.05**power, cost_s, mtbf_s) for power in range(-60, 61)]

    assert found <= min(tried) * 1.0005


def test_a_small_cost_gives_the_formula_of_young() -> None:
    assert young_daly(0.001, DAY_S) == pytest.approx(math.sqrt(2 * 0.001 * DAY_S), rel=0.001)


def test_the_ends_of_the_range() -> None:
    assert young_daly(0.0, DAY_S) == 0.0
    assert young_daly(-1.0, DAY_S) == 0.0
    assert young_daly(5000.0, 100.0) == 100.0
