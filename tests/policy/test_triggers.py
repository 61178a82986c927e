"""When a checkpoint is due, and the reasons."""

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator
from datetime import timedelta
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import UsageError
from holdfast.policy.moment import Decision, Moment
from holdfast.policy.triggers import Trigger, as_trigger, decided, every, never, on_best, on_error, on_stop, when
from holdfast.testing.trigger_suite import due_steps, moments_of_a_loop

_START = Moment(step=0, now_s=1000.0, began_s=1000.0)


def _at(step: int, **fields: object) -> Moment:
    return _START._replace(step=step, **fields)  # type: ignore[arg-type]


def test_every_so_many_steps_is_due_at_their_multiples() -> None:
    trigger = every(steps=500)

    assert trigger.decide(_at(499)) == Decision(False, "not before step 500 (every 500 steps)", 500)
    assert trigger.decide(_at(500)) == Decision(True, "step 500 is reached (every 500 steps)", 501)


def test_steps_are_due_until_there_is_a_checkpoint_after_the_multiple() -> None:
    trigger = every(steps=500)

    assert trigger.decide(_at(503)).reason == "step 500 is reached (every 500 steps)"
    assert trigger.decide(_at(503, saved_step=499)).due
    assert trigger.decide(_at(504, saved_step=503)) == Decision(False, "not before step 1000 (every 500 steps)", 1000)


def test_steps_count_on_from_the_step_that_was_restored() -> None:
    restored = _at(750, began_step=750, saved_step=750)

    assert every(steps=500).decide(restored._replace(step=751)).ask_at == 1000
    assert every(steps=500).decide(restored._replace(step=1000)).due


def test_a_time_counts_from_the_start_and_then_from_the_last_checkpoint() -> None:
    trigger = every(minutes=10)

    early = trigger.decide(_at(5, now_s=1180.0))
    late = trigger.decide(_at(9, now_s=1612.0))
    after = trigger.decide(_at(12, now_s=1700.0, saved_step=9, saved_s=1612.0))

    assert (early.due, early.reason) == (False, "3 min of 10 min since the start")
    assert (late.due, late.reason) == (True, "10 min 12 s since the start (every 10 min)")
    assert (after.due, after.reason) == (False, "1 min 28 s of 10 min since the last checkpoint")


def test_a_time_looks_again_after_half_of_the_steps_that_are_left_and_not_too_far_ahead() -> None:
    trigger = every(seconds=100)

    assert trigger.decide(_at(1, now_s=1020.0, step_s=1.0)).ask_at == 41
    assert trigger.decide(_at(1, now_s=1099.0, step_s=1.0)).ask_at == 2
    assert trigger.decide(_at(1, now_s=1020.0)).ask_at == 2
    assert trigger.decide(_at(1, now_s=1020.0, step_s=0.001)).ask_at == 101


@pytest.mark.parametrize("step_s", [0.0, -1.0, math.nan])
def test_a_step_time_that_makes_no_sense_means_to_look_at_every_step(step_s: float) -> None:
    assert every(seconds=100).decide(_at(1, now_s=1020.0, step_s=step_s)).ask_at == 2


def test_a_clock_that_goes_back_or_has_no_value_makes_nothing_due() -> None:
    back = every(seconds=100).decide(_at(1, now_s=0.0, step_s=1.0))
    unknown = every(seconds=100).decide(_at(1, now_s=math.nan, step_s=1.0))

    assert (back.due, back.reason) == (False, "0 s of 1 min 40 s since the start")
    assert (unknown.due, unknown.ask_at) == (False, 2)


def test_every_so_many_epochs_is_due_when_one_of_their_multiples_is_reached() -> None:
    trigger = every(epochs=2)

    assert trigger.decide(_at(7, epoch=1)) == Decision(False, "not before epoch 2 (every 2 epochs)", math.inf)
    assert trigger.decide(_at(8, epoch=2)) == Decision(True, "epoch 2 is reached (every 2 epochs)", 9)
    assert trigger.decide(_at(9, epoch=2, saved_step=8, saved_epoch=2)).reason == "not before epoch 4 (every 2 epochs)"
    assert trigger.decide(_at(20, epoch=5, saved_step=8, saved_epoch=2)).reason == "epoch 4 is reached (every 2 epochs)"
    assert trigger.watches == {"epoch"}


