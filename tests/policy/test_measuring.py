"""What is made of noisy writes: the part of their time that slower steps cost."""

import random

import pytest

from holdfast.policy.measuring import Costs, Pace
from holdfast.policy.profile import Profile
from holdfast.policy.slowing import Slowing
from holdfast.policy.writes import Recent, Write

NOISE = 0.1  # of a step


def slowing_of(part: float, writes: int, *, seed: int = 1, steps: int = 100, first: Slowing | None = None) -> Slowing:
    """Writes of so many steps of a second each."""
    chance = random.Random(seed)
    slowing = first or Slowing()
    for _ in range(writes):
        extra_s = part * steps + chance.gauss(0.0, NOISE * steps**0.5)
        slowing.add(extra_s, weight=float(steps), variance=NOISE**2, took_s=float(steps))
    return slowing


def test_many_writes_tell_what_one_does_not() -> None:
    one, many = slowing_of(0.01, 2), slowing_of(0.01, 200)

    assert one.error == pytest.approx(0.01, rel=0.01)
    assert many.likely == pytest.approx(0.01, abs=3 * many.error)
    assert many.error < 0.001


def test_the_error_is_as_large_as_the_mean_is_off() -> None:
    off = [(s.likely - 0.2) / s.error for s in (slowing_of(0.2, 40, seed=seed) for seed in range(200))]

    assert sum(abs(one) <= 1 for one in off) / len(off) == pytest.approx(0.68, abs=0.1)


def test_what_does_not_stand_out_from_chance_does_not_count_but_is_guarded_against() -> None:
    nothing = [slowing_of(0.0, 50, seed=seed) for seed in range(100)]

    assert sum(one.typical == 0.0 for one in nothing) >= 90
    assert all(one.careful >= one.likely for one in nothing)
    assert slowing_of(0.05, 50).typical == pytest.approx(0.05, rel=0.05)


def test_a_long_write_tells_more_than_a_short_one() -> None:
    slowing = Slowing()
    slowing.add(0.0, weight=1.0, variance=NOISE**2, took_s=1.0)
    for _ in range(4):
        slowing.add(0.1 * 1000, weight=1000.0, variance=NOISE**2, took_s=1000.0)
        slowing.add(0.3 * 10, weight=10.0, variance=NOISE**2, took_s=10.0)

    assert slowing.likely == pytest.approx(0.1, abs=0.01)


def test_a_pause_during_a_write_hardly_counts() -> None:
    slowing = slowing_of(0.1, 30)
    before = slowing.likely

    slowing.add(90.0, weight=100.0, variance=NOISE**2, took_s=100.0)

    assert slowing.likely == pytest.approx(before, abs=0.005)


@pytest.mark.parametrize(("was", "now"), [(0.1, 0.3), (0.3, 0.1), (0.0, 0.2)])
def test_a_change_is_followed_within_a_few_writes_and_what_was_spent_stays_spent(was: float, now: float) -> None:
    slowing = slowing_of(was, 60)
    spent_s = slowing.total_s

    slowing_of(now, 8, seed=2, first=slowing)

    assert slowing.likely == pytest.approx(now, abs=0.05)
    assert slowing.total_s == pytest.approx(spent_s + 800 * now, rel=0.1, abs=20)


def test_noise_alone_is_no_change() -> None:
    errors = [slowing_of(0.1, 200, seed=seed).error for seed in range(50)]

    assert sum(error < 0.001 for error in errors) >= 45


def test_what_an_earlier_attempt_found_counts_as_much_as_it_was_sure() -> None:
    sure, unsure = Slowing(0.2, error=0.001), Slowing(0.2, error=0.1)
    for slowing in (sure, unsure):
        slowing_of(0.25, 4, first=slowing)

    assert sure.likely == pytest.approx(0.2, abs=0.01)
    assert unsure.likely == pytest.approx(0.25, abs=0.02)


def test_steps_that_drift_are_no_slow_down() -> None:
    costs, pace, recent = Costs(Profile()), Pace(None), Recent(0)
    step = 0

    def seconds(count: int) -> float:
        nonlocal step
        step += count
        return count * (1.0 + 1e-4 * (step - count / 2))

    for _ in range(20):
        for _ in range(20):
            took_s = seconds(40)
            pace.add(40, took_s)
            recent.add(40, took_s)
        write = Write((recent.steps, recent.step_s))
        write.note(100, seconds(100))
        write.ended, write.took_s = True, 100.0
        recent = Recent(100)
        while write.left:
            took_s = seconds(40)
            write.note(40, took_s)
            recent.add(40, took_s)
        costs.note_write(write, pace)

    # Compared with the steps after it alone, which are slower, each write would seem to save 2.5 % of its time.
    assert costs.slowing._mean == pytest.approx(0.0, abs=0.006)


