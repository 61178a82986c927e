"""A restore into data of another order is refused before anything is touched, with all other differences."""

import enum
import logging
import re

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import holdfast
from holdfast.data import resumable


def saved_run(path, data):
    """A run whose only checkpoint was saved in the middle of an epoch."""
    weights = np.ones(4)
    with holdfast.Checkpointer(path, {"weights": weights, "data": data}, background="off") as ckpt:
        for _ in ckpt.over(data, epochs=1):
            ckpt.save(step=1)
            break
    return path


def refusal(path, state, **options):
    """What a restore into the state raises."""
    before = {name: np.copy(value) for name, value in state.items() if isinstance(value, np.ndarray)}
    with holdfast.Checkpointer(path, state, background="off", every=holdfast.never()) as ckpt:
        with pytest.raises(holdfast.StateMismatchError, match="nothing was loaded") as caught:
            ckpt.restore(**options)
    assert all(np.array_equal(state[name], value) for name, value in before.items()), "the program was touched"
    return caught.value


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("length", "options", "problem", "hint"),
    [
        (100, {"seed": 2}, "it was saved with seed=1, shuffle=True, and the program has seed=2, shuffle=True", "order"),
        (100, {"seed": 1, "shuffle": False}, "and the program has seed=1, shuffle=False", "give the same"),
        (110, {"seed": 1}, "it has 110 samples, and had 100 when epoch 0 was left after 10", 'finish="old"'),
        (90, {"seed": 1, "finish": "old"}, "those of then are not there any more", 'finish="skip"'),
    ],
)
def test_arrays_of_another_order_are_refused_before_anything_is_touched(
    tmp_path, length, options, problem, hint, strict
):
    path = saved_run(tmp_path, resumable((np.arange(100.0),), seed=1, batch_size=10))
    data = resumable((np.arange(float(length)),), batch_size=10, **options)

    error = refusal(path, {"weights": np.zeros(4), "data": data}, strict=strict)

    assert len(error.problems) == 1
    assert error.problems[0].startswith("data: ")
    assert problem in error.problems[0]
    assert hint in error.hint
    assert "strict=False" not in error.hint  # it would not help
    assert data.epoch == 0
    assert data.state_dict()["consumed"] == 0


def test_a_loader_of_another_order_leaves_the_model_as_it_is(tmp_path):
    def make(seed):
        model = torch.nn.Linear(4, 1)
        data = resumable(DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8, shuffle=True), seed=seed)
        return {"model": model, "data": data}

    with holdfast.Checkpointer(tmp_path, make(3), background="off") as ckpt:
        ckpt.save(step=1)
    state = make(4)
    before = state["model"].weight.detach().clone()

    error = refusal(tmp_path, state)

    assert "saved with seed=3" in error.message
    assert torch.equal(state["model"].weight, before)


def test_the_order_is_listed_with_the_other_differences(tmp_path):
    path = saved_run(tmp_path, resumable(np.arange(100), seed=1, batch_size=10))

    error = refusal(path, {"weights": np.zeros(5), "data": resumable(np.arange(100), seed=2, batch_size=10)})

    assert [problem.split(":")[0] for problem in error.problems] == ["weights", "data"]
    assert "another seed is another order" in error.hint
    assert "strict=False" in error.hint


class Counting:
    """A stream whose state is an array."""

    def __init__(self):
        self.at = np.zeros(1, np.int64)

    def __iter__(self):
        for number in range(int(self.at[0]), 20):
            self.at[0] = number + 1
            yield number

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at[...] = state["at"]


def test_a_stream_that_was_begun_otherwise_is_refused_before_anything_is_touched(tmp_path):
    path = saved_run(tmp_path, resumable(Counting(), seed=1, batch_size=2))

    error = refusal(path, {"weights": np.zeros(4), "data": resumable(Counting(), seed=2, batch_size=2)})

    assert "its position was saved with seed 1, and the program has seed 2" in error.message


def test_a_stream_as_it_was_begun_goes_on_though_its_state_is_not_read_when_it_is_asked(tmp_path):
    path = saved_run(tmp_path, resumable(Counting(), seed=1, batch_size=2))
    data = resumable(Counting(), seed=1, batch_size=2)

    with holdfast.Checkpointer(path, {"weights": np.zeros(4), "data": data}, background="off") as ckpt:
        ckpt.restore()
        assert next(iter(data)) == [2, 3]


@pytest.mark.parametrize(("finish", "batches"), [("old", 9), ("skip", 11)])
def test_longer_data_is_taken_as_finish_says(tmp_path, finish, batches):
    path = saved_run(tmp_path, resumable(np.arange(100), seed=1, batch_size=10))
    data = resumable(np.arange(110), seed=1, batch_size=10, finish=finish)

    with holdfast.Checkpointer(path, {"weights": np.zeros(4), "data": data}, background="off") as ckpt:
        ckpt.restore()

    assert len(list(data)) == batches


def test_another_length_between_two_epochs_is_one_warning(tmp_path, caplog):
    data = resumable(np.arange(100), seed=1, batch_size=10)
    list(data)
    with holdfast.Checkpointer(tmp_path, {"data": data}, background="off") as ckpt:
        ckpt.save(step=1)

    with (
        holdfast.Checkpointer(
            tmp_path, {"data": resumable(np.arange(110), seed=1, batch_size=10)}, background="off"
        ) as ckpt,
        caplog.at_level(logging.WARNING, "holdfast"),
    ):
        ckpt.restore()

    assert [record.message for record in caplog.records] == ["ndarray: it has 110 samples, and had 100 until now"]


class Sampler:
    """An object of the program that says what it cannot go on from."""

    def __init__(self, size, error=None):
        self.size = size
        self.error = error
        self.order = np.zeros(size)

    def state_dict(self):
        return {"size": self.size, "limits": (0, self.size), "order": self.order}

    def check_state_dict(self, state):
        if self.error is not None:
            raise self.error
        assert state == {"size": 3, "limits": (0, 3)}  # without what has yet to be read

    def load_state_dict(self, state):
        self.order[...] = state["order"]


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (holdfast.StateError("of another size", hint="begin anew"), "sampler: of another size"),
        (KeyError("size"), "sampler: check_state_dict of .*Sampler failed: KeyError: 'size'"),
    ],
)
def test_an_object_of_ones_own_may_refuse_before_anything_is_touched(tmp_path, error, problem):
    with holdfast.Checkpointer(tmp_path, {"weights": np.ones(4), "sampler": Sampler(3)}, background="off") as ckpt:
        ckpt.save(step=1)
        ckpt.restore()

    refused = refusal(tmp_path, {"weights": np.zeros(4), "sampler": Sampler(3, error)})

    assert len(refused.problems) == 1
    assert re.fullmatch(problem, refused.problems[0])


class Mode(enum.Enum):
    NEAR = "near"
    FAR = "far"


class Sighted:
    """An object whose state has a class of the program, as a value and as a key."""

    def __init__(self, mode):
        self.mode = mode

    def state_dict(self):
        return {"mode": self.mode, Mode.FAR: 7}

    def check_state_dict(self, state):
        assert state == self.state_dict()

    def load_state_dict(self, state):
        self.mode = state["mode"]


def test_an_object_is_asked_with_what_it_would_be_given(tmp_path):
    with holdfast.Checkpointer(tmp_path, {"sighted": Sighted(Mode.NEAR)}, background="off") as ckpt:
        ckpt.save(step=1)

        assert ckpt.restore().step == 1

    refused = refusal(tmp_path, {"sighted": Sighted(Mode.FAR)})
    assert len(refused.problems) == 1