def test_without_an_epoch_none_is_due_and_the_reason_says_so() -> None:
    assert every(epochs=1).decide(_at(7)) == Decision(False, "no epoch is given (every epoch)", math.inf)


def test_a_new_best_is_due_and_the_reason_has_both_values() -> None:
    lowest, highest = on_best("loss"), on_best("loss", mode="max")
    moment = _at(5, metrics={"loss": 0.3}, lowest={"loss": 0.35}, highest={"loss": 0.9})

    assert lowest.decide(moment) == Decision(True, "loss 0.3 is lower than ever (before: 0.35)", 6)
    assert highest.decide(moment) == Decision(False, "loss 0.3 is not higher than 0.9", math.inf)
    assert lowest.decide(moment._replace(lowest={"loss": 0.3})).reason == "loss 0.3 is not lower than 0.3"
    assert lowest.decide(moment._replace(lowest={})).reason == "loss 0.3 is the first"
    assert highest.decide(moment._replace(highest={"loss": 0.1})).due
    assert lowest.watches == {"metrics"}


def test_a_missing_metric_is_not_due_and_the_reason_says_so() -> None:
    decision = on_best("val_loss").decide(_at(5, metrics={"loss": 0.3}))

    assert decision == Decision(False, "the metric 'val_loss' is not given at this step", math.inf)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "0.1", [0.1]])
def test_what_is_not_a_finite_number_is_never_the_best(value: object) -> None:
    decision = on_best("loss").decide(_at(5, metrics={"loss": value}, lowest={"loss": 1.0}))

    assert decision == Decision(False, f"loss is {value!r}, which is never the best", math.inf)


def test_a_best_of_before_that_is_not_a_number_does_not_count() -> None:
    assert on_best("loss").decide(_at(5, metrics={"loss": 0.3}, lowest={"loss": math.nan})).due


def test_an_exception_that_leaves_the_loop_is_due_unless_nothing_would_be_lost() -> None:
    broken = _at(5, error="KeyError: 'x'", saved_step=3)

    assert on_error().decide(_at(5)) == Decision(False, "no exception leaves the loop", math.inf)
    assert on_error().decide(broken) == Decision(True, "an exception leaves the loop: KeyError: 'x'", 6)
    assert on_error().decide(broken._replace(saved_step=5)).reason == (
        "no step was made since the last checkpoint, of step 5"
    )
    assert on_error().decide(_at(0, error="KeyError: 'x'")).reason == "no step was made yet"
    assert on_error().watches == {"error"}


def test_a_stop_is_due_at_each_step_that_has_no_checkpoint() -> None:
    asked = _at(5, stop="SIGTERM", saved_step=3)

    assert on_stop().decide(_at(5)) == Decision(False, "nobody asks the program to stop", math.inf)
    assert on_stop().decide(asked) == Decision(True, "asked to stop: SIGTERM", 6)
    assert on_stop().decide(asked._replace(saved_step=5)).ask_at == 6
    assert on_stop().watches == {"stop"}


def test_never_is_never_due() -> None:
    assert never().decide(_at(10**9, stop="SIGTERM", error="E")) == Decision(
        False, "only save() makes checkpoints", math.inf
    )
    assert never().watches == frozenset()


def test_text_of_others_cannot_forge_a_line_or_fill_the_journal() -> None:
    reason = on_error().decide(_at(5, error="E: a\nwarning: b\x1b[31m" + "x" * 1000)).reason

    assert reason.startswith("an exception leaves the loop: E: a\\nwarning: b\\x1b[31mxxx")
    assert len(reason) == 200


def test_either_is_due_when_one_is_with_the_reasons_of_those_that_are() -> None:
    trigger = every(steps=10) | every(seconds=60) | on_stop()

    assert trigger.decide(_at(5, now_s=1070.0)).reason == "1 min 10 s since the start (every 1 min)"
    assert (
        trigger.decide(_at(10, stop="SIGTERM")).reason == "step 10 is reached (every 10 steps); asked to stop: SIGTERM"
    )
    assert trigger.decide(_at(5)) == Decision(
        False,
        "not before step 10 (every 10 steps); 0 s of 1 min since the start; nobody asks the program to stop",
        6,
    )
    assert trigger.watches == {"stop"}