def test_a_slower_storage_is_dearer_even_before_slower_steps_are_seen() -> None:
    costs = Costs(Profile(stall_s=0.1, slow_s=2.0, slow_error_s=0.1, durable_s=10.0))
    costs.note_stall(0.1)
    cheap_s = costs.cost_s or 0.0

    for _ in range(4):  # the first one of an attempt does not count
        costs.durable.add(50.0)

    assert cheap_s == pytest.approx(2.1, rel=0.1)
    assert costs.cost_s == pytest.approx(10.1, rel=0.25)


def pace_of(seconds: float) -> Pace:
    pace = Pace(None)
    for i in range(20):
        pace.add(16, 16 * seconds * (1.0 + 0.01 * (-1) ** i))
    return pace


def written(during: list[tuple[int, float]], pace: Pace, *, before_s: float = 1.0, after_s: float = 1.0) -> Write:
    """Looks, each so many steps and seconds; and 40 steps before it, and after it."""
    write = Write((40.0, before_s))
    for count, seconds in during:
        write.note(count, seconds, odd=pace.is_odd(count, seconds))
    write.ended, write.took_s = True, write.seconds
    write.note(40, 40 * after_s, odd=False)
    return write


def test_a_pause_in_a_few_steps_of_a_write_is_no_slow_down() -> None:
    pace = pace_of(1.0)

    write = written([(1, 1.1)] * 9 + [(1, 30.0)], pace)

    assert write.steps == 9
    assert write.seconds == pytest.approx(9.9)


def test_what_slows_most_of_the_steps_of_a_write_is_no_pause() -> None:
    pace = pace_of(1.0)

    write = written([(1, 1.0), *[(1, 30.0)] * 9], pace)

    assert write.steps == 10
    assert write.seconds == pytest.approx(271.0)


def test_pauses_are_part_of_the_time_from_checkpoint_to_checkpoint_but_not_of_a_step() -> None:
    pace = pace_of(1.0)

    for _ in range(20):
        pace.add(16, 16.0)
        pace.add(1, 18.0)

    assert pace.step_s == pytest.approx(1.0, rel=0.02)
    assert pace.each_s == pytest.approx(1.0 + 17 / 17, rel=0.02)


def test_one_pause_does_not_say_how_often_they_come() -> None:
    pace = pace_of(1.0)

    pace.add(1, 10_000.0)
    pace.add(16, 16.0)

    assert pace.each_s == pytest.approx(1.0, rel=0.02)


def test_steps_that_have_become_much_slower_do_not_pause() -> None:
    pace = pace_of(1.0)

    for _ in range(20):
        pace.add(16, 16 * 5.0)

    assert pace.step_s == pytest.approx(5.0, rel=0.02)


def test_a_write_during_which_the_pace_of_the_training_changed_tells_next_to_nothing() -> None:
    costs, pace = Costs(Profile()), pace_of(1.0)
    for _ in range(6):
        costs.note_write(written([(10, 11.0)], pace), pace)
    before = costs.slowing.likely

    costs.note_write(written([(10, 20.0)], pace, before_s=2.0, after_s=1.0), pace)

    assert costs.slowing.likely == pytest.approx(before, rel=0.05)


def test_many_writes_that_are_compared_with_the_same_steps_do_not_make_it_surer() -> None:
    costs, pace = Costs(Profile()), pace_of(1.0)
    for _ in range(3):
        costs.note_write(written([(10, 11.0)], pace), pace)
    error = costs.slowing.error

    for _ in range(50):
        blind = Write((0.0, 0.0))
        blind.note(10, 9.0, odd=False)
        blind.ended, blind.took_s = True, 9.0
        costs.note_write(blind, pace)

    assert costs.slowing.error == error
    assert costs.slowing.likely > 0.05


def test_an_attempt_that_could_not_tell_does_not_make_the_next_one_sure() -> None:
    costs, pace = Costs(Profile()), pace_of(1.0)
    costs.note_stall(0.001)
    costs.durable.add(0.01)
    for extra in (0.3, -0.2, 0.4):  # of a step of a second, of a write that takes a hundredth of it
        write = written([(1, 1.0 + extra)], pace)
        write.took_s = 0.01
        costs.note_write(write, pace)

    left = Profile(slow_s=costs.slow_s, slow_error_s=costs.slow_error_s, durable_s=costs.durable.value)
    after = Costs(left)

    assert after.slowing.error > 1
    assert after.slowing.typical <= 0.005
