"""Every trigger behaves as the conformance suite says; and the suite finds those that do not."""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from holdfast.policy.auto import auto
from holdfast.policy.moment import Decision, Moment
from holdfast.policy.triggers import Trigger, every, never, on_best, on_error, on_stop, when
from holdfast.testing import TRIGGER_CHECKS, TriggerCheck, check_trigger


def _each_seventh(moment: Moment) -> bool:
    return moment.step % 7 == 0


def _always(moment: Moment) -> str:
    return f"step {moment.step} is as good as any"


def _raising(moment: Moment) -> bool:
    raise KeyError("val_loss")


def _each_hundredth(moment: Moment) -> Decision:
    return Decision(moment.step % 100 == 0, "each hundredth", moment.step // 100 * 100 + 100)


_MAKERS: dict[str, Callable[[], Trigger]] = {
    "every step": lambda: every(steps=1),
    "every 25 steps": lambda: every(steps=25),
    "every 3 s": lambda: every(seconds=3),
    "every 10 min": lambda: every(minutes=10),
    "every hour": lambda: every(hours=1),
    "every epoch": lambda: every(epochs=1),
    "every 3 epochs": lambda: every(epochs=3),
    "lowest": lambda: on_best("val_loss"),
    "highest": lambda: on_best("accuracy", mode="max"),
    "a metric that is never given": lambda: on_best("lost"),
    "error": on_error,
    "stop": on_stop,
    "never": never,
    "a function": lambda: when(_each_seventh),
    "a function that is always due": lambda: when(_always),
    "a function that raises": lambda: when(_raising),
    "a function with steps of its own": lambda: when(_each_hundredth),
    "either": lambda: every(steps=25) | every(minutes=10) | on_best("loss") | on_stop() | on_error(),
    "both": lambda: every(epochs=1) & every(minutes=10),
    "both, one of a moment": lambda: on_best("val_loss") & every(steps=50),
    "both of either": lambda: (every(steps=30) | every(epochs=2)) & (every(minutes=5) | on_stop()),
    "a function and a time": lambda: when(_each_seventh) & every(seconds=100),
    "automatic": auto,
    "automatic, or at a new best": lambda: auto(overhead=0.01, lose_at_most="2 min") | on_best("val_loss"),
}


@pytest.mark.parametrize("check", TRIGGER_CHECKS, ids=str)
@pytest.mark.parametrize("name", _MAKERS)
def test_a_trigger_does_what_triggers_do(check: TriggerCheck, name: str) -> None:
    check(_MAKERS[name])


def test_the_suite_runs_as_one_call() -> None:
    check_trigger(lambda: every(steps=3) | on_stop())

    assert len(TRIGGER_CHECKS) == 10


@dataclass(frozen=True)
class _Broken(Trigger):
    """Every 20 steps, with one thing wrong."""

    wrong: str

    @property
    def watches(self) -> frozenset[str]:
        return frozenset({"weather"}) if self.wrong == "watches" else frozenset()

    def decide(self, moment: Moment) -> Decision:
        decision = every(steps=20).decide(moment)
        match self.wrong:
            case "raises" if math.isnan(moment.now_s):
                raise ValueError("no clock")
            case "reason":
                return decision._replace(reason="")
            case "lines":
                return decision._replace(reason=f"{moment.error} or so")
            case "due":
                return decision._replace(due=1)  # type: ignore[arg-type]
            case "memory":
                return decision._replace(reason=f"asked {next(_COUNT)} times")
            case "late":
                return decision._replace(ask_at=decision.ask_at + 1)
            case "behind":
                return decision._replace(ask_at=moment.step)
            case "twice":
                return Decision(True, "always")
            case "changes":
                moment.metrics["loss"] = 0.0  # type: ignore[index]
        return decision


_COUNT: Iterator[int] = iter(range(10**6))


@pytest.mark.parametrize(
    ("wrong", "found"),
    {
        "raises": "a_decision_whatever_the_moment: a clock without a value: raised ValueError",
        "due": "a_decision_whatever_the_moment: usual: due is",
        "reason": "a_reason_in_words_on_one_line",
        "lines": "a_reason_in_words_on_one_line: an exception",
        "memory": "the_same_decision_on_the_same_moment",
        "changes": "a_moment_is_left_as_it_is",
        "behind": "where_it_is_not_due_it_names_a_later_step",
        "twice": "a_step_that_has_a_checkpoint_gets_no_second_one",
        "watches": "it_watches_what_there_is_to_watch",
        "late": "asked_only_where_it_wants_to_be_it_finds_the_same_steps",
    }.items(),
)
def test_the_suite_finds_what_is_wrong(wrong: str, found: str) -> None:
    with pytest.raises(AssertionError, match=found):
        check_trigger(functools.partial(_Broken, wrong))


def test_the_suite_finds_a_trigger_that_cannot_be_told_from_others() -> None:
    class Nameless(Trigger):
        def decide(self, moment: Moment) -> Decision:
            return never().decide(moment)

    with pytest.raises(AssertionError, match="it_says_what_it_is"):
        check_trigger(Nameless)