def test_both_are_due_when_all_are_with_the_reasons_of_those_that_lack() -> None:
    trigger = every(steps=10) & every(seconds=60) & on_best("loss")
    moment = _at(12, now_s=1070.0, metrics={"loss": 0.1})

    assert trigger.decide(moment).reason == (
        "step 10 is reached (every 10 steps); 1 min 10 s since the start (every 1 min); loss 0.1 is the first"
    )
    assert trigger.decide(moment._replace(step=9)) == Decision(False, "not before step 10 (every 10 steps)", 10)
    assert trigger.decide(moment._replace(metrics={})).reason == "the metric 'loss' is not given at this step"
    assert trigger.watches == {"metrics"}


def test_both_are_asked_again_where_the_last_of_them_may_be_due() -> None:
    assert (every(steps=10) & every(steps=15)).decide(_at(3)).ask_at == 15
    assert (every(steps=10) & every(steps=15)).decide(_at(12)).ask_at == 15
    assert (every(steps=10) & every(epochs=1)).decide(_at(3, epoch=0)).ask_at == math.inf


@pytest.mark.parametrize("said", [math.nan, 3, -1])
def test_a_trigger_that_wants_to_be_asked_in_the_past_is_asked_at_the_next_step(said: float) -> None:
    class Odd(Trigger):
        def decide(self, moment: Moment) -> Decision:
            return Decision(False, "odd", said)

    assert (Odd() | never()).decide(_at(5)).ask_at == 6
    assert (Odd() & every(steps=2)).decide(_at(5)).ask_at == 6


def _near_the_end(moment: Moment) -> bool:
    return moment.step >= 100


def test_a_function_is_due_when_it_says_so() -> None:
    trigger = when(_near_the_end)

    assert trigger.decide(_at(99)) == Decision(False, "_near_the_end says no", 100)
    assert trigger.decide(_at(100)) == Decision(True, "_near_the_end says so", 101)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("it is time", Decision(True, "it is time", 6)),
        ("", Decision(False, "f says no", 6)),
        (np.bool_(True), Decision(True, "f says so", 6)),
        (np.array([0.5]) > 1, Decision(False, "f says no", 6)),
        (Decision(True, "now"), Decision(True, "now", 6)),
        (Decision(True, ""), Decision(True, "f says so", 6)),
        (Decision(False, "later", 50), Decision(False, "later", 50)),
        (Decision(False, "later"), Decision(False, "later", 6)),
        (Decision(False, "later", math.nan), Decision(False, "later", 6)),
        (Decision(False, "later", 2), Decision(False, "later", 6)),
        (Decision(False, "two\nlines", 9), Decision(False, "two\\nlines", 9)),
    ],
)
def test_a_function_may_answer_with_a_truth_a_reason_or_a_decision(answer: object, expected: Decision) -> None:
    def f(moment: Moment) -> object:
        return answer

    assert when(f).decide(_at(5)) == expected  # type: ignore[arg-type]


_NO_DECISIONS = [Decision("yes", ""), Decision(True, None), Decision(False, "", "soon")]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "answer", [None, 1, 0, 1.0, (), [True], (True, "x"), np.array([1, 2]) > 1, *_NO_DECISIONS], ids=repr
)
def test_an_answer_that_makes_no_sense_is_not_due_and_the_reason_says_so(answer: object) -> None:
    def f(moment: Moment) -> object:
        return answer

    decision = when(f).decide(_at(5))  # type: ignore[arg-type]

    assert (decision.due, decision.ask_at) == (False, 6)
    assert decision.reason.startswith(("f returned ", "f raised ValueError: "))


def test_a_function_that_raises_does_not_end_the_training() -> None:
    def f(moment: Moment) -> bool:
        return moment.metrics["val_loss"] < 1

    assert when(f).decide(_at(5)) == Decision(False, "f raised KeyError: 'val_loss'", 6)
    assert (when(f) | every(steps=5)).decide(_at(5)).due


