"""Where two traces part."""

from holdfast.engine.evidence import Point
from holdfast.engine.traces import metric_bits
from holdfast.proving.comparing import Change, Parting, first_parting, unsteady
from holdfast.proving.measuring import describe_differences
from holdfast.proving.omissions import first_omission, work_keys
from holdfast.proving.reading import Cursor, course_of, parse_trace
from tests.proving.traces import trace, work

_REFERENCE = trace(
    work(1, {"w": "b3:1", "n": "=1"}, metrics={"loss": 1.0}),
    work(2, {"w": "b3:2", "n": "=2"}, metrics={"loss": 0.5}),
    work(3, {"w": "b3:3", "n": "=3"}, metrics={"loss": 0.25}),
)


def test_a_resumed_run_that_goes_on_alike_does_not_part():
    other = trace(
        work(2, {"w": "b3:2", "n": "=2"}, kind="restored"), work(3, {"w": "b3:3", "n": "=3"}, metrics={"loss": 0.25})
    )

    assert first_parting(_REFERENCE, other) is None


def test_the_first_leaf_and_the_step_are_named():
    other = trace(
        work(1, {"w": "b3:1", "n": "=1"}, kind="restored"),
        work(2, {"w": "b3:2", "n": "=2"}, metrics={"loss": 0.5}),
        work(3, {"w": "b3:x", "n": "=3"}, metrics={"loss": 0.75}),
    )

    parting = first_parting(_REFERENCE, other)

    assert (parting.step, parting.kind, parting.path) == (3, "step", "w")
    assert list(parting.leaves) == ["w"]
    assert list(parting.metrics) == ["loss"]


def test_what_was_restored_is_compared_with_the_step_that_was_saved():
    other = trace(work(2, {"w": "b3:1", "n": "=2"}, kind="restored"))

    parting = first_parting(_REFERENCE, other)

    assert (parting.step, parting.kind, parting.path) == (2, "restored", "w")


def test_a_metric_alone_is_a_difference_unless_it_is_never_the_same():
    other = trace(work(1, {"w": "b3:1", "n": "=1"}, metrics={"loss": 1.5}))

    assert first_parting(_REFERENCE, other).path == "metric loss"
    assert first_parting(_REFERENCE, other, ignored_metrics=["loss"]) is None


def test_leaves_that_are_gone_or_new_differ():
    gone = Point(kind="step", run="run", step=2, metrics={"loss": (0.5).hex()}, leaves={"w": "b3:2"}, gone=("n",))
    other = trace(work(1, {"w": "b3:1", "n": "=1"}, metrics={"loss": 1.0}), gone)

    parting = first_parting(_REFERENCE, other)

    assert parting.step == 2
    assert parting.leaves["n"] == ("=2", "")


def test_ignored_leaves_do_not_count():
    other = trace(work(1, {"w": "b3:1", "n": "=7"}, metrics={"loss": 1.0}))

    assert first_parting(_REFERENCE, other, ignored=["n"]) is None


def test_a_step_that_the_reference_did_not_make_is_beyond():
    other = trace(work(4, {"w": "b3:4", "n": "=4"}))

    assert first_parting(_REFERENCE, other).beyond


def test_a_save_at_an_odd_step_is_nothing_to_compare():
    other = trace(work(9, {"w": "b3:4"}, kind="save"))

    assert first_parting(_REFERENCE, other) is None


def test_runs_are_compared_with_themselves_in_the_order_of_the_program():
    reference = trace(work(1, {"a": "=1"}, run="one"), work(1, {"a": "=2"}, run="two"))
    other = trace(work(1, {"a": "=1"}, run="one"), work(1, {"a": "=1"}, run="two"))

    assert first_parting(reference, other).run == "two"


def test_everything_that_ever_differs_is_collected_with_its_values():
    again = trace(
        work(1, {"w": "b3:1", "n": "=5"}, metrics={"loss": 1.0}),
        work(2, {"w": "b3:2", "n": "=6"}, metrics={"loss": 0.5}),
    )

    assert unsteady(_REFERENCE, again).leaves == {"n": [("=1", "=5"), ("=2", "=6")]}


def test_a_torn_line_counts_for_nothing():
    whole = b'{"kind":"step","run":"run","step":1,"leaves":{"w":"=1"}}\n'

    assert len(parse_trace(whole + whole[:20]).points) == 1
    assert parse_trace(b"").points == ()


def test_the_state_at_any_point_can_be_had_backwards_too():
    cursor = Cursor(_REFERENCE.of("run"))

    assert dict(cursor.leaves(2)) == {"w": "b3:3", "n": "=3"}
    assert dict(cursor.leaves(0)) == {"w": "b3:1", "n": "=1"}


