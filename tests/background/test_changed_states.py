"""A checkpoint has the state of its moment, whatever the program did to its objects since the one before.

A save compares the state with what the last one found, and encodes only what is new. Whether it does so rightly is seen
beside a Checkpointer that has saved nothing before, and copies at once: both must write the same bytes, or refuse.
"""

import collections
import copy
import math
import random
from contextlib import ExitStack

import numpy as np
import pytest

import holdfast
from holdfast.core.errors import StateError
from holdfast.format.manifest import decode_manifest

torch = pytest.importorskip("torch")


class Tied(torch.nn.Module):
    """Parameters of its own, tied ones, buffers of both kinds, and parts that are not there."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.second = torch.nn.Linear(6, 4)
        self.again = torch.nn.Linear(4, 6)
        self.again.weight = self.first.weight
        self.scale = torch.nn.Parameter(torch.ones(6))
        self.register_parameter("nothing", None)
        self.register_buffer("kept", torch.arange(3.0))
        self.register_buffer("passing", torch.arange(5.0), persistent=False)
        self.twins = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)])
        self.absent = None

    def forward(self, x):
        y = self.second(self.norm(self.first(x) * self.scale)) + self.again(x)[:, :4]
        return self.twins[1](self.twins[0](y[:, :3]))


class Training:
    """All that a training has; some mutations need to be taken back when the test is over."""

    def __init__(self, undo):
        torch.manual_seed(0)
        self.undo = undo
        self.model = Tied()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.counts = {"one": 1, "zero": 0.0, "nested": {"of": [1, 2, (3, 4)]}, 5: "five"}
        self.held = {
            "tensors": {"a": torch.ones(3), "b": torch.arange(4), "c": torch.zeros(2, dtype=torch.complex64)},
            "slots": {1: {"w": torch.ones(2), "v": torch.ones(3)}, 2: {"u": torch.zeros(2)}},
        }
        self.average = [copy.deepcopy(self.model)]
        self.numbers = np.arange(5.0)
        self.step()

    def step(self):
        self.optimizer.zero_grad()
        self.model(torch.randn(7, 4)).square().sum().backward()
        self.optimizer.step()

    def state(self):
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "counts": self.counts,
            "held": self.held,
            "average": self.average,
            "numbers": self.numbers,
        }

    @property
    def tensors(self):
        return self.held["tensors"]

    @property
    def slots(self):
        return self.held["slots"]

    def slot(self):
        return self.optimizer.state[self.model.second.bias]

    def patch(self, owner, name, value):
        before = vars(owner).get(name, self)
        setattr(owner, name, value)
        self.undo.callback(lambda: delattr(owner, name) if before is self else setattr(owner, name, before))


@pytest.fixture
def directory(root):
    """In memory: there are hundreds of checkpoints, and none needs to survive."""
    made = root / "runs"
    made.mkdir()
    return made


MUTATIONS = {}


def mutation(function):
    MUTATIONS[function.__name__] = function
    return function


@mutation
def nothing(t):
    pass


@mutation
def a_step(t):
    t.step()


@mutation
def a_step_of_the_scheduler(t):
    t.scheduler.step()


@mutation
def a_parameter_replaced(t):
    t.model.second.bias = torch.nn.Parameter(torch.full((4,), 5.0))


@mutation
def a_parameter_replaced_by_one_at_the_same_address(t):
    t.model.second.bias = torch.nn.Parameter(t.model.second.bias.data)


@mutation
def a_parameter_replaced_by_one_that_takes_its_address(t):
    shape = t.model.second.bias.shape
    t.model.second.bias = None
    t.model.second.bias = torch.nn.Parameter(torch.full(shape, 6.0))


@mutation
def a_parameter_becomes_a_buffer(t):
    tensor = t.model.second.bias.detach()
    del t.model.second.bias
    t.model.second.register_buffer("bias", tensor)


@mutation
def a_parameter_without_gradient(t):
    t.model.first.bias.requires_grad_(False)


@mutation
def a_moment_with_gradient(t):
    t.slot()["exp_avg"].requires_grad_(True)


@mutation
def other_memory_for_a_parameter(t):
    t.model.first.weight.data = torch.ones(6, 4)


@mutation
def other_type_at_the_same_address(t):
    t.tensors["a"] = t.tensors["a"].view(torch.int32)


@mutation
def other_shape_at_the_same_address(t):
    t.model.first.weight.data = t.model.first.weight.data.view(4, 6)


@mutation
def other_strides_at_the_same_address(t):
    t.model.twins[0].weight.data = t.model.twins[0].weight.data.T


@mutation
def part_of_itself_at_the_same_address(t):
    t.tensors["a"] = t.tensors["a"][:2]


@mutation
def memory_swapped_between_parameters(t):
    one, other = t.model.twins[0].weight, t.model.twins[1].weight
    one.data, other.data = other.data, one.data


@mutation
def tensors_swapped(t):
    torch.utils.swap_tensors(t.model.twins[0].weight, t.model.twins[1].weight)


@mutation
def modules_swapped(t):
    t.model.first, t.model.again = t.model.again, t.model.first


@mutation
def twins_swapped(t):
    t.model.twins[0], t.model.twins[1] = t.model.twins[1], t.model.twins[0]


@mutation
def twins_made_one(t):
    t.model.twins[1] = t.model.twins[0]


@mutation
def weights_untied(t):
    t.model.again.weight = torch.nn.Parameter(t.model.first.weight.detach().clone())


@mutation
def weights_tied(t):
    t.model.twins[1].weight = t.model.twins[0].weight


@mutation
def weights_tied_as_part(t):
    t.model.twins[1].weight.data = t.model.first.weight.data[:3, :3]


@mutation
def a_model_tied_to_its_average(t):
    t.average[0].second.weight = t.model.second.weight


@mutation
def a_layer_of_another_type(t):
    t.model.second.double()


@mutation
def all_of_another_type(t):
    t.model.to(torch.bfloat16)


@mutation
def columns_first(t):
    t.model.first.weight.data = t.model.first.weight.data.T.contiguous().T


@mutation
def a_buffer_replaced(t):
    t.model.kept = torch.arange(3.0) * 2


@mutation
def a_buffer_resized(t):
    t.model.kept.resize_(2)


@mutation
def a_buffer_of_another_part_of_its_storage(t):
    t.model.kept.set_(t.model.kept.untyped_storage(), 1, (2,))


@mutation
def a_buffer_grown(t):
    t.model.kept.set_(torch.arange(30.0))


@mutation
def a_storage_resized(t):
    t.model.passing.untyped_storage().resize_(64)
    t.model.kept.set_(t.model.passing.untyped_storage(), 0, (4,)).fill_(1)


@mutation
def a_buffer_gone(t):
    t.model.kept = None


@mutation
def a_buffer_not_persistent_any_more(t):
    t.model._non_persistent_buffers_set.add("kept")


@mutation
def a_buffer_persistent_now(t):
    t.model._non_persistent_buffers_set.discard("passing")


@mutation
def a_new_buffer(t):
    t.model.norm.register_buffer("more", torch.ones(2))


@mutation
def a_new_parameter(t):
    t.model.nothing = torch.nn.Parameter(torch.ones(2))


@mutation
def a_new_module(t):
    t.model.absent_no_more = torch.nn.Linear(2, 2)


@mutation
def a_new_module_without_parameters(t):
    t.model.activation = torch.nn.ReLU()


@mutation
def a_module_gone(t):
    del t.model.norm


@mutation
def a_module_set_to_none(t):
    t.model.norm = None


@mutation
def a_module_renamed(t):
    t.model._modules = {("third" if name == "second" else name): part for name, part in t.model._modules.items()}


@mutation
def modules_in_another_order(t):
    t.model._modules = dict(reversed(t.model._modules.items()))


@mutation
def a_module_named_by_a_number(t):
    t.model.twins._modules = {int(name): part for name, part in t.model.twins._modules.items()}


@mutation
def a_module_of_another_class(t):
    t.model.norm.__class__ = torch.nn.BatchNorm2d


@mutation
def a_module_replaced_by_an_equal_one_of_another_class(t):
    t.model.norm = torch.nn.BatchNorm3d(6)


@mutation
def the_model_of_another_class(t):
    class Other(Tied):
        pass

    t.model.__class__ = Other


@mutation
def another_model_in_the_list(t):
    t.average[0] = copy.deepcopy(t.average[0])


@mutation
def one_more_model_in_the_list(t):
    t.average.append(torch.nn.Linear(2, 2))


@mutation
def the_same_model_twice(t):
    t.average[0] = t.model


@mutation
def a_dictionary_in_place_of_a_model(t):
    t.average[0] = t.average[0].state_dict()


@mutation
def a_plain_dictionary_in_place_of_a_model(t):
    t.average[0] = dict(t.average[0].state_dict())


@mutation
def a_version_of_a_module(t):
    t.model.second._version = 7


@mutation
def a_version_that_is_equal(t):
    t.model.second._version = True


@mutation
def a_version_of_a_class(t):
    t.patch(torch.nn.Linear, "_version", 3)


@mutation
def a_hook_that_adds(t):
    t.model.second._register_state_dict_hook(lambda module, found, prefix, _: found.update({f"{prefix}x": 1}))


@mutation
def a_hook_that_replaces(t):
    t.model.register_state_dict_post_hook(lambda module, found, prefix, _: found.update({"scale": found["scale"] * 2}))


@mutation
def a_hook_that_removes(t):
    t.model.register_state_dict_post_hook(lambda module, found, prefix, _: found.pop("scale") and None)


@mutation
def a_hook_that_says_more(t):
    t.model.second.register_state_dict_post_hook(lambda module, found, prefix, local: local.update(more=1))


@mutation
def a_hook_that_says_more_of_all(t):
    t.model.register_state_dict_post_hook(lambda module, found, prefix, local: setattr(found, "_more", 1))


@mutation
def a_hook_before(t):
    t.model.second.register_state_dict_pre_hook(lambda module, prefix, keep: module.bias.data.fill_(9))


@mutation
def a_state_dict_of_one_object(t):
    t.model.second.state_dict = lambda *args, destination, prefix, keep_vars: destination.update({f"{prefix}own": 2})


@mutation
def a_state_dict_of_the_model(t):
    t.model.state_dict = lambda: {"own": 3}


@mutation
def own_way_of_saving_of_one_object(t):
    t.model.second._save_to_state_dict = lambda destination, prefix, keep_vars: None


@mutation
def own_way_of_saving_of_a_class(t):
    t.patch(torch.nn.Linear, "_save_to_state_dict", lambda self, destination, prefix, keep_vars: None)


@mutation
def extra_state_of_a_class(t):
    t.patch(torch.nn.Linear, "get_extra_state", lambda self: {"calls": 4})


@mutation
def state_dict_of_all_modules_patched(t):
    own = torch.nn.Module.state_dict

    def state_dict(self, *args, **options):
        found = own(self, *args, **options)
        found["patched"] = torch.ones(1)
        return found

    t.patch(torch.nn.Module, "state_dict", state_dict)


@mutation
def parameters_kept_elsewhere_by_a_class(t):
    t.patch(torch.nn.Linear, "_parameters", property(lambda self: {"elsewhere": torch.nn.Parameter(torch.ones(2))}))


@mutation
def a_parametrized_weight(t):
    class Double(torch.nn.Module):
        def forward(self, x):
            return 2 * x

    torch.nn.utils.parametrize.register_parametrization(t.model.second, "weight", Double())


@mutation
def a_parameter_of_a_subclass(t):
    class Own(torch.nn.Parameter):
        pass

    t.model.scale = Own(torch.ones(6))


@mutation
def a_number_in_place_of_a_parameter(t):
    t.model._parameters["scale"] = 1.0


@mutation
def a_model_that_contains_itself(t):
    t.model.twins._modules["0"] = t.model


@mutation
def a_sparse_tensor(t):
    t.model.kept = torch.ones(3).to_sparse()


@mutation
def a_sparse_moment(t):
    t.slot()["exp_avg"] = t.slot()["exp_avg"].to_sparse()


@mutation
def a_tensor_without_memory(t):
    t.model.kept = torch.empty(3, device="meta")


@mutation
def an_empty_tensor(t):
    t.tensors["a"] = torch.ones(0)


@mutation
def a_conjugate(t):
    t.tensors["c"] = t.tensors["c"].conj()


@mutation
def a_negative(t):
    t.tensors["c"] = t.tensors["c"].conj().imag


@mutation
def a_repeated_element(t):
    t.tensors["a"] = t.tensors["a"][:1].expand(3)


@mutation
def a_tensor_tied_to_a_moment(t):
    t.tensors["a"] = t.slot()["exp_avg"]


@mutation
def an_array_in_place_of_a_tensor(t):
    t.tensors["a"] = t.tensors["a"].numpy()


@mutation
def a_parameter_in_place_of_a_tensor(t):
    t.tensors["a"] = torch.nn.Parameter(t.tensors["a"])


@mutation
def a_parameter_without_gradient_in_place_of_a_tensor(t):
    t.tensors["a"] = torch.nn.Parameter(t.tensors["a"], requires_grad=False)


@mutation
def a_number_in_place_of_a_tensor(t):
    t.tensors["a"] = 1


@mutation
def keys_in_another_order(t):
    t.tensors["a"] = t.tensors.pop("a")


@mutation
def an_ordered_dictionary(t):
    t.held["tensors"] = collections.OrderedDict(t.tensors)


@mutation
def a_key_that_is_equal(t):
    t.held["slots"] = {True: t.slots[1], 2: t.slots[2]}


@mutation
def a_key_that_is_equal_as_a_float(t):
    t.held["slots"] = {1.0: t.slots[1], 2: t.slots[2]}


@mutation
def an_inner_key_that_is_equal(t):
    t.slots[2] = {np.str_("u"): t.slots[2]["u"]}


@mutation
def a_slot_moved_to_another_key(t):
    t.slots[2] = {"v": t.slots[1].pop("v"), **t.slots[2]}


@mutation
def an_empty_slot(t):
    t.slots[3] = {}


@mutation
def true_for_one(t):
    t.counts["one"] = True


@mutation
def a_float_for_one(t):
    t.counts["one"] = 1.0


@mutation
def minus_zero(t):
    t.counts["zero"] = -0.0


@mutation
def no_number(t):
    t.counts["zero"] = math.nan


@mutation
def a_tuple_for_a_list(t):
    t.counts["nested"]["of"] = (1, 2, (3, 4))


@mutation
def a_plain_key_that_is_equal(t):
    del t.counts[5]
    t.counts[5.0] = "five"


@mutation
def a_deeper_value(t):
    t.counts["nested"]["of"][2] = (3, True)


@mutation
def a_learning_rate(t):
    t.optimizer.param_groups[0]["lr"] = 1


@mutation
def a_learning_rate_that_is_true(t):
    t.optimizer.param_groups[0]["lr"] = True


@mutation
def a_learning_rate_that_is_a_tensor(t):
    t.optimizer.param_groups[0]["lr"] = torch.tensor(0.1)


@mutation
def no_learning_rate(t):
    t.optimizer.param_groups[0]["lr"] = math.nan


@mutation
def betas_in_a_list(t):
    t.optimizer.param_groups[0]["betas"] = list(t.optimizer.param_groups[0]["betas"])


@mutation
def a_new_group(t):
    t.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))], "lr": 0.5})


@mutation
def parameters_in_another_order(t):
    t.optimizer.param_groups[0]["params"].reverse()


@mutation
def a_parameter_swapped_in_the_optimizer(t):
    t.optimizer.param_groups[0]["params"][0] = torch.nn.Parameter(torch.ones(2))


@mutation
def moments_forgotten(t):
    t.optimizer.state.clear()


@mutation
def moments_of_one_forgotten(t):
    del t.optimizer.state[t.model.second.bias]


@mutation
def a_moment_forgotten(t):
    del t.slot()["exp_avg_sq"]


@mutation
def a_moment_replaced(t):
    t.slot()["exp_avg"] = torch.full((4,), 8.0)


@mutation
def moments_swapped(t):
    slot = t.slot()
    slot["exp_avg"], slot["exp_avg_sq"] = slot["exp_avg_sq"], slot["exp_avg"]


@mutation
def moments_in_another_order(t):
    slot = t.slot()
    slot["exp_avg"] = slot.pop("exp_avg")


@mutation
def a_count_of_steps_as_a_number(t):
    t.slot()["step"] = 1


@mutation
def a_moment_tied_to_its_parameter(t):
    t.slot()["exp_avg"] = t.model.second.bias.data


@mutation
def a_hook_of_the_optimizer(t):
    t.optimizer.register_state_dict_post_hook(lambda optimizer, found: {**found, "more": 1})


@mutation
def a_hook_of_the_optimizer_that_replaces(t):
    def double(optimizer, found):
        found["state"][0] = {name: tensor * 2 for name, tensor in found["state"][0].items()}

    t.optimizer.register_state_dict_post_hook(double)


@mutation
def an_array_changed(t):
    t.numbers += 1


@mutation
def random_numbers_drawn(t):
    random.random()
    np.random.random()
    torch.rand(1)


def content(run):
    """All that the newest checkpoint says of the state, and the bytes of its shard."""
    manifest = max(run.glob("*/manifest.json"))
    found = decode_manifest(manifest.read_bytes(), where="here", checkpoint_id=manifest.parent.name, run_id=None)
    body = found.body
    return repr((body.tree, body.random, body.leaves)), manifest.with_name("rank-00000.safetensors").read_bytes()


def saved(ckpt, run, step):
    """The same; or what it was refused for."""
    try:
        pending = ckpt.save(step=step)
    except StateError as error:
        return error.message
    assert pending.wait(60) is not None
    assert pending.error is None
    return content(run)


def saved_by_one_that_knows_nothing(state, run):
    with holdfast.Checkpointer(run, state, background="thread", capture="now") as ckpt:
        return saved(ckpt, run, 0)


def check_saves(training, directory, *mutations):
    state, run = training.state(), directory / "run"
    with holdfast.Checkpointer(run, state, background="thread", capture="overlapped") as ckpt:
        first = saved(ckpt, run, 0)
        assert saved(ckpt, run, 1) == first == saved_by_one_that_knows_nothing(state, directory / "fresh0")
        for number, mutate in enumerate(mutations, 1):
            with ckpt.updating():
                mutate(training)

            expected = saved_by_one_that_knows_nothing(state, directory / f"fresh{number}")

            assert saved(ckpt, run, 2 * number) == expected
            assert saved(ckpt, run, 2 * number + 1) == expected


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_checkpoint_after_any_change_is_that_of_one_who_looks_for_the_first_time(directory, name):
    with ExitStack() as undo:
        training = Training(undo)

        check_saves(training, directory, MUTATIONS[name])


@pytest.mark.slow
def test_a_checkpoint_after_any_two_changes_is_that_of_one_who_looks_for_the_first_time(directory):
    dice = random.Random(7)
    for number in range(60):
        chosen = dice.sample(sorted(MUTATIONS), 2)
        with ExitStack() as undo:
            training = Training(undo)
            possible = [_if_possible(MUTATIONS[name]) for name in chosen]

            (directory / str(number)).mkdir()
            check_saves(training, directory / str(number), *possible, _if_possible(MUTATIONS["a_step"]))


def _if_possible(mutate):
    """Of two changes the second may need what the first has taken away."""

    def attempt(training):
        try:
            mutate(training)
        except (RuntimeError, AttributeError, KeyError, TypeError, ValueError, IndexError):
            pass

    return attempt


def test_what_is_restored_after_changes_is_what_was_there(directory):
    with ExitStack() as undo:
        training = Training(undo)
        run = directory / "run"
        with holdfast.Checkpointer(run, training.state(), background="thread", capture="overlapped") as ckpt:
            for step, name in enumerate(["nothing", "a_step", "weights_tied", "a_learning_rate", "a_step"]):
                with ckpt.updating():
                    MUTATIONS[name](training)
                ckpt.save(step=step).wait(60)
        fresh = Training(undo)
        weights_tied(fresh)

        with holdfast.Checkpointer(run, fresh.state(), background="off") as ckpt:
            ckpt.restore()

        for mine, theirs in ((fresh, training),):
            for name, tensor in theirs.model.state_dict().items():
                assert torch.equal(mine.model.state_dict()[name], tensor)
            assert torch.equal(mine.slot()["exp_avg"], theirs.slot()["exp_avg"])
            assert type(mine.optimizer.param_groups[0]["lr"]) is type(theirs.optimizer.param_groups[0]["lr"])