def test_the_interruption_of_the_program_passes_through_a_function() -> None:
    def f(moment: Moment) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        when(f).decide(_at(5))


def test_a_function_is_not_asked_on_an_exception_unless_combined_with_on_error() -> None:
    assert when(_near_the_end).watches == {"epoch", "metrics", "stop"}
    assert "error" in (when(_near_the_end) & on_error()).watches


def test_a_trigger_reads_like_the_call_that_makes_it() -> None:
    made = [
        every(steps=5),
        every(epochs=1),
        every(seconds=90),
        every(seconds=0.25),
        every(minutes=10),
        every(hours=2),
        every(seconds=1e300),
        on_best("val_loss"),
        on_best("it's", mode="max"),
        on_error(),
        on_stop(),
        never(),
        (every(steps=5) | on_stop()) & (every(hours=1) | on_best("x")) | never(),
    ]

    assert [eval(repr(trigger)) for trigger in made] == made
    assert repr(every(minutes=10) | on_stop() & never()) == "every(minutes=10) | on_stop() & never()"
    assert repr(every(seconds=5400)) == "every(minutes=90)"
    assert repr(when(_near_the_end)) == "when(_near_the_end)"


def test_triggers_are_values() -> None:
    assert every(minutes=1) == every(seconds=60)
    assert every(steps=1) != every(epochs=1)
    assert len({every(steps=5), every(steps=5), never()}) == 2
    with pytest.raises(AttributeError):
        every(steps=5).steps = 6  # type: ignore[attr-defined]


def test_triggers_joined_by_words_instead_of_signs_are_refused() -> None:
    with pytest.raises(UsageError, match=r"every\(steps=5\) is neither true nor false") as caught:
        every(steps=5) or on_stop()

    assert caught.value.hint == "combine triggers with | and &, not or and and"


@pytest.mark.parametrize("combine", [operator.or_, operator.and_])
@pytest.mark.parametrize(
    ("other", "hint"),
    [
        ("10 min", "write every(minutes=10)"),
        (timedelta(hours=2), "write every(hours=2)"),
        (500, "write every(steps=500)"),
        ("auto", "write auto()"),
        (_near_the_end, "write when(_near_the_end)"),
        (None, "for example every(steps=500) | on_stop()"),
        ("often", "for example every(steps=500) | on_stop()"),
        (0.5, "for example every(steps=500) | on_stop()"),
    ],
)
def test_only_triggers_are_combined_and_the_error_says_what_to_write_for_what_is_none(
    combine: Callable[[object, object], object], other: object, hint: str
) -> None:
    for sides in [(every(steps=5), other), (other, every(steps=5))]:
        with pytest.raises(UsageError, match=r"is no trigger, and cannot be combined with every\(steps=5\)") as caught:
            combine(*sides)

        assert caught.value.hint == hint


