"""What is said of two undisturbed runs that part, by hand-written evidence."""

import pytest

from holdfast.proving.comparing import first_parting, unsteady
from holdfast.proving.steadiness import judge_undisturbed, judge_unrepeatable
from tests.proving.traces import trace, work


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("=1794836856.6", "=1794836858.3"),
        ("=1794836856600", "=1794836858300"),
        ('="2026-11-16T13:00:00"', '="2026-11-16T13:00:02"'),
        ('={"kind":"datetime","iso":"2026-11-16T13:00:00"}', '={"kind":"datetime","iso":"2026-11-16T13:00:02"}'),
    ],
)
def test_a_value_that_only_a_clock_gives_is_one(before, after):
    reference, again = trace(work(1, {"seen": before})), trace(work(1, {"seen": after}))

    found = judge_undisturbed(unsteady(reference, again), first_parting(reference, again))

    assert [cause.kind for cause in found.causes] == ["wall-clock"]
    assert found.ignored == ("seen",)
    assert not found.is_serious


def test_an_array_is_no_clock_whatever_it_is_called_and_an_update_is_no_date():
    for path, before, after in [("update", "=0.5", "=0.7"), ("update", "b3:1", "b3:2"), ("time", "b3:1", "b3:2")]:
        reference, again = trace(work(1, {path: before})), trace(work(1, {path: after}))

        assert judge_undisturbed(unsteady(reference, again), first_parting(reference, again)).is_serious


def test_a_whole_number_that_never_changes_within_a_run_is_of_this_start_and_one_that_does_is_computed():
    def runs(*numbers):
        return trace(*[work(step, {"n": f"={number}"}) for step, number in enumerate(numbers, 1)])

    constant = judge_undisturbed(unsteady(runs(7, 7), runs(9, 9)), first_parting(runs(7, 7), runs(9, 9)))
    computed = judge_undisturbed(unsteady(runs(7, 8), runs(9, 10)), first_parting(runs(7, 8), runs(9, 10)))

    assert [cause.kind for cause in constant.causes] == ["value-of-this-start"]
    assert computed.is_serious


def test_elapsed_seconds_are_known_by_their_name_and_other_numbers_are_a_computation():
    reference = trace(work(1, {"elapsed_s": "=1.25", "loss": "=0.5"}))
    clock, both = (
        trace(work(1, {"elapsed_s": "=1.5", "loss": "=0.5"})),
        trace(work(1, {"elapsed_s": "=1", "loss": "=0.4"})),
    )

    assert judge_undisturbed(unsteady(reference, clock), None).ignored == ("elapsed_s",)
    assert judge_undisturbed(unsteady(reference, both), first_parting(reference, both)).is_serious


def test_a_text_of_this_start_is_not_a_computation():
    reference, again = trace(work(1, {"id": '="7f3a"'})), trace(work(1, {"id": '="99b1"'}))

    found = judge_undisturbed(unsteady(reference, again), first_parting(reference, again))

    assert [cause.kind for cause in found.causes] == ["value-of-this-start"]


def test_a_global_generator_that_nobody_draws_from_need_not_be_seeded():
    reference = trace(work(1, {"w": "b3:1", "<random>.python": "=b3:a"}), work(2, {"w": "b3:2"}))
    again = trace(work(1, {"w": "b3:1", "<random>.python": "=b3:b"}), work(2, {"w": "b3:2"}))

    found = judge_undisturbed(unsteady(reference, again), first_parting(reference, again))

    assert (found.causes, found.remarks, found.is_serious) == ((), (), False)
    assert found.ignored == ("<random>.python",)


def _unrepeatable(random_moves, max_rel):
    later = {"<random>.numpy": "=b3:c"} if random_moves else {}
    reference = trace(work(1, {"w": "b3:1", "<random>.numpy": "=b3:a"}), work(2, {"w": "b3:2", **later}))
    again = trace(work(1, {"w": "b3:x", "<random>.numpy": "=b3:b"}), work(2, {"w": "b3:y", **later}))
    return judge_unrepeatable(reference, again, first_parting(reference, again), max_rel).kind


def test_seeds_and_kernels_are_told_apart_by_what_is_drawn_and_by_how_far_apart_they_are():
    assert _unrepeatable(random_moves=True, max_rel=1e-16) == "not-seeded"
    assert _unrepeatable(random_moves=False, max_rel=0.5) == "not-seeded"  # drawn before the first step
    assert _unrepeatable(random_moves=False, max_rel=1e-16) == "nondeterministic-kernels"
