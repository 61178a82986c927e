"""What does not go with the program's optimizer is named, and left out if wanted; training goes on either way."""

import pytest
import torch
from torch import nn

from holdfast.core.errors import StateMismatchError
from tests.engine.test_matching import load, problems_of
from tests.engine.test_matching_torch import OPTIMIZERS
from tests.format.trips import store

MOMENTS = OPTIMIZERS | {
    "adadelta": lambda p: torch.optim.Adadelta(p, 0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, 0.01),
    "adamax": lambda p: torch.optim.Adamax(p, 0.01),
    "asgd": lambda p: torch.optim.ASGD(p, 0.01),
    "nadam": lambda p: torch.optim.NAdam(p, 0.01),
    "radam": lambda p: torch.optim.RAdam(p, 0.01),
    "rprop": lambda p: torch.optim.Rprop(p, 0.01),
}


class Tuning:
    """A body and a head that may get another size; the head's parameters are 2 and 3."""

    def __init__(self, make_optimizer, *, outputs=1, layers=1, steps=0):
        torch.manual_seed(outputs)
        body = [module for _ in range(layers) for module in (nn.Linear(4, 4), nn.Tanh())]
        self.model = nn.Sequential(*body, nn.Linear(4, outputs))
        self.opt = make_optimizer(self.model.parameters())
        self.progress = {"step": 0}
        for _ in range(steps):
            self.step()

    @property
    def state(self):
        return {"model": self.model, "opt": self.opt, "progress": self.progress}

    def step(self):
        self.opt.step(self.backward)
        self.progress["step"] += 1

    def backward(self):
        self.opt.zero_grad()
        loss = (self.model(torch.linspace(-1, 1, 8).reshape(2, 4)) - 1).square().sum()
        loss.backward()
        return loss

    def assert_trains(self):
        """A step changes every parameter, and all slots go with theirs."""
        before = [parameter.detach().clone() for parameter in self.model.parameters()]

        self.step()

        after = list(self.model.parameters())
        assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))
        assert all(torch.isfinite(parameter).all() for parameter in after)


def test_a_changed_head_lists_the_moments_that_no_longer_go_with_their_parameters():
    stored = store(Tuning(OPTIMIZERS["adam"], outputs=1, steps=2).state)
    tuning = Tuning(OPTIMIZERS["adam"], outputs=2)

    problems = problems_of(stored, tuning.state)

    assert problems == (
        "model.2.weight: wrong shape: the program has [2, 4], the checkpoint [1, 4]",
        "model.2.bias: wrong shape: the program has [2], the checkpoint [1]",
        "opt.state[2].exp_avg: wrong shape: its parameter has [2, 4], the checkpoint [1, 4]",
        "opt.state[2].exp_avg_sq: wrong shape: its parameter has [2, 4], the checkpoint [1, 4]",
        "opt.state[3].exp_avg: wrong shape: its parameter has [2], the checkpoint [1]",
        "opt.state[3].exp_avg_sq: wrong shape: its parameter has [2], the checkpoint [1]",
    )


@pytest.mark.parametrize("name", MOMENTS)
def test_training_goes_on_with_a_changed_head_and_the_moments_of_the_rest(name):
    saved = Tuning(MOMENTS[name], outputs=1, steps=2)
    tuning = Tuning(MOMENTS[name], outputs=2)
    of_saved, own = saved.opt.state_dict()["state"], tuning.opt.state_dict()["state"]  # Adagrad has slots at once
    changed = {0} if name == "lbfgs" else {2, 3}  # L-BFGS has one slot for all parameters

    plan = load(store(saved.state), tuning.state, strict=False)

    expected = {key: slot for key, slot in of_saved.items() if key not in changed} | {
        key: slot for key, slot in own.items() if key in changed
    }
    assert str(tuning.opt.state_dict()["state"]) == str(expected)
    assert {line.partition("]")[0] for line in plan.skipped[2:]} == {
        f"opt.state[{key}" for key in changed & {*of_saved}
    }
    assert tuning.progress == {"step": 2}
    tuning.assert_trains()


def test_moments_that_the_optimizer_has_already_stay_where_those_of_the_checkpoint_do_not_fit():
    stored = store(Tuning(OPTIMIZERS["momentum"], outputs=1, steps=2).state)
    tuning = Tuning(OPTIMIZERS["momentum"], outputs=2, steps=1)
    buffer = tuning.opt.state[tuning.model[2].weight]["momentum_buffer"].clone()

    problems = problems_of(stored, tuning.state)
    plan = load(stored, tuning.state, strict=False)

    assert [problem.partition(":")[0] for problem in problems] == [
        "model.2.weight",
        "model.2.bias",
        "opt.state[2].momentum_buffer",
        "opt.state[3].momentum_buffer",
    ]
    assert plan.skipped == list(problems)
    assert torch.equal(tuning.opt.state[tuning.model[2].weight]["momentum_buffer"], buffer)
    tuning.assert_trains()