def test_a_trigger_that_is_combined_without_its_parentheses_is_recognised() -> None:
    with pytest.raises(UsageError, match="on_stop is given without its parentheses"):
        every(steps=5) | on_stop  # type: ignore[operator]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "every: nothing is given, expected one of steps=, epochs=, seconds=, minutes=, hours="),
        ({"steps": 5, "minutes": 1}, "every: steps= and minutes= are given, expected one of"),
        ({"steps": 0}, "every: steps=0 is not an integer of at least 1"),
        ({"steps": -5}, "every: steps=-5 is not an integer of at least 1"),
        ({"steps": 1.5}, "every: steps=1.5 is not an integer of at least 1"),
        ({"steps": True}, "every: steps=True is not an integer of at least 1"),
        ({"epochs": "2"}, "every: epochs='2' is not an integer of at least 1"),
        ({"minutes": 0}, "every: minutes=0 is not a time above 0"),
        ({"hours": 1e308}, r"every: hours=1e\+308 is not a time above 0"),
        ({"seconds": -1}, "every: seconds is -1, expected a duration that is not negative"),
        ({"seconds": math.nan}, "every: seconds is nan, expected a finite duration"),
        ({"seconds": True}, "every: seconds is True, expected a duration"),
        ({"seconds": "10 min"}, "every: seconds='10 min' is not a number"),
        ({"minutes": timedelta(1)}, "every: minutes=.* is not a number"),
    ],
)
def test_every_refuses_what_makes_no_sense(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        every(**options)  # type: ignore[arg-type]

    assert caught.value.hint


@pytest.mark.parametrize(
    ("metric", "mode"), [("", "min"), (None, "min"), (5, "min"), ("loss", "lowest"), ("loss", None)]
)
def test_on_best_refuses_what_makes_no_sense(metric: object, mode: object) -> None:
    with pytest.raises(UsageError, match="on_best: m") as caught:
        on_best(metric, mode)  # type: ignore[arg-type]

    assert caught.value.hint


async def _later(moment: Moment) -> bool:
    return True


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (5, "when: 5 is not a function"),
        (every(steps=5), r"when: every\(steps=5\) is not a function"),
        (lambda: True, "when: <lambda> cannot be called with a moment: too many positional arguments"),
        (lambda a, b: True, "when: <lambda> cannot be called with a moment: missing a required argument: 'b'"),
        (_later, "when: _later is a coroutine function"),
        (never, "never is given without its parentheses"),
        (on_best, "on_best is given without its parentheses"),
    ],
)
def test_when_refuses_what_cannot_give_an_answer(function: object, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        when(function)  # type: ignore[arg-type]

    assert caught.value.hint


@pytest.mark.parametrize("function", [dict, functools.partial(getattr, _START), max, [].append])
def test_when_takes_whatever_can_be_called(function: object) -> None:
    assert not when(function).decide(_at(5)).due  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given_", "trigger"),
    [
        (500, every(steps=500)),
        (np.int64(500), every(steps=500)),
        ("10 min", every(minutes=10)),
        ("1h30m", every(minutes=90)),
        ("1:30:00", every(minutes=90)),
        (timedelta(hours=1), every(hours=1)),
        (every(epochs=1) | on_stop(), every(epochs=1) | on_stop()),
        (_near_the_end, when(_near_the_end)),
        (None, never()),
    ],
)
def test_what_an_option_is_given_becomes_a_trigger(given_: object, trigger: Trigger) -> None:
    assert as_trigger(given_) == trigger


@pytest.mark.parametrize(
    "given_", ["auto", "soon", "500", "", "0 min", "-1 h", 0, -5, True, 1.5, b"1 h", [5], object(), timedelta(0)]
)
def test_an_option_that_makes_no_sense_is_refused_with_what_is_accepted(given_: object) -> None:
    with pytest.raises(
        UsageError, match=r"checkpoint_every is .*, expected a number of steps, a time with its unit"
    ) as e:
        as_trigger(given_, "checkpoint_every")

    for accepted in ("checkpoint_every=500 (steps)", 'checkpoint_every="10 min"', '"auto"', "None", "holdfast.every"):
        assert accepted in e.value.hint


def test_a_maker_without_its_parentheses_is_refused_as_an_option() -> None:
    with pytest.raises(UsageError, match="never is given without its parentheses"):
        as_trigger(never)


# What `Checkpointer.step` relies on: whoever asks only where a trigger wants to be asked misses nothing.

_COUNTED = st.builds(every, steps=st.integers(1, 60)) | st.builds(every, epochs=st.integers(1, 6))
_TIMED = st.builds(every, seconds=st.floats(1e-3, 1e4))
_OTHERS = st.sampled_from([on_best("loss"), on_best("accuracy", mode="max"), on_stop(), on_error(), never()])


def _combined(leaves: st.SearchStrategy[Trigger]) -> st.SearchStrategy[Trigger]:
    def extend(inner: st.SearchStrategy[Trigger]) -> st.SearchStrategy[Trigger]:
        return st.builds(operator.or_, inner, inner) | st.builds(operator.and_, inner, inner)

    return st.recursive(leaves, extend, max_leaves=5)


@st.composite
def _programs(draw: st.DrawFn) -> list[Moment]:
    """A loop whose epochs come when the program says so, forth and now and then back, or not at all."""
    began = draw(st.integers(0, 100))
    epochs = draw(st.lists(st.tuples(st.integers(1, 30), st.none() | st.integers(0, 20)), max_size=12))
    given_ = list(itertools.chain.from_iterable([epoch] * count for count, epoch in epochs))
    return [
        Moment(step=began + number, now_s=float(number), began_s=0.0, began_step=began, epoch=epoch)
        for number, epoch in enumerate(given_, 1)
    ]


