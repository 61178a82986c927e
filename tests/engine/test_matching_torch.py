"""After a restore, training goes on bit for bit, whatever keeps its state in torch's ways."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.core.errors import StateMismatchError, UsageError
from holdfast.engine.adapters import check_restorable
from tests.engine.test_matching import load
from tests.format.trips import store

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
    "amsgrad": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "adamw foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.01),
    "lbfgs": lambda p: torch.optim.LBFGS(p, 0.1, max_iter=2),
    "tensor lr": lambda p: torch.optim.Adam(p, torch.tensor(0.01), foreach=False),
}


class Tied(nn.Module):
    """An embedding tied to the head, batch norm (buffers, integer counter), dropout (random state)."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.norm = nn.BatchNorm1d(6)
        self.middle = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        hidden = torch.relu(self.middle(self.norm(self.embedding(tokens))))
        return self.head(nn.functional.dropout(hidden, 0.2, self.training))


class Training:
    def __init__(self, make_optimizer, seed, warm_steps=0):
        torch.manual_seed(seed)
        self.model = Tied()
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        self.optimizer = make_optimizer(self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [2, 4], gamma=0.5)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        self.generator = torch.Generator().manual_seed(seed)
        self.run(warm_steps)

    @property
    def state(self):
        return {name: value for name, value in vars(self).items() if hasattr(value, "state_dict")} | {
            "generator": self.generator
        }

    def run(self, steps):
        for _ in range(steps):
            tokens = torch.randint(0, 11, (8,), generator=self.generator)
            with torch.random.fork_rng():
                torch.manual_seed(int(tokens.sum()))
                if isinstance(self.optimizer, torch.optim.LBFGS):
                    self.optimizer.step(lambda tokens=tokens: self.backward(tokens))
                else:
                    self.scaler.scale(self.backward(tokens, scaled=True))
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
            self.schedule.step()
            self.average.update_parameters(self.model)

    def backward(self, tokens, scaled=False):
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(tokens), tokens)
        (self.scaler.scale(loss) if scaled else loss).backward()
        return loss

    def result(self):
        tensors = [*self.model.state_dict().values(), *self.average.state_dict().values()]
        flat = [tensor.double().flatten() for tensor in tensors]
        return torch.cat(flat).numpy().tobytes(), self.schedule.get_last_lr(), self.scaler.get_scale()