@pytest.mark.parametrize("name", ["adam", "momentum", "adafactor", "lbfgs"])
@pytest.mark.parametrize("steps", [0, 1], ids=["new process", "rolled back"])
def test_an_added_layer_leaves_the_optimizer_as_it_is_and_loads_the_rest(name, steps):
    saved = Tuning(MOMENTS[name], layers=1, steps=2)
    tuning = Tuning(MOMENTS[name], layers=2, steps=steps)
    slots, groups = len(tuning.opt.state), tuning.opt.state_dict()["param_groups"]

    plan = load(store(saved.state), tuning.state, strict=False)

    assert "opt: left as it is: param_groups[0]: the program has 6 parameters, the checkpoint 4" in plan.skipped
    assert len(tuning.opt.state) == slots
    assert tuning.opt.state_dict()["param_groups"] == groups
    assert torch.equal(tuning.model[0].weight, saved.model[0].weight)
    assert tuning.progress == {"step": 2}
    tuning.assert_trains()


def test_the_refusal_of_an_added_layer_says_what_can_be_done_about_the_optimizer():
    stored = store(Tuning(OPTIMIZERS["adam"], layers=1, steps=2).state)
    tuning = Tuning(OPTIMIZERS["adam"], layers=2)

    with pytest.raises(StateMismatchError) as caught:
        load(stored, tuning.state)

    assert "opt: param_groups[0]: the program has 6 parameters, the checkpoint 4" in caught.value.problems
    assert "strict=False loads what fits and leaves an optimizer" in caught.value.hint


@pytest.mark.parametrize("as_dict", [False, True], ids=["object", "its state_dict"])
@pytest.mark.parametrize(("old", "new"), [("adam", "momentum"), ("momentum", "adam"), ("adam", "rmsprop")])
def test_another_optimizer_is_noticed(old, new, as_dict):
    saved = Tuning(OPTIMIZERS[old], steps=2)
    stored = store(saved.state | ({"opt": saved.opt.state_dict()} if as_dict else {}))
    tuning = Tuning(OPTIMIZERS[new])
    groups = tuning.opt.state_dict()["param_groups"]

    problems = problems_of(stored, tuning.state)
    plan = load(stored, tuning.state, strict=False)

    assert [problem.partition(":")[0] for problem in problems] == ["opt"]
    assert plan.skipped == [problem.replace("opt: ", "opt: left as it is: ") for problem in problems]
    assert tuning.opt.state_dict()["param_groups"] == groups
    tuning.assert_trains()


@pytest.mark.parametrize("new", ["adamax", "nadam", "radam"])
def test_a_near_relative_of_the_optimizer_is_told_by_its_class(new):
    stored = store({"o": Tuning(OPTIMIZERS["adam"], steps=1).opt})

    problems = problems_of(stored, {"o": Tuning(MOMENTS[new]).opt})

    assert problems[0].startswith("o: class mismatch: the program has torch.optim.")


def test_adamw_takes_what_adam_saved_as_it_is_one():
    stored = store(Tuning(OPTIMIZERS["adam"], steps=2).state)
    tuning = Tuning(OPTIMIZERS["adamw foreach"])

    load(stored, tuning.state)

    assert len(tuning.opt.state) == 4
    assert tuning.opt.param_groups[0]["decoupled_weight_decay"] is True
    tuning.assert_trains()


@pytest.mark.parametrize("as_dict", [False, True], ids=["object", "its state_dict"])
def test_an_optimizer_of_an_older_torch_has_fewer_hyperparameters_and_is_no_other(as_dict):
    saved = Tuning(OPTIMIZERS["adam"], steps=2).opt
    stored = store({"o": saved.state_dict() if as_dict else saved})
    node = stored.tree["items"]["o"]
    group = (node if as_dict else node["state"])["items"]["param_groups"][0]["items"]
    del group["decoupled_weight_decay"], group["fused"]
    group["initial_lr"] = 0.1  # of a scheduler
    target = Tuning(OPTIMIZERS["adam"]).opt
    torch.optim.lr_scheduler.StepLR(target, 10)

    load(stored, {"o": target})

    assert len(target.state) == 4


