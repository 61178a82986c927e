"""Metrics, notes, tags, hyperparameters: checked before anything is written."""

import enum
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.core.errors import UsageError
from holdfast.engine.documents import check_count, check_hyperparameters, check_metrics, check_note, check_tags


@pytest.mark.parametrize("value", [0, 7, np.int64(7), torch.tensor(7)])
def test_whole_numbers_of_any_library_are_steps(value):
    assert check_count("step", value) == int(value)


@pytest.mark.parametrize("value", [-1, 1.5, "3", None, True, 10**16, [1], float("nan")])
def test_anything_else_is_not_a_step(value):
    with pytest.raises(UsageError, match="step"):
        check_count("step", value)


def test_metrics_take_scalars_of_numpy_and_torch():
    metrics = {"a": 1, "b": 0.5, "c": np.float32(0.25), "d": torch.tensor(2.0, requires_grad=True), "e": math.nan}

    found = check_metrics(metrics)

    assert {name: found[name] for name in "abcd"} == {"a": 1.0, "b": 0.5, "c": 0.25, "d": 2.0}
    assert math.isnan(found["e"])


@pytest.mark.parametrize("value", ["0.5", None, True, [1.0], np.zeros(2), torch.zeros(2), 1j, object()])
def test_metrics_that_are_not_numbers_are_refused_by_name(value):
    with pytest.raises(UsageError, match="'loss'") as caught:
        check_metrics({"loss": value})

    assert "loss.mean()" in caught.value.hint  # a tensor of one number is taken as it is


@pytest.mark.parametrize("metrics", [[1], {3: 1.0}, {"": 1.0}, {"a\nb": 1.0}, {f"m{i}": 0.0 for i in range(201)}])
def test_metrics_with_odd_names_or_too_many_are_refused(metrics):
    with pytest.raises(UsageError):
        check_metrics(metrics)


@pytest.mark.parametrize("note", [3, "x" * 4001, "\ud800"])
def test_notes_that_cannot_be_written_are_refused(note):
    with pytest.raises(UsageError):
        check_note(note)


@pytest.mark.parametrize("tags", ["one", [1], [""], [f"t{i}" for i in range(51)]])
def test_tags_that_are_not_short_texts_are_refused(tags):
    with pytest.raises(UsageError):
        check_tags(tags)


def test_hyperparameters_become_plain_values():
    given = {"lr": 1e-3, "layers": (1, 2), "data": Path("a/b"), "nested": {"nan": math.nan, "none": None, "on": True}}

    found = check_hyperparameters(given)

    assert found == {"lr": 1e-3, "layers": [1, 2], "data": "a/b", "nested": {"nan": "nan", "none": None, "on": True}}


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize("value", [object(), np.zeros(3), {1: 2}, Colour.RED, {"a": {"b": set()}}])
def test_hyperparameters_that_a_document_cannot_hold_are_refused_by_path(value):
    with pytest.raises(UsageError, match="hyperparameters"):
        check_hyperparameters({"x": value})


def test_hyperparameters_that_contain_themselves_are_refused():
    loop: dict[str, object] = {}
    loop["again"] = loop

    with pytest.raises(UsageError, match="deep"):
        check_hyperparameters(loop)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: check_note(None), "note is of type NoneType, expected text"),
        (lambda: check_note("x" * 4001), "note has 4001 characters, the limit is 4000"),
        (lambda: check_metrics([1.0]), "metrics is of type list, expected names with numbers"),
        (lambda: check_metrics({f"m{number}": 1.0 for number in range(201)}), "201 metrics, the limit is 200"),
    ],
)
def test_what_was_found_is_said_with_what_was_expected(call, said):
    with pytest.raises(UsageError) as raised:
        call()

    assert raised.value.message == said
