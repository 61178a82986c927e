"""Which cause is named, by hand-written evidence; tests/proving/test_scripts.py has it from real programs."""

import pytest

from holdfast.engine.evidence import Bystander
from holdfast.proving.cause import judge_beside, judge_resumed, restore_not_called
from holdfast.proving.comparing import first_parting
from tests.proving.traces import generator, trace, work


def _resumed(kind, *, before="a", after="b", extra=()):
    reference = trace(
        work(1, {"w": "b3:1"}, bystanders=[generator(before, kind=kind), *extra]),
        work(2, {"w": "b3:2"}, bystanders=[generator("c", kind=kind), *extra]),
    )
    other = trace(
        work(1, {"w": "b3:1"}, kind="restored", bystanders=[generator(after, kind=kind), *extra]),
        work(2, {"w": "b3:x"}, bystanders=[generator("d", kind=kind), *extra]),
    )
    return judge_resumed(reference, other, first_parting(reference, other))


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("generator", "generator-not-in-state"),
        ("optimizer", "optimizer-not-in-state"),
        ("stateful", "object-not-in-state"),
        ("loader", "loader-without-position"),
        ("iterator", "loader-without-position"),
    ],
)
def test_what_stands_beside_the_state_and_is_another_after_the_restore_is_the_cause(kind, cause):
    found = _resumed(kind)

    assert [item.kind for item in found] == [cause]
    assert "rng" in found[0].what


@pytest.mark.parametrize(
    ("name", "code", "advice"),
    [
        ("Trainer.rng", "self.rng", '"rng": self.rng'),
        ("main.rng", "rng", '"rng": rng'),
        ("Trainer.parts['noise'][0]", "self.parts['noise'][0]", "\"noise\": self.parts['noise'][0]"),
        ("Sampler.generator", "", '"generator": generator'),
    ],
)
def test_the_advice_is_written_as_the_program_would(name, code, advice):
    def seen(digest):
        return [Bystander("generator", "numpy.random.Generator", name, "train.py", digest, code=code)]

    reference = trace(work(1, {"w": "b3:1"}, bystanders=seen("1")), work(2, {"w": "b3:2"}, bystanders=seen("2")))
    other = trace(
        work(1, {"w": "b3:1"}, kind="restored", bystanders=seen("x")), work(2, {"w": "b3:y"}, bystanders=seen("y"))
    )

    cause = judge_resumed(reference, other, first_parting(reference, other))[0]

    assert cause.advice == f"add it: Checkpointer(run, {{..., {advice}}})"


def test_a_generator_of_a_dataset_is_better_exchanged_for_a_global_one():
    def seen(digest):
        return [generator(digest, name="data….dataset.rng")]

    reference = trace(work(1, {"w": "b3:1"}, bystanders=seen("1")), work(2, {"w": "b3:2"}, bystanders=seen("2")))
    other = trace(
        work(1, {"w": "b3:1"}, kind="restored", bystanders=seen("x")), work(2, {"w": "b3:y"}, bystanders=seen("y"))
    )

    cause = judge_resumed(reference, other, first_parting(reference, other))[0]

    assert cause.kind == "generator-not-in-state"
    assert "in __getitem__, which holdfast.data seeds for each sample" in cause.advice


def test_what_is_the_same_as_without_the_interruption_is_not_accused():
    found = _resumed("generator", extra=[generator("same", name="other")])

    assert not any("other" in item.what for item in found)


def test_an_optimizer_comes_before_a_generator():
    reference = trace(
        work(1, {"w": "b3:1"}, bystanders=[generator("1"), generator("1", kind="optimizer", name="adam")]),
        work(2, {"w": "b3:2"}, bystanders=[generator("2"), generator("2", kind="optimizer", name="adam")]),
    )
    other = trace(
        work(
            1,
            {"w": "b3:1"},
            kind="restored",
            bystanders=[generator("x"), generator("x", kind="optimizer", name="adam")],
        ),
        work(2, {"w": "b3:y"}, bystanders=[generator("y"), generator("y", kind="optimizer", name="adam")]),
    )

    found = judge_resumed(reference, other, first_parting(reference, other))

    assert [item.kind for item in found] == ["optimizer-not-in-state", "generator-not-in-state"]


def test_a_plain_variable_is_named_where_nothing_else_is_and_it_has_another_value_right_after_the_restore():
    found = _resumed("variable")

    assert [item.kind for item in found] == ["variable-not-in-state"]
    assert "rng" in found[0].what
    assert "right after the restore" in found[0].evidence[0]