@pytest.mark.filterwarnings("ignore")  # torch's own remarks on schedulers and scalers
@pytest.mark.parametrize("warm_steps", [0, 2], ids=["new process", "rolled back"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_bit_for_bit(name, warm_steps):
    original = Training(OPTIMIZERS[name], seed=1, warm_steps=3)
    stored = store(original.state)
    original.run(3)
    resumed = Training(OPTIMIZERS[name], seed=2, warm_steps=warm_steps)
    parameters = list(resumed.model.parameters())

    load(stored, resumed.state)
    resumed.run(3)

    assert resumed.result() == original.result()
    assert all(a is b for a, b in zip(parameters, resumed.model.parameters(), strict=True))
    assert resumed.model.head.weight is resumed.model.embedding.weight


class Watched(nn.Linear):
    loads = 0

    def load_state_dict(self, *args, **options):
        self.loads += 1
        return super().load_state_dict(*args, **options)


def test_a_plain_module_is_filled_without_a_second_pass():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    stored = store({"m": model})
    target = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    versions = [parameter._version for parameter in target.parameters()]

    load(stored, {"m": target})

    assert torch.equal(target[0].weight, model[0].weight)
    assert [parameter._version for parameter in target.parameters()] == versions


def test_a_plain_module_of_another_version_loads_it_by_itself():
    stored = store({"m": nn.BatchNorm1d(2)})
    stored.tree["items"]["m"]["state"]["metadata"]["items"][""]["items"]["version"] = 1
    target = nn.BatchNorm1d(2)
    version = target.weight._version

    load(stored, {"m": target})

    assert target.weight._version > version


def test_a_buffer_that_cannot_be_filled_is_not_silently_left_alone():
    saved, target = nn.Module(), nn.Module()
    saved.register_buffer("b", torch.arange(3.0))
    target.register_buffer("b", torch.zeros(1).expand(3))

    with pytest.raises(StateMismatchError, match="load_state_dict of"):
        load(store({"m": saved}), {"m": target})


def test_a_module_with_its_own_load_state_dict_is_asked():
    target = nn.Sequential(Watched(2, 2))
    stored = store({"m": Watched(2, 2), "s": nn.Sequential(Watched(2, 2))})
    own = Watched(2, 2)

    load(stored, {"m": own, "s": target})

    assert own.loads == 1


def test_a_hook_sees_the_state_that_is_loaded():
    seen = []
    target = nn.Linear(2, 2)
    target.register_load_state_dict_pre_hook(lambda module, state, *rest: seen.append(sorted(state)))

    load(store({"m": nn.Linear(2, 2)}), {"m": target})

    assert seen == [["bias", "weight"]]


class Extra(nn.Linear):
    note = "new"

    def get_extra_state(self):
        return {"note": self.note}

    def set_extra_state(self, state):
        self.note = state["note"]


def test_extra_state_is_restored():
    saved, target = Extra(1, 1), Extra(1, 1)
    saved.note = "old"

    load(store({"m": saved}), {"m": target})

    assert target.note == "old"


def test_an_older_layout_of_a_layer_is_converted_by_the_layer():
    stored = store({"m": nn.BatchNorm1d(2)})
    stored.tree["items"]["m"]["state"]["metadata"]["items"][""]["items"]["version"] = 1
    del stored.tree["items"]["m"]["state"]["items"]["num_batches_tracked"]
    target = nn.BatchNorm1d(2)

    with pytest.raises(StateMismatchError, match="num_batches_tracked: missing"):
        load(stored, {"m": target})
    plan = load(stored, {"m": target}, strict=False)

    assert len(plan.skipped) == 1


def test_a_lazy_module_gets_its_shape_from_the_checkpoint():
    target = nn.LazyLinear(3)
    saved = nn.Linear(2, 3)

    load(store({"m": saved}), {"m": target})

    assert torch.equal(target.weight, saved.weight)


def test_a_state_dict_saved_as_a_dict_loads_into_the_object_and_back():
    saved, target, plain = nn.Linear(2, 2), nn.Linear(2, 2), {}

    load(store({"m": saved.state_dict()}), {"m": target})
    load(store({"m": saved}), {"m": plain})

    assert torch.equal(target.weight, saved.weight)
    assert np.array_equal(plain["weight"].numpy(), saved.weight.detach().numpy())


def test_an_optimizer_can_go_back_to_before_its_first_step():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    stored = store({"o": optimizer})
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()

    load(stored, {"o": optimizer})

    assert optimizer.state_dict()["state"] == {}


def test_a_changed_layer_lists_its_tensors():
    with pytest.raises(StateMismatchError) as caught:
        load(store({"m": nn.Linear(2, 3)}), {"m": nn.Linear(2, 4)})

    assert caught.value.problems == (
        "m.weight: wrong shape: the program has [4, 2], the checkpoint [3, 2]",
        "m.bias: wrong shape: the program has [4], the checkpoint [3]",
    )


@pytest.mark.parametrize("is_iterator", [False, True])
def test_a_data_loader_is_refused_with_advice_that_fits(is_iterator):
    loader = torch.utils.data.DataLoader([1, 2, 3], shuffle=True)

    with pytest.raises(UsageError) as caught:
        check_restorable({"data": iter(loader) if is_iterator else loader})

    assert "data: a torch" in caught.value.message
    assert "does not say where it is" in caught.value.message
    assert "holdfast.data.resumable(loader, seed=7)" in caught.value.hint
    assert "docs/how-to/data-order.md" in caught.value.hint
    assert (Path(__file__).parents[2] / "docs/how-to/data-order.md").exists()


def test_an_object_without_state_dict_is_not_told_to_go_into_a_dict():
    with pytest.raises(UsageError) as caught:
        check_restorable({"x": object()})

    assert "give it state_dict and load_state_dict" in caught.value.hint
