"""A metric that a trigger waits for, and that no step has, is said once, and not too early."""

import pytest

from holdfast.engine.awaited_metrics import AwaitedMetrics
from holdfast.policy.triggers import Trigger, every, on_best, on_error, when

BEST = on_best("val_loss")


def said_at(caplog: pytest.LogCaptureFixture, trigger: Trigger, steps: list[tuple[str, ...]]) -> list[tuple[int, str]]:
    """After which step what was said, if the steps have metrics of these names."""
    awaited = AwaitedMetrics(trigger)
    said = []
    for step, names in enumerate(steps, 1):
        caplog.clear()
        awaited.note(step, names)
        said += [(step, record.message) for record in caplog.records]
    return said


def test_one_that_is_misspelt_is_said_once_with_what_it_may_be(caplog):
    said = said_at(caplog, on_best("val_los"), [("val_loss", "lr")] * 300)

    ((step, message),) = said
    assert step == 10
    assert message == (
        "on_best('val_los') follows a metric that no step has had so far, and asks for no checkpoint before; "
        "step 10 has lr, val_loss (did you mean 'val_loss'?)"
    )


def test_one_that_is_like_no_other_may_come_at_the_end_of_an_epoch_and_is_said_later(caplog):
    said = said_at(caplog, BEST, [("loss",)] * 300)

    assert [step for step, _ in said] == [100]
    assert said[0][1].endswith("step 100 has loss")


def test_steps_without_metrics_do_not_count(caplog):
    assert not said_at(caplog, on_best("val_los"), [()] * 1000 + [("val_loss",)] * 9)


def test_one_that_comes_is_not_said_however_rarely_it_comes(caplog):
    assert not said_at(caplog, BEST, [("loss",)] * 50 + [("val_loss",)] + [("loss",)] * 300)


def test_one_that_the_restored_checkpoint_has_is_not_said(caplog):
    awaited = AwaitedMetrics(BEST)

    awaited.note_known({"val_loss": 1.0})
    for step in range(300):
        awaited.note(step, ["loss", "val_los"])

    assert not caplog.records


@pytest.mark.parametrize(
    "trigger",
    [BEST | every(steps=5), BEST & every(steps=5), on_error() | BEST & (every(steps=5) | BEST)],
    ids=repr,
)
def test_it_is_found_in_triggers_that_are_combined_and_said_once(caplog, trigger):
    assert len(said_at(caplog, trigger, [("valloss",)] * 300)) == 1


def test_each_of_two_is_said(caplog):
    said = said_at(caplog, on_best("val_los") | on_best("acc"), [("val_loss",)] * 300)

    assert [step for step, _ in said] == [10, 100]
    assert [message.split()[0] for _, message in said] == ["on_best('val_los')", "on_best('acc')"]


@pytest.mark.parametrize("trigger", [every(steps=5), when(lambda moment: "loss" in moment.metrics)], ids=repr)
def test_who_names_no_metric_waits_for_none(caplog, trigger):
    awaited = AwaitedMetrics(trigger)

    assert not said_at(caplog, trigger, [("lr",)] * 300)
    assert awaited.instead == ""


def test_programs_that_name_each_metric_anew_fill_no_memory_and_no_line():
    awaited = AwaitedMetrics(BEST)

    for step in range(1000):
        awaited.note(step, [f"metric_{step}"])

    assert len(awaited.instead) < 300
