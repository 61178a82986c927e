"""Whether a training is healthy, by the loss of its steps."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.policy.health import FAILING, HEALTHY, SUSPECT, Diagnosis, Health

Loss = Callable[[int, random.Random], float]

_USUAL: dict[str, Loss] = {
    "constant": lambda step, rng: 1.0,
    "falling": lambda step, rng: 10 * math.exp(-step / 200) + 2 + rng.gauss(0, 0.05),
    "falling fast": lambda step, rng: 2.3 * math.exp(-step / 50) * math.exp(rng.gauss(0, 0.5)) + 1e-9,
    "noise as large as the loss": lambda step, rng: (10 * math.exp(-step / 200) + 2) * math.exp(rng.gauss(0, 0.2)),
    "rises first, while the rate is warmed up": lambda step, rng: (
        10.8 + (1.5 * math.sin(step / 100) if step < 314 else -(step - 314) / 500) + rng.gauss(0, 0.02)
    ),
    "falls at once with the learning rate": lambda step, rng: (3 if step < 1000 else 1.5) + rng.gauss(0, 0.05),
    "rises through each epoch": lambda step, rng: 2 + 0.3 * (step % 100) / 100 + rng.gauss(0, 0.05),
    "higher after the first steps": lambda step, rng: (2 if step < 10 else 4 - step / 1000) + rng.gauss(0, 0.05),
    "negative": lambda step, rng: -5000 - step + rng.gauss(0, 1),
    "around zero": lambda step, rng: rng.gauss(0, 1),
}


def _follow(loss: Loss, steps: int, *, seed: int = 0) -> list[Diagnosis]:
    health, rng = Health(), random.Random(seed)
    return [health.note(step, loss(step, rng)) for step in range(steps)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", _USUAL)
def test_a_usual_loss_never_fails_and_is_hardly_ever_suspect(kind: str, seed: int) -> None:
    found = [diagnosis.state for diagnosis in _follow(_USUAL[kind], 3000, seed=seed)]

    assert FAILING not in found
    assert found.count(SUSPECT) < 30


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("bad_step", [0, 5, 500])
def test_what_is_not_a_number_fails_at_once_even_at_the_first_steps(value: float, bad_step: int) -> None:
    found = _follow(lambda step, rng: value if step >= bad_step else 2 + rng.gauss(0, 0.1), bad_step + 20)

    assert {diagnosis.state for diagnosis in found[:bad_step]} <= {HEALTHY}
    assert [diagnosis.state for diagnosis in found[bad_step:]] == [FAILING] * 20
    assert found[-1].reason == f"the loss is {value} at step {bad_step}"
    assert found[-1].suspect_from == max(0, bad_step - 10)


@pytest.mark.parametrize("seed", range(5))
def test_a_loss_that_diverges_fails_within_a_few_steps_and_stays_failing(seed: int) -> None:
    found = _follow(lambda step, rng: 2 * 1.05 ** max(0, step - 1000) + rng.gauss(0, 0.05), 1300, seed=seed)

    states = [diagnosis.state for diagnosis in found]
    assert FAILING not in states[:1000]
    assert 1000 <= states.index(FAILING) < 1020
    assert set(states[1020:]) == {FAILING}
    assert "2 is usual" in found[-1].reason or "2.0" in found[-1].reason or "1.9" in found[-1].reason


def test_a_jump_that_is_smaller_than_what_the_loss_fell_by_is_found() -> None:
    def loss(step: int, rng: random.Random) -> float:
        return 10 - 0.02 * step + rng.gauss(0, 0.02) + (1 if step >= 400 else 0)

    states = [diagnosis.state for diagnosis in _follow(loss, 420)]

    assert states.index(FAILING) < 410


def test_it_is_found_while_the_loss_is_still_falling() -> None:
    def loss(step: int, rng: random.Random) -> float:
        return 10 * math.exp(-step / 300) + 1 + rng.gauss(0, 0.05) + 0.1 * max(0, step - 400)

    states = [diagnosis.state for diagnosis in _follow(loss, 500)]

    assert 400 <= states.index(FAILING) < 430


def test_a_single_hard_batch_is_suspect_and_marks_nothing() -> None:
    found = _follow(lambda step, rng: 50.0 if step == 300 else 2 + rng.gauss(0, 0.05), 400)

    assert found[299].state == HEALTHY
    assert found[300].state == SUSPECT
    assert "the loss is 50 at step 300" in found[300].reason
    assert {diagnosis.suspect_from for diagnosis in found} == {None}
    assert found[320] == Diagnosis(HEALTHY)


def test_after_enough_good_steps_it_is_healthy_again_and_not_before() -> None:
    found = _follow(lambda step, rng: math.nan if 300 <= step < 305 else 2 + rng.gauss(0, 0.05), 400)

    assert found[304].state == FAILING
    assert found[305].state == SUSPECT
    assert found[313].suspect_from == 290
    assert "the last bad value was at step 304" in found[313].reason
    assert found[314] == Diagnosis(HEALTHY)


def test_a_second_trouble_is_told_by_its_own_step() -> None:
    found = _follow(lambda step, rng: math.nan if step in (100, 300) else 2 + rng.gauss(0, 0.05), 301)

    assert found[300].suspect_from == 290


def test_a_loss_that_stays_high_is_not_taken_for_usual() -> None:
    found = _follow(lambda step, rng: (2 if step < 500 else 7) + rng.gauss(0, 0.05), 2000)

    assert found[-1].state == FAILING


def test_near_zero_a_large_ratio_says_nothing() -> None:
    found = _follow(lambda step, rng: 2.3 if step < 100 else 1e-4 if step % 200 < 8 else 1e-6, 1000)

    assert FAILING not in {diagnosis.state for diagnosis in found}


@given(st.lists(st.floats(), max_size=200))
def test_whatever_comes_there_is_a_diagnosis(values: list[float]) -> None:
    health = Health(window=8)

    for step, value in enumerate(values):
        diagnosis = health.note(step, value)

        assert diagnosis.state in (HEALTHY, SUSPECT, FAILING)
        assert bool(diagnosis.reason) == (diagnosis.state != HEALTHY)
        assert diagnosis.state == FAILING or math.isfinite(value)


@given(st.lists(st.sampled_from([1.0, 1.1, 0.9, 50.0, math.nan]), max_size=120), st.integers(1, 7))
def test_what_is_said_to_be_safe_is_never_suspect_later(values: list[float], apart: int) -> None:
    health, safe = Health(window=8), 0

    for step, value in enumerate(values):
        suspect_from = health.note(step * apart, value).suspect_from

        assert suspect_from is None or suspect_from >= safe
        safe = max(safe, health.safe_before or 0)


def test_all_but_the_last_few_steps_of_a_healthy_training_are_safe() -> None:
    health = Health()
    assert health.safe_before is None

    for step in range(100):
        health.note(step, 1.0)

    assert health.safe_before == 90


def test_steps_of_which_no_value_was_seen_are_suspect_if_the_next_one_is_bad() -> None:
    health = Health()
    health.note(100, 1.0)
    assert health.safe_before == 91

    assert health.note(200, math.nan).suspect_from == 91
    assert Health().note(200, math.nan).suspect_from == 0
    assert Health(begins=150).note(200, math.nan).suspect_from == 141
    assert Health(begins=150).safe_before == 141