class Blocks(torch.optim.Adam):
    """Not one of torch's: what its slots look like is its own affair."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["block"] = torch.ones(3, 3)


def test_the_slots_of_a_foreign_optimizer_are_its_own_affair():
    saved = Tuning(lambda p: Blocks(p, 0.01), steps=1)
    tuning = Tuning(lambda p: Blocks(p, 0.01))

    load(store(saved.state), tuning.state)

    assert torch.equal(tuning.opt.state[tuning.model[0].weight]["block"], torch.ones(3, 3))


@pytest.mark.filterwarnings("ignore:Detected call")  # the steps of the optimizer are not the matter here
def test_a_scheduler_of_other_groups_is_left_as_it_is():
    weights = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    one = torch.optim.SGD([{"params": weights}], 0.1)
    two = torch.optim.SGD([{"params": weights[:1]}, {"params": weights[1:]}], 0.1)
    stored = store({"s": torch.optim.lr_scheduler.StepLR(one, 10)})
    schedule = torch.optim.lr_scheduler.StepLR(two, 10)

    problems = problems_of(stored, {"s": schedule})
    plan = load(stored, {"s": schedule}, strict=False)

    assert problems == ("s: base_lrs: the program has 2 groups of parameters, the checkpoint 1",)
    assert plan.skipped == ["s: left as it is: base_lrs: the program has 2 groups of parameters, the checkpoint 1"]
    schedule.step()


def test_an_optimizer_of_another_model_is_refused_before_anything_is_loaded():
    stored = store({"o": torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1)})
    other = torch.optim.SGD(nn.Linear(2, 2, bias=False).parameters(), 0.2)

    with pytest.raises(
        StateMismatchError, match=r"o: param_groups\[0\]: the program has 1 parameters, the checkpoint 2"
    ):
        load(stored, {"o": other})

    assert other.param_groups[0]["lr"] == 0.2


def test_the_moments_of_an_optimizer_that_is_left_alone_stay():
    stored = store(Tuning(OPTIMIZERS["momentum"], layers=1, steps=2).state)
    tuning = Tuning(OPTIMIZERS["momentum"], layers=2, steps=1)
    before = str(tuning.opt.state_dict())

    load(stored, {"opt": tuning.opt}, strict=False)

    assert str(tuning.opt.state_dict()) == before


@pytest.mark.parametrize("name", [name for name in MOMENTS if name != "lbfgs"])  # whose slots hold lists that grow
def test_an_optimizer_that_has_its_slots_keeps_them_and_gets_the_groups_of_the_checkpoint(name):
    saved = Tuning(MOMENTS[name], steps=2)
    stored = store(saved.state)
    tuning = Tuning(MOMENTS[name], outputs=1, steps=3)
    for group in tuning.opt.param_groups:
        group["lr"] = 7.0
    expected = saved.opt.state_dict()

    load(stored, tuning.state)

    found = tuning.opt.state_dict()
    assert found["param_groups"] == expected["param_groups"]
    assert found["state"].keys() == expected["state"].keys()
    for key, slot in expected["state"].items():
        assert slot.keys() == found["state"][key].keys()
        for part, item in slot.items():
            torch.testing.assert_close(found["state"][key][part], item, rtol=0, atol=0)
    saved.step()
    tuning.step()
    for one, other in zip(saved.model.parameters(), tuning.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_slots_that_are_filled_in_place_are_not_made_again():
    stored = store(Tuning(OPTIMIZERS["adam"], steps=2).state)
    tuning = Tuning(OPTIMIZERS["adam"], steps=1)
    slots = list(tuning.opt.state.values())

    load(stored, tuning.state)

    assert all(now is before for now, before in zip(tuning.opt.state.values(), slots, strict=True))
    assert slots[0]["step"].item() == 2


def test_a_hook_of_an_optimizer_sees_all_that_is_loaded():
    stored = store(Tuning(OPTIMIZERS["adam"], steps=2).state)
    tuning = Tuning(OPTIMIZERS["adam"], steps=1)
    seen = []
    tuning.opt.register_load_state_dict_pre_hook(lambda _, state: seen.append(state["state"][0]["step"].item()))

    load(stored, tuning.state)

    assert seen == [2]


def test_moments_of_another_type_than_their_parameter_stay_where_the_program_has_them_so():
    saved = Tuning(OPTIMIZERS["adam"], steps=2)
    tuning = Tuning(OPTIMIZERS["adam"], steps=1)
    for each in (saved, tuning):
        for slot in each.opt.state.values():
            slot["exp_avg"] = slot["exp_avg"].double()

    load(store(saved.state), tuning.state)

    for key, slot in saved.opt.state_dict()["state"].items():
        assert same_bits(tuning.opt.state_dict()["state"][key], slot)
        assert slot["exp_avg"].dtype == torch.float64


def same_bits(one, other):
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def test_moments_of_a_parameter_that_has_another_type_now_are_converted_by_torch():
    saved = Tuning(OPTIMIZERS["adam"], steps=2)
    tuning = Tuning(OPTIMIZERS["adam"])
    tuning.model.double()

    load(store({"opt": saved.opt}), {"opt": tuning.opt})

    assert {slot["exp_avg"].dtype for slot in tuning.opt.state.values()} == {torch.float64}


class Precise(torch.optim.Optimizer):
    """Its moments are in float32, whatever the parameters are."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.01})

    def step(self, closure=None):
        closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                slot = self.state[parameter]
                if not slot:
                    slot["count"] = torch.zeros((), dtype=torch.int64)
                    slot["moment"] = torch.zeros_like(parameter, dtype=torch.float32)
                slot["count"] += 1
                slot["moment"].lerp_(parameter.grad.float(), 0.1)
                parameter.data.sub_((slot["moment"] * group["lr"]).to(parameter.dtype))