@given(trigger=_combined(_COUNTED), program=_programs())
def test_steps_and_epochs_are_found_by_asking_only_where_the_trigger_wants(
    trigger: Trigger, program: list[Moment]
) -> None:
    assert due_steps(trigger, iter(program)) == due_steps(trigger, iter(program), everywhere=True)


@given(
    trigger=_combined(_COUNTED | _TIMED | _OTHERS),
    step_s=st.floats(1e-3, 1e3),
    steps_per_epoch=st.integers(1, 100),
    metrics_every=st.integers(1, 40),
    stop_at=st.none() | st.integers(1, 300),
)
def test_with_steps_of_one_length_all_combinations_are_found_by_asking_only_where_the_trigger_wants(
    trigger: Trigger, step_s: float, steps_per_epoch: int, metrics_every: int, stop_at: int | None
) -> None:
    def loop() -> Iterator[Moment]:
        return moments_of_a_loop(
            300, step_s=step_s, steps_per_epoch=steps_per_epoch, metrics_every=metrics_every, stop_at=stop_at
        )

    assert due_steps(trigger, loop()) == due_steps(trigger, loop(), everywhere=True)


@given(seconds=st.floats(1.0, 1000.0), step_s=st.floats(0.1, 100.0), slower=st.floats(0.5, 2.0))
def test_a_time_is_found_at_once_even_when_steps_take_up_to_twice_as_long_as_was_thought(
    seconds: float, step_s: float, slower: float
) -> None:
    def loop() -> Iterator[Moment]:
        for moment in moments_of_a_loop(300, step_s=step_s * slower * 0.999):
            yield moment._replace(step_s=step_s)

    assert due_steps(every(seconds=seconds), loop()) == due_steps(every(seconds=seconds), loop(), everywhere=True)


def test_a_time_is_late_by_a_hundred_steps_at_most_however_slow_they_become() -> None:
    def loop() -> Iterator[Moment]:
        for moment in moments_of_a_loop(1000, step_s=60.0):
            yield moment._replace(step_s=0.001)

    assert due_steps(every(hours=1), loop())[0] <= 160


def test_a_time_of_many_steps_is_found_with_few_questions() -> None:
    asked = []

    class Asked(Trigger):
        def decide(self, moment: Moment) -> Decision:
            asked.append(moment.step)
            return every(hours=1).decide(moment)

    found = due_steps(Asked(), moments_of_a_loop(100_000, step_s=0.1))

    assert found == [36_000, 72_000]
    assert len(asked) < 1100


class _Own(Trigger):
    """One of a program, that says what it is told to say, or raises it."""

    def __init__(self, said: object) -> None:
        self._said = said

    def decide(self, moment: Moment) -> Decision:
        if isinstance(self._said, Exception):
            raise self._said
        return self._said  # type: ignore[return-value]


class _Wordless(Exception):
    def __str__(self) -> str:
        raise _Wordless


_ODD = [ValueError("mine"), _Wordless(), (True, "x", 1.0), None]
_ODD += [Decision(due=False, reason="x", ask_at=odd) for odd in (None, "9", 1j)]  # type: ignore[arg-type]


@pytest.mark.parametrize("said", _ODD, ids=lambda said: type(said).__name__)
def test_one_that_fails_does_not_keep_others_from_being_due(said: object) -> None:
    both = every(steps=2) | _Own(said)

    assert decided(both, _at(2)).due
    with pytest.raises(UsageError, match="the trigger _Own fails"):
        decided(both, _at(1))
    with pytest.raises(UsageError, match="the trigger _Own fails"):
        decided(every(steps=2) & _Own(said), _at(2))


@pytest.mark.parametrize("ask_at", [np.int64(7), np.float32(6.5), Fraction(13, 2), math.inf])
def test_one_may_say_with_any_kind_of_number_when_to_ask_it_again(ask_at: float) -> None:
    assert decided(_Own(Decision(due=True, reason="x", ask_at=ask_at)), _at(2)).due
