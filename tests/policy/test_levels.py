"""The robust mean that everything measured goes through."""

import random

import pytest

from holdfast.policy.levels import Level


def level_of(samples: list[float], **options: bool) -> Level:
    level = Level(**options)
    for sample in samples:
        level.add(sample)
    return level


def test_before_the_first_sample_there_is_no_value() -> None:
    assert Level().value is None
    assert Level().count == 0


def test_noise_is_averaged() -> None:
    chance = random.Random(1)

    level = level_of([chance.gauss(10.0, 1.0) for _ in range(200)])

    assert level.value == pytest.approx(10.0, abs=0.6)
    assert level.spread == pytest.approx(1.0, rel=0.5)


def test_one_outlier_hardly_moves_it() -> None:
    level = level_of([1.0] * 10)

    counted = level.add(1000.0)

    assert level.value is not None
    assert level.value < 1.1
    assert counted < 2.0


def test_an_outlier_counts_in_the_long_run() -> None:
    level = level_of(([1.0] * 9 + [11.0]) * 6)

    assert level.value == pytest.approx(1.0, rel=0.1)
    assert level.mean == pytest.approx(2.0, rel=0.15)


@pytest.mark.parametrize("factor", [0.2, 0.8, 1.25, 5.0])
def test_a_move_is_followed_after_three_samples(factor: float) -> None:
    level = level_of([1.0, 1.02, 0.98] * 10)

    for _ in range(3):
        level.add(factor)

    assert level.value == pytest.approx(factor)
    assert level.mean == pytest.approx(factor)


def test_two_far_samples_are_no_move() -> None:
    level = level_of([1.0, 1.02, 0.98] * 10)

    level.add(2.0)
    level.add(2.0)

    assert level.value == pytest.approx(1.0, rel=0.05)


def test_a_slow_drift_is_followed() -> None:
    level = level_of([1.01**step for step in range(200)])

    assert level.value == pytest.approx(1.01**199, rel=0.12)


def test_the_first_sample_counts_only_as_long_as_it_is_alone() -> None:
    level = Level(warms_up=True)

    level.add(50.0)
    assert level.value == 50.0

    level.add(1.0)
    assert level.value == 1.0


def test_what_was_known_before_outlives_a_first_sample_that_warms_up() -> None:
    level = Level(2.0, warms_up=True)

    level.add(50.0)

    assert level.value == 2.0


def test_outliers_can_be_dropped_altogether() -> None:
    level = level_of([1.0] * 10 + [100.0], drops=True)

    assert level.value == 1.0