def test_variables_that_follow_from_something_else_are_not_accused():
    """A loss is another one after a step with other numbers; it was not there when the state was restored."""
    spared = _resumed("variable", before="a", after="a")
    beside = _resumed("generator", extra=[])

    assert [item.kind for item in spared] == ["unknown"]
    assert [item.kind for item in beside] == ["generator-not-in-state"]


def test_a_variable_that_the_program_sets_right_by_itself_is_not_accused():
    def variable(digest):
        return [generator(digest, kind="variable", name="count")]

    reference = trace(
        work(1, {"w": "b3:1"}, bystanders=variable("1")), work(2, {"w": "b3:2"}, bystanders=variable("2"))
    )
    other = trace(
        work(1, {"w": "b3:1"}, kind="restored", bystanders=variable("0")),
        work(2, {"w": "b3:x"}, bystanders=variable("2")),
    )

    found = judge_resumed(reference, other, first_parting(reference, other))

    assert [item.kind for item in found] == ["unknown"]


def test_what_differs_in_undisturbed_runs_too_is_no_evidence():
    reference = trace(work(1, {"w": "b3:1"}), work(2, {"w": "b3:2"}, bystanders=[generator("a")]))
    other = trace(work(1, {"w": "b3:1"}, kind="restored"), work(2, {"w": "b3:x"}, bystanders=[generator("b")]))
    parting = first_parting(reference, other)

    accused = judge_resumed(reference, other, parting)
    spared = judge_resumed(reference, other, parting, unsteady_bystanders=["generator lib.Generator train.py:rng"])

    assert accused[0].kind == "generator-not-in-state"
    assert spared[0].kind == "unknown"


def test_a_restore_that_found_nothing_was_called():
    assert restore_not_called(1, 5, number=2).kind == "restore-not-called"
    assert restore_not_called(1, 5, number=2, asked=True).kind == "checkpoint-not-found"


def test_a_state_that_is_not_what_was_saved_is_named_by_the_object():
    reference = trace(work(1, {"model.m": "b3:1"}))
    other = trace(work(1, {"model.m": "b3:0"}, kind="restored"))

    cause = judge_resumed(reference, other, first_parting(reference, other))[0]

    assert cause.kind == "state-not-restored"
    assert cause.what.startswith("model ")


def test_metrics_alone_do_not_come_from_the_state():
    reference, other = trace(work(1, {"w": "=1"}, metrics={"m": 1})), trace(work(1, {"w": "=1"}, metrics={"m": 2}))

    cause = judge_resumed(reference, other, first_parting(reference, other))[0]

    assert cause.kind == "metric-not-from-state"


def test_a_program_that_goes_on_too_far_is_told_so():
    reference, other = trace(work(1, {"w": "=1"})), trace(work(2, {"w": "=2"}))

    assert judge_resumed(reference, other, first_parting(reference, other))[0].kind == "goes-on-too-far"


def _beside(kind, *, last="x", first="0", cls="Module"):
    def thing(digest):
        return [Bystander(kind=kind, type=f"lib.{cls}", name="model", where="train.py", digest=digest)]

    reference = trace(*[work(step, {"n": f"={step}"}, bystanders=thing(str(step))) for step in (1, 2, 3)])
    other = trace(
        work(1, {"n": "=1"}, kind="restored", bystanders=thing(first)),
        work(2, {"n": "=2"}, bystanders=thing("x")),
        work(3, {"n": "=3"}, bystanders=thing(last)),
    )
    assert first_parting(reference, other) is None
    return reference, other


@pytest.mark.parametrize(
    ("kind", "cause"), [("stateful", "object-not-in-state"), ("optimizer", "optimizer-not-in-state")]
)
def test_a_model_beside_the_state_that_is_not_as_it_was_at_the_end_is_a_difference_though_all_saved_bits_are_equal(
    kind, cause
):
    step, causes = judge_beside(*_beside(kind))

    assert (step, [item.kind for item in causes]) == (3, [cause])


def test_what_is_right_again_at_the_end_or_need_not_be_saved_is_no_difference():
    assert judge_beside(*_beside("stateful", last="3")) is None
    assert judge_beside(*_beside("loader")) is None
    assert judge_beside(*_beside("stateful", cls="lr_scheduler.StepLR")) is None
    key = "stateful lib.Module train.py:model"
    assert judge_beside(*_beside("stateful"), unsteady_bystanders=[key]) is None
