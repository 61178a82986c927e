"""Modules are read as their state_dict would have them, or not at all."""

import collections

import pytest
import torch

from holdfast.format.footprint import memory_of_tensors
from holdfast.format.modules import read_module


class Mixed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("passing", torch.ones(2), persistent=False)
        self.register_buffer("none", None)
        self.own = torch.nn.Parameter(torch.ones(2))
        self.register_parameter("nothing", None)
        self.part = torch.nn.Linear(2, 2)
        self.same_part = self.part
        self.absent = None
        self.register_module("empty", None)
        self.many = torch.nn.ParameterList([torch.ones(1), torch.ones(2)])
        self.named = torch.nn.ParameterDict({"b": torch.ones(1), "a": torch.ones(2)})


def parametrized():
    return torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 4))


@pytest.mark.parametrize(
    "make",
    [
        Mixed,
        parametrized,
        lambda: torch.nn.Linear(2, 3),
        torch.nn.ReLU,
        lambda: torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten()),
        lambda: torch.nn.LSTM(3, 4, num_layers=2, bidirectional=True),
        lambda: torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, batch_first=True), 2),
        lambda: torch.jit.script(torch.nn.Linear(2, 2)),
        lambda: torch.nn.Embedding(3, 4).half(),
        lambda: torch.optim.swa_utils.AveragedModel(torch.nn.Linear(2, 2)),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_what_is_read_is_what_the_state_dict_has(make):
    module = make()

    content = read_module(module)

    state = module.state_dict()
    assert content is not None
    assert content.describes(state)
    assert memory_of_tensors(content.tensors) == memory_of_tensors(list(state.values()))
    assert dict(zip(content.names, content.versions, strict=True)) == {
        name: entry["version"] for name, entry in state._metadata.items()
    }


class WithExtra(torch.nn.Linear):
    def get_extra_state(self):
        return 1


class WithOwnSaving(torch.nn.Linear):
    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)


class WithOwnState(torch.nn.Linear):
    def state_dict(self, *args, **options):
        return super().state_dict(*args, **options)


class WithOwnLookup(torch.nn.Linear):
    def __getattribute__(self, name):
        return super().__getattribute__(name)


class WithOwnParameters(torch.nn.Linear):
    _parameters = property(lambda self: {})


def hooked(register):
    module = torch.nn.Linear(2, 2)
    getattr(module, register)(lambda *_: None)
    return module


def changed(**attributes):
    module = torch.nn.Linear(2, 2)
    vars(module).update(attributes)
    return module


def circular():
    module = torch.nn.Sequential()
    module._modules["again"] = module
    return module


@pytest.mark.parametrize(
    "make",
    [
        lambda: WithExtra(2, 2),
        lambda: WithOwnSaving(2, 2),
        lambda: WithOwnState(2, 2),
        lambda: WithOwnLookup(2, 2),
        lambda: WithOwnParameters.__new__(WithOwnParameters),
        lambda: hooked("_register_state_dict_hook"),
        lambda: hooked("register_state_dict_post_hook"),
        lambda: hooked("register_state_dict_pre_hook"),
        lambda: changed(state_dict=dict),
        lambda: changed(_save_to_state_dict=lambda *_: None),
        lambda: changed(_version=True),
        lambda: changed(_version=None),
        lambda: changed(_parameters=None),
        lambda: changed(_modules={1: torch.nn.Linear(1, 1)}),
        lambda: changed(_modules={"a": torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])}),
        circular,
        lambda: torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]),
        lambda: {"weight": torch.ones(1)},
        object,
    ],
)
@pytest.mark.parametrize("wrap", [lambda module: module, lambda module: torch.nn.ModuleDict({"a": module})])
def test_what_may_have_ways_of_its_own_is_not_read(make, wrap):
    made = make()
    try:
        module = wrap(made)
    except TypeError:  # not a module
        module = made

    assert read_module(module) is None


@pytest.mark.parametrize("name", ["state_dict", "_save_to_state_dict"])
def test_nothing_is_read_while_torchs_own_methods_are_replaced(monkeypatch, name):
    own = getattr(torch.nn.Module, name)
    monkeypatch.setattr(torch.nn.Module, name, lambda self, *args, **options: own(self, *args, **options))

    assert read_module(torch.nn.Linear(2, 2)) is None


def _other_key(state):
    state["more"] = torch.ones(1)


def _fewer(state):
    del state["bias"]


def _other_order(state):
    state.move_to_end("weight")


def _other_version(state):
    state._metadata[""]["version"] = 2


def _equal_version(state):
    state._metadata[""]["version"] = True


def _more_of_a_module(state):
    state._metadata[""]["more"] = 1


def _another_module(state):
    state._metadata["more"] = {"version": 1}


def _plain_metadata(state):
    state._metadata = dict(state._metadata)


def _attributes_of_metadata(state):
    state._metadata.more = 1


def _attributes(state):
    state.more = 1


def _no_metadata(state):
    del state._metadata


@pytest.mark.parametrize(
    "change",
    [
        _other_key,
        _fewer,
        _other_order,
        _other_version,
        _equal_version,
        _more_of_a_module,
        _another_module,
        _plain_metadata,
        _attributes_of_metadata,
        _attributes,
        _no_metadata,
    ],
)
def test_a_state_dict_that_has_anything_else_is_not_described(change):
    module = torch.nn.Linear(2, 2)
    state = module.state_dict()

    change(state)

    assert not read_module(module).describes(state)


def test_a_dictionary_of_another_kind_is_not_described():
    module = torch.nn.Linear(2, 2)

    content = read_module(module)

    assert not content.describes(dict(module.state_dict()))
    assert not content.describes(collections.OrderedDict(module.state_dict()))
