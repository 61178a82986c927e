"""What optimizers own is remembered as long as all of it is where it was, and no longer."""

import numpy as np
import pytest
import torch

from holdfast.engine.deferral import Guarded, Owned
from holdfast.format.encode import encode_again, encode_state
from holdfast.format.footprint import Moved


class Example:
    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.numbers = np.ones(3)
        self.model(torch.randn(5, 3)).sum().backward()
        self.optimizer.step()
        self.owned = Owned()
        self.footprint = None

    def save(self):
        """What is deferred, and whether the tensors had to be looked at; as a save does it, one after the other."""
        state = {"model": self.model, "optimizer": self.optimizer, "numbers": self.numbers}
        guarded = Guarded([self.optimizer])
        try:
            encoded = encode_again(self.footprint, state) if self.footprint else encode_state(state, again=True)
        except Moved:
            encoded = encode_state(state, again=True)
        self.footprint = encoded.footprint
        deferral = self.owned.deferral(encoded, guarded, besides=frozenset())
        fresh = Owned().deferral(encode_state(state), Guarded([self.optimizer]), besides=frozenset())
        assert deferral.leaves == fresh.leaves
        return deferral, "tensors" in vars(guarded)

    def slot(self):
        return self.optimizer.state[self.model[0].bias]


@pytest.fixture
def example():
    made = Example()
    made.save()
    return made


def test_what_has_not_moved_is_not_looked_at_again(example):
    deferral, was_looked_at = example.save()

    assert len(deferral.leaves) == 4 * 6
    assert not was_looked_at


def _replace_in_optimizer(example, tensor):
    old, optimizer = example.model[0].weight, example.optimizer
    made = torch.nn.Parameter(tensor)
    optimizer.param_groups[0]["params"][0] = made
    slots = {made if parameter is old else parameter: slot for parameter, slot in optimizer.state.items()}
    optimizer.state.clear()
    optimizer.state.update(slots)


def _other_parameter_in_the_optimizer(example):
    _replace_in_optimizer(example, torch.ones(4, 3))


def _other_object_at_the_same_address(example):
    _replace_in_optimizer(example, example.model[0].weight.data)


def _fewer_parameters(example):
    del example.optimizer.state[example.optimizer.param_groups[0]["params"].pop()]


def _other_order(example):
    example.optimizer.param_groups[0]["params"].reverse()


def _other_moment(example):
    example.slot()["exp_avg"] = torch.zeros(4)


def _number(example):
    example.slot()["step"] = 3


def _no_moments(example):
    example.optimizer.state.clear()


def _other_memory(example):
    example.model[2].weight.data = torch.ones(2, 4)


def _memory_of_the_optimizer_in_an_array(example):
    example.numbers = example.slot()["exp_avg"].numpy()[:3]


CHANGES = [
    _other_parameter_in_the_optimizer,
    _other_object_at_the_same_address,
    _fewer_parameters,
    _other_order,
    _other_moment,
    _number,
    _no_moments,
    _other_memory,
    _memory_of_the_optimizer_in_an_array,
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_deferred_after_a_change_is_what_is_owned_then(example, change):
    change(example)

    _, was_looked_at = example.save()  # which compares it with what one finds who looks for the first time
    example.save()

    assert was_looked_at


def test_an_array_elsewhere_that_the_optimizer_does_not_own_changes_nothing(example):
    example.numbers = np.zeros(3)

    _, was_looked_at = example.save()

    assert not was_looked_at


def test_a_write_is_seen_in_tensors_that_were_not_looked_at(example):
    deferral, _ = example.save()

    with torch.no_grad():
        example.model[0].bias.add_(1)
        example.slot()["exp_avg"].zero_()

    assert deferral.changed() == ["model.0.bias", "optimizer.state[1].exp_avg"]


def test_an_inference_tensor_that_came_to_lie_there_is_not_deferred(example):
    with torch.inference_mode():
        twin = torch.from_numpy(example.slot()["exp_avg"].numpy())
    example.slot()["exp_avg"].data = twin

    deferral, was_looked_at = example.save()

    assert was_looked_at
    assert len(deferral.leaves) == 4 * 6 - 1