def test_a_program_that_only_saves_has_a_course_of_its_saves():
    course = course_of(trace(work(10, {}, kind="save"), work(20, {}, kind="save")))

    assert (course.kind, course.steps) == ("save", (10, 20))
    assert course_of(trace(Point(kind="began", run="run"))) is None


def _keys(*steps, run="run", kind="save"):
    return [(run, kind, step) for step in steps]


def _saves(*steps, run="run"):
    return [work(step, {"w": f"={step}"}, kind="save", run=run) for step in steps]


def test_work_between_what_was_restored_and_the_last_that_was_done_is_asked_for():
    reference = trace(*_saves(1, 2, 3, 4, 5))
    other = trace(work(2, {"w": "=2"}, kind="restored"), *_saves(4))

    assert first_omission(reference, other) == _keys(3)
    assert first_omission(reference, other, to_the_end=True) == _keys(3, 5)
    assert first_omission(reference, other, optional=work_keys(trace(*_saves(3)))) == []


def test_what_the_interruption_came_before_is_not_asked_for():
    """Step 3 of `one` is durable when the kill comes; the save of `two` that follows is not made by anybody."""
    reference = trace(
        *[point for step in (1, 2, 3, 4) for point in (work(step, {}, run="one"), *_saves(step, run="two"))]
    )
    other = trace(work(3, {}, kind="restored", run="one"), work(4, {}, run="one"), *_saves(4, run="two"))

    assert first_omission(reference, other, to_the_end=True) == []


def test_a_save_of_another_run_that_is_not_made_again_is_missed():
    reference = trace(
        *[point for step in (1, 2, 3, 4) for point in (*_saves(step, run="two"), work(step, {}, run="one"))]
    )
    other = trace(work(1, {}, kind="restored", run="one"), *[work(step, {}, run="one") for step in (2, 3, 4)])

    assert first_omission(reference, other) == _keys(3, 4, run="two")


def test_the_last_save_is_not_made_where_the_last_step_was_saved_already():
    reference = trace(work(1, {}), work(2, {}), *_saves(2))

    assert first_omission(reference, trace(work(1, {}, kind="restored"), work(2, {})), to_the_end=True) == []


def test_of_a_step_that_is_made_twice_the_time_that_is_most_like_it_is_compared():
    reference = trace(work(1, {"a": "=1", "b": "=1"}), work(1, {"a": "=2", "b": "=2"}))

    assert first_parting(reference, trace(work(1, {"a": "=2", "b": "=2"}))) is None
    assert list(first_parting(reference, trace(work(1, {"a": "=2", "b": "=3"}))).leaves) == ["b"]


def test_where_a_state_is_not_known_only_what_both_have_is_compared():
    unknown = Point(kind="step", run="run", step=1, leaves={"<random>.numpy": "=1"}, text="the state is not known")
    known = work(1, {"w": "=1", "<random>.numpy": "=1"})

    assert first_parting(trace(unknown), trace(known)) is None
    assert first_parting(trace(known), trace(unknown)) is None
    assert first_parting(trace(unknown), trace(work(1, {"w": "=1", "<random>.numpy": "=2"}))) is not None


def test_another_order_of_the_same_keys_differs_and_is_not_told_of_other_keys():
    reference = trace(work(1, {"m (order)": "=b3:1", "m.a": "=1", "m.b": "=1"}))
    moved = trace(work(1, {"m (order)": "=b3:2", "m.a": "=1", "m.b": "=1"}))
    other = trace(work(1, {"m (order)": "=b3:2", "m.a": "=1", "m.c": "=1"}))

    assert list(first_parting(reference, moved).leaves) == ["m (order)"]
    assert list(first_parting(reference, other).leaves) == ["m.b", "m.c"]


def test_a_program_that_a_shell_began_again_tells_all_its_leaves():
    again = Point(kind="step", run="run", step=1, leaves={"w": "=1"}, whole=True)
    cursor = Cursor([work(2, {"w": "=2", "made_later": "=1"}), again])

    assert dict(cursor.leaves(1)) == {"w": "=1"}


def _sizes(before, after):
    found = describe_differences(Parting("run", "step", 1, 1, 0, 0, {"x": Change(before, after)}, {}), None)[0]
    return found.before, found.after, found.max_abs


def test_numbers_without_an_end_and_large_ones_are_shown_as_they_are():
    infinite = '={"kind":"float","bits":"7ff0000000000000"}'

    assert _sizes("=1.0", infinite) == ("1.0", "inf", None)
    assert _sizes(f"={2**60}", f"={2**60 + 1}")[2] == 1.0
    assert _sizes("=1", "=1.5")[2] == 0.5


def test_metrics_are_told_to_the_last_digit():
    assert metric_bits({"n": 2**60 + 1, "x": 0.5, "i": 3, "text": "a"}) == {
        "n": "=1152921504606846977",
        "x": (0.5).hex(),
        "i": (3.0).hex(),
    }
