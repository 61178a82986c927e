"""What is believed of a slow-down, between what was measured and what is usual."""

import pytest

from holdfast.policy.belief import believe


def test_what_is_measured_well_is_believed() -> None:
    found = believe(0.1, 0.001)

    assert found.typical == pytest.approx(0.1, rel=0.05)
    assert found.mean == pytest.approx(0.1, rel=0.05)
    assert found.careful == pytest.approx(0.101, rel=0.05)


def test_what_drowns_in_noise_is_taken_for_nothing_but_guarded_against() -> None:
    found = believe(0.3, 3.0)

    assert found.typical <= 0.005
    assert 0.01 < found.mean < 0.1
    assert found.mean < found.careful < 0.3


def test_even_a_huge_measurement_says_nothing_where_its_error_is_as_large() -> None:
    assert believe(70.0, 40.0).careful < 0.3


def test_the_more_is_measured_with_the_same_error_the_more_is_believed() -> None:
    found = [believe(mean / 100, 0.02) for mean in range(-10, 60)]

    assert [one.typical for one in found] == sorted(one.typical for one in found)
    assert [one.mean for one in found] == pytest.approx(sorted(one.mean for one in found), abs=1e-3)
    assert [one.careful for one in found] == pytest.approx(sorted(one.careful for one in found), abs=1e-3)
    assert all(one.careful >= one.mean for one in found)


def test_a_step_that_takes_three_times_as_long_is_believed_too_if_it_is_clear() -> None:
    assert believe(0.67, 0.01).typical == pytest.approx(0.67)


@pytest.mark.parametrize("mean", [-1e300, -1.0, 0.0, 1.0])
@pytest.mark.parametrize("error", [1e-3, 1.0, 1e6])
def test_it_is_always_a_number(mean: float, error: float) -> None:
    found = believe(mean, error)

    assert 0 <= found.typical <= 1.01
    assert 0 <= found.mean <= found.careful


# What the kernel says of cores.


def test_where_threads_had_no_core_the_slow_down_is_about_that_even_if_it_drowns() -> None:
    found = believe(0.0, 3.0, 0.1)

    assert found.typical == pytest.approx(0.1, rel=0.2)
    assert found.careful < 0.25


def test_where_all_had_a_core_there_is_no_slow_down_unless_it_is_seen() -> None:
    assert believe(0.1, 0.2, 0.0).typical == 0.0
    assert believe(0.1, 0.01, 0.0).typical == pytest.approx(0.1, rel=0.1)


def test_threads_that_wait_and_do_not_matter_are_found_out() -> None:
    assert believe(0.0, 0.01, 0.3).typical == 0.0


def test_the_worst_is_more_than_what_is_careful_and_never_ruled_out_by_the_kernel_alone() -> None:
    found = believe(0.0, 3.0, 0.0)

    # A storage that the training reads from may be to blame, which has nothing to do with cores.
    assert found.careful < 0.05 < found.worst
    assert believe(0.1, 0.001).worst == pytest.approx(0.10233, rel=1e-3)
