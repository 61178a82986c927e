import numpy as np
import pytest
import torch

from holdfast.core.errors import StateMismatchError
from tests.engine.test_matching import load, problems_of
from tests.format.trips import store


class Net(torch.nn.Module):
    def __init__(self, **layers):
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)


def test_a_prefix_is_renamed_on_whole_steps_of_the_path():
    saved = Net(encoder=torch.nn.Linear(2, 3), encoder2=torch.nn.Linear(3, 1))
    target = Net(backbone=torch.nn.Linear(2, 3), encoder2=torch.nn.Linear(3, 1))

    load(store({"model": saved}), {"model": target}, rename={"model.encoder": "model.backbone"})

    assert torch.equal(target.backbone.weight, saved.encoder.weight)
    assert torch.equal(target.encoder2.weight, saved.encoder2.weight)


def test_a_whole_object_can_be_renamed():
    saved, target = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)

    load(store({"model": saved, "x": {"a": 1}}), {"net": target, "x": {}}, rename={"model": "net"})

    assert torch.equal(target.weight, saved.weight)


def test_parts_can_move_between_objects():
    saved = {"model": {"a.w": np.ones(2), "b.w": np.full(2, 2.0)}, "other": {}}
    state = {"model": {"a.w": np.zeros(2)}, "other": {"nested": {"w": np.zeros(2)}}}

    load(store(saved), state, rename={"model.b": "other.nested"})

    assert state["model"]["a.w"].tolist() == [1, 1]
    assert state["other"]["nested"]["w"].tolist() == [2, 2]


def test_everything_can_move_out_of_an_object():
    saved = Net(a=torch.nn.Linear(1, 1), b=torch.nn.Linear(1, 1))
    state = {"one": torch.nn.Linear(1, 1), "two": torch.nn.Linear(1, 1)}

    load(store({"model": saved}), state, rename={"model.a": "one", "model.b": "two"})

    assert torch.equal(state["two"].weight, saved.b.weight)


def test_number_keys_can_be_renamed():
    saved = {"s": {3: {"m": np.ones(1)}, 4: {"m": np.full(1, 2.0)}}}
    state = {"s": {0: {"m": np.zeros(1)}, 4: {"m": np.zeros(1)}}}

    load(store(saved), state, rename={"s[3]": "s[0]"})

    assert state["s"][0]["m"].tolist() == [1]


def test_two_names_can_be_swapped():
    state = {"a": np.zeros(1), "b": np.zeros(1)}

    load(store({"a": np.ones(1), "b": np.full(1, 2.0)}), state, rename={"a": "b", "b": "a"})

    assert (state["a"][0], state["b"][0]) == (2, 1)


@pytest.mark.parametrize(
    ("rename", "expected"),
    [
        ({"model.w": "model.v"}, "something there already"),
        ({"model.none": "model.v"}, "the checkpoint has no such path"),
        ({"model.w": "model.x", "model.v": "model.x"}, "something there already"),
    ],
)
def test_collisions_and_unused_entries_are_problems(rename, expected):
    state = {"model": {"w": np.zeros(1), "v": np.zeros(1)}}

    problems = problems_of(store({"model": {"w": np.ones(1), "v": np.ones(1)}}), state, rename=rename)

    assert any(expected in problem for problem in problems)


def test_a_rename_to_where_the_program_has_nothing_is_extra():
    with pytest.raises(StateMismatchError, match=r"model\.nowhere: extra"):
        load(store({"model": {"w": np.ones(1), "v": 1}}), {"model": {"u": 1}}, rename={"model.w": "model.nowhere"})