class Halved(Tuning):
    """In bfloat16."""

    def __init__(self, make_optimizer, *, steps=0):
        super().__init__(make_optimizer)
        self.model.bfloat16()
        for _ in range(steps):
            self.step()

    def backward(self):
        self.opt.zero_grad()
        loss = (self.model(torch.linspace(-1, 1, 8, dtype=torch.bfloat16).reshape(2, 4)) - 1).square().sum()
        loss.backward()
        return loss


@pytest.mark.parametrize("make", [MOMENTS["nadam"], MOMENTS["asgd"], MOMENTS["adam"], Precise])
@pytest.mark.parametrize("steps", [0, 1], ids=["new", "with slots"])
def test_slots_come_back_in_the_types_they_were_saved_in(make, steps):
    saved = Halved(make, steps=3)
    stored = store(saved.state)
    tuning = Halved(make, steps=steps)

    load(stored, tuning.state)

    slots = saved.opt.state_dict()["state"]
    assert all(same_bits(tuning.opt.state_dict()["state"][key], slot) for key, slot in slots.items())
    for _ in range(3):
        saved.step()
        tuning.step()
    assert same_bits(tuning.model.state_dict(), saved.model.state_dict())


class Remembering(torch.optim.Optimizer):
    """Has lists and dictionaries in its slots."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.01})

    def step(self, closure=None):
        closure()
        for parameter in self.param_groups[0]["params"]:
            slot = self.state[parameter]
            slot.setdefault("gradients", []).append(parameter.grad.float() / 3)
            slot["by_name"] = {"pair": (parameter.grad.double() / 7, 1), "same": parameter.grad.clone()}


@pytest.mark.parametrize("steps", [0, 1], ids=["new", "with slots"])
def test_tensors_in_lists_and_dictionaries_of_slots_come_back_in_the_types_they_were_saved_in(steps):
    saved = Halved(Remembering, steps=3)
    stored = store(saved.state)
    tuning = Halved(Remembering, steps=steps)

    load(stored, tuning.state)

    for slot, own in zip(saved.opt.state.values(), tuning.opt.state.values(), strict=True):
        assert same_bits(dict(enumerate(own["gradients"])), dict(enumerate(slot["gradients"])))
        assert own["by_name"]["pair"][0].dtype == torch.float64
        assert torch.equal(own["by_name"]["pair"][0], slot["by_name"]["pair"][0])
        assert own["by_name"]["pair"][1] == 1
        assert own["by_name"]["same"].dtype == torch.bfloat16


def test_an_optimizer_with_hooks_has_the_last_word_on_its_types():
    stored = store(Halved(Precise, steps=3).state)
    tuning = Halved(Precise)
    tuning.opt.register_load_state_dict_post_hook(lambda _: None)

    load(stored, tuning.state)

    assert {slot["moment"].dtype for slot in tuning.opt.state.values()} == {torch.bfloat16}


def test_counters_of_a_captured_optimizer_go_where_torch_wants_them():
    saved = Tuning(OPTIMIZERS["adam"], steps=2)
    tuning = Tuning(OPTIMIZERS["adam"], steps=1)
    for each in (saved, tuning):
        each.opt.param_groups[0]["capturable"] = True
        for slot in each.opt.state.values():
            slot["step"] = slot["step"].double()

    load(store(saved.state), tuning.state)

    assert {slot["step"].dtype for slot in tuning.opt.state.values()} == {torch.float32}
