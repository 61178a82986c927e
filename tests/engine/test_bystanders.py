"""What has a state and is not saved is found, and called by the name that the program has for it.

The cases are programs of their own: in a test process, every other test and the test runner would be found, too.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_HEAD = """
import gc, itertools, json, random, weakref
import numpy as np
from holdfast.engine.bystanders import Bystanders, Registered
from holdfast.engine.traces import leaf_texts
from holdfast.engine.variables import look_at_variables
from holdfast.format.encode import encode_state

results = {}

class Holding:
    def __init__(self):
        self.parts = {"noise": [random.Random(1)]}

    def codes(self, draw):
        return sorted(one.code for one in look({"weights": np.zeros(3)}))

def look(state, bystanders=None, *, afresh=True, with_random=True):
    registered = [Registered(state, leaf_texts(encode_state(state)))]
    return (bystanders or Bystanders()).look(registered, afresh=afresh, with_random=with_random)

def names(state, **options):
    return sorted([one.kind, one.type, one.name] for one in look(state, **options))

def case(function):
    gc.collect()
    results[function.__name__] = function()
"""

_NUMPY = (
    _HEAD
    + """
@case
def nothing_besides_the_state():
    rng = np.random.default_rng(1)
    return names({"rng": rng, "weights": np.zeros(3), "more": {"python": random.Random(1)}})

rng, amount = np.random.default_rng(1), 3

@case
def a_generator_of_the_module():
    return names({"weights": np.zeros(3)})

@case
def the_main_module_under_its_second_name():
    import sys
    sys.modules["__mp_main__"] = sys.modules["__main__"]
    try:
        variables = [one.name for one in look_at_variables([]) if one.name.endswith("amount")]
        return variables, names({"weights": np.zeros(3)})
    finally:
        del sys.modules["__mp_main__"]

del rng

@case
def code_as_the_program_writes_it():
    rng = np.random.default_rng(1)
    def draw():
        return rng.random()
    return Holding().codes(draw)

@case
def generators_of_a_function():
    rng = np.random.default_rng(1)
    old = np.random.RandomState(1)
    python = random.Random(1)
    return names({"weights": np.zeros(3)})

class Trainer:
    def __init__(self):
        self.rng = np.random.default_rng(1)
        self.parts = {"noise": [np.random.RandomState(2)]}

    def fit(self):
        return names({"weights": np.zeros(3)})

@case
def a_generator_of_an_object():
    return Trainer().fit()

@case
def a_generator_of_an_object_that_a_function_has():
    trainer = Trainer()
    trainer.parts = None
    return names({"weights": np.zeros(3)})

class Config:
    rng = np.random.default_rng(1)

@case
def a_generator_of_a_class():
    return names({"weights": np.zeros(3)})

del Config

@case
def a_generator_in_a_closure():
    def outer():
        rng = random.Random(1)
        def draw():
            return rng.random()
        return draw
    draw = outer()
    return names({"weights": np.zeros(3)})

class Slotted:
    __slots__ = ("rng",)

@case
def a_generator_in_a_slot():
    slotted = Slotted()
    slotted.rng = random.Random(1)
    return names({"weights": np.zeros(3)})

@case
def a_twin_of_one_that_is_saved():
    rng, twin = np.random.default_rng(1), np.random.default_rng(1)
    return names({"rng": rng})

@case
def states_that_are_saved_as_values():
    rng, old, python = np.random.default_rng(1), np.random.RandomState(1), random.Random(1)
    return names({"kept": {"a": rng.bit_generator.state, "b": old.get_state(), "c": python.getstate()}})

class Holder:
    def __init__(self, saves):
        self.rng = np.random.default_rng(1)
        self.saves = saves

    def state_dict(self):
        return {"rng": self.rng.bit_generator.state} if self.saves else {"step": 3}

    def load_state_dict(self, state):
        pass

@case
def an_object_that_saves_its_generator():
    holder = Holder(saves=True)
    return names({"holder": holder})

@case
def an_object_that_forgets_its_generator():
    holder = Holder(saves=False)
    return names({"holder": holder})

@case
def an_object_that_was_not_registered():
    holder = Holder(saves=True)
    return [name for name in names({"weights": np.zeros(3)}) if name[0] == "stateful"]

def batches(count):
    for number in range(count):
        yield number

@case
def iterators():
    kept = batches(5)
    next(kept)
    rest = iter([1, 2, 3])
    numbers = itertools.count(3)
    for number in batches(5):
        return names({"weights": np.zeros(3)})

class Counting:
    def __init__(self):
        self.position = 4

    def __next__(self):
        return self.position

@case
def an_iterator_of_a_class():
    counting = Counting()
    return [(one.name, one.shown) for one in look({"weights": np.zeros(3)})]

@case
def digests_follow_the_state():
    rng, numbers, kept = np.random.default_rng(1), iter([1, 2, 3]), batches(5)
    next(kept)
    bystanders, state = Bystanders(), {"weights": np.zeros(3)}
    first = look(state, bystanders)
    second = look(state, bystanders, afresh=False)
    rng.random(); next(numbers); next(kept)
    third = look(state, bystanders, afresh=False)
    changed = sum(a.digest != b.digest for a, b in zip(first, third))
    return [len(first), first == second, changed, all(one.digest for one in first)]

@case
def equal_states_have_equal_digests():
    found = []
    for _ in range(2):
        rng, old, python = np.random.default_rng(1), np.random.RandomState(1), random.Random(1)
        found.append(sorted((one.name, one.digest) for one in look({"weights": np.zeros(3)})))
    return found[0] == found[1]

@case
def global_generators_that_are_not_saved():
    return names({"weights": np.zeros(3)}, with_random=False)

@case
def nothing_is_kept_alive():
    class Kept:
        pass
    def program():
        thing, python, rng = Kept(), random.Random(1), np.random.default_rng(1)
        def generate():
            local = thing
            yield 1
        generated = generate()
        next(generated)
        bystanders = Bystanders()
        look({"weights": np.zeros(3)}, bystanders)
        references = [weakref.ref(thing), weakref.ref(python), weakref.ref(generated)]
        del thing, python, generated, generate
        gone = [reference() is None for reference in references]
        left = [one.name for one in look({"weights": np.zeros(3)}, bystanders, afresh=False)]
        del rng
        return gone, left, [one.name for one in look({"weights": np.zeros(3)}, bystanders, afresh=False)]
    return program()

class Refusing:
    touched = []

    def __getattribute__(self, name):
        Refusing.touched.append(name)
        raise RuntimeError(name)

    @property
    def __class__(self):
        Refusing.touched.append("__class__")
        raise RuntimeError("__class__")

class Meta(type):
    def __eq__(cls, other):
        raise RuntimeError("eq")
    __hash__ = None

class Odd(metaclass=Meta):
    pass

class Raising:
    def state_dict(self):
        raise RuntimeError("no")

    def load_state_dict(self, state):
        pass

@case
def strange_objects():
    refusing, odd, raising, rng = Refusing(), Odd(), Raising(), np.random.default_rng(1)
    return [names({"weights": np.zeros(3)}), Refusing.touched]

@case
def nothing_is_drawn():
    rng = np.random.default_rng(1)
    before = random.getstate(), np.random.get_state()[1].tolist(), rng.bit_generator.state
    look({"weights": np.zeros(3)})
    return before == (random.getstate(), np.random.get_state()[1].tolist(), rng.bit_generator.state)

@case
def variables_of_a_frame_stay_its_own():
    def inner():
        known = locals()
        value = 1
        look({"weights": np.zeros(3)})
        return value, isinstance(known, dict)
    return inner()

print(json.dumps(results))
"""
)

_TORCH = (
    _HEAD
    + """
import torch
from torch.utils.data import DataLoader, RandomSampler
from holdfast.data.torch_loader import resumable_loader

class Noisy(torch.utils.data.Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(3)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index + self.rng.random()

@case
def a_generator_of_the_dataset_of_a_resumable_loader():
    data = resumable_loader(DataLoader(Noisy(), 2, shuffle=True), seed=1)
    next(iter(data))
    return names({"data": data})

def training():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return model, optimizer

@case
def a_well_made_training():
    model, optimizer = training()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    loss = torch.nn.CrossEntropyLoss()
    data = resumable_loader(DataLoader(list(range(20)), batch_size=2, shuffle=True), seed=1)
    for batch in data:
        return names({"model": model, "optimizer": optimizer, "scheduler": scheduler, "data": data})

@case
def a_generator_of_a_function():
    draws = torch.Generator().manual_seed(1)
    return names({"weights": torch.zeros(3)})

@case
def a_generator_of_a_sampler():
    sampler = RandomSampler(list(range(5)), generator=torch.Generator())
    return names({"weights": torch.zeros(3)})

@case
def a_generator_that_is_saved_as_a_tensor():
    draws = torch.Generator().manual_seed(1)
    return names({"draws": {"state": draws.get_state()}})

@case
def parts_of_a_training():
    model, optimizer = training()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    return names({"model": model})

@case
def a_scheduler_only():
    model, optimizer = training()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    return names({"model": model, "optimizer": optimizer})

@case
def an_optimizer_whose_scheduler_is_saved():
    model, optimizer = training()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    return names({"model": model, "scheduler": scheduler})

class Average:
    def __init__(self, model):
        self.model = model
        self.shadow = {name: value.clone() * 0.5 for name, value in model.state_dict().items()}

    def state_dict(self):
        return self.shadow

    def load_state_dict(self, state):
        self.shadow = state

@case
def an_average_of_the_weights():
    model, optimizer = training()
    average = Average(model)
    return names({"model": model, "optimizer": optimizer})

@case
def a_second_model():
    import copy
    model, optimizer = training()
    second = copy.deepcopy(model)
    return names({"model": model, "optimizer": optimizer})

@case
def a_wrapper_of_the_model():
    class Wrapper(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module
    model, optimizer = training()
    wrapper = Wrapper(model)
    return names({"model": model, "optimizer": optimizer})

class Trainer:
    def __init__(self):
        self.model, self.optimizer = training()

    def state_dict(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state):
        pass

@case
def a_trainer_that_saves_its_parts():
    trainer = Trainer()
    return names({"trainer": trainer})

@case
def two_optimizers_that_are_alike():
    weight = torch.nn.Parameter(torch.zeros(2))
    one, two = torch.optim.SGD([weight], lr=0.1), torch.optim.SGD([weight], lr=0.1)
    return names({"weight": weight, "optimizer": one})

@case
def loaders():
    loader = DataLoader(list(range(20)), batch_size=2)
    found = []
    for batch in loader:
        found.append([(one.kind, one.name, one.shown) for one in look({"weights": torch.zeros(3)})])
        if len(found) == 2:
            return found

@case
def a_loader_with_workers():
    loader = DataLoader(list(range(20)), batch_size=2, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    found = [(one.kind, one.name, one.shown) for one in look({"weights": torch.zeros(3)})]
    del iterator
    return found

@case
def the_next_iterator_of_a_loader():
    loader, bystanders = DataLoader(list(range(4)), batch_size=2), Bystanders()
    found = []
    for epoch in range(2):
        for batch in loader:
            seen = look({"weights": torch.zeros(3)}, bystanders, afresh=not found)
            found.append([(one.name, one.shown) for one in seen])
    return found

@case
def nothing_is_drawn():
    draws = torch.Generator().manual_seed(1)
    before = torch.get_rng_state(), draws.get_state()
    look({"weights": torch.zeros(3)})
    return torch.equal(before[0], torch.get_rng_state()) and torch.equal(before[1], draws.get_state())

@case
def a_dropped_generator():
    draws = torch.Generator()
    bystanders = Bystanders()
    look({"weights": torch.zeros(3)}, bystanders)
    reference = weakref.ref(draws)
    del draws
    return reference() is None

print(json.dumps(results))
"""
)


def _run(path: Path, text: str) -> dict[str, Any]:
    path.write_text(text)
    # Where coverage is measured, this is what runs the modules in question.
    data = os.environ.get("COVERAGE_OF_CHILDREN")
    measured = ["-m", "coverage", "run", "--branch", "--source=holdfast", "-p", f"--data-file={data}"] if data else []
    ran = subprocess.run([sys.executable, *measured, str(path)], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return _run(tmp_path_factory.mktemp("plain") / "program.py", _NUMPY)


@pytest.fixture(scope="module")
def torch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("torch")
    return _run(tmp_path_factory.mktemp("torch") / "program.py", _TORCH)


_RNG, _OLD, _PYTHON = "numpy.random.Generator", "numpy.random.RandomState", "random.Random"


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("nothing_besides_the_state", []),
        ("a_generator_of_the_module", [["generator", _RNG, "rng"]]),
        (
            "generators_of_a_function",
            [
                ["generator", _RNG, "generators_of_a_function.rng"],
                ["generator", _OLD, "generators_of_a_function.old"],
                ["generator", _PYTHON, "generators_of_a_function.python"],
            ],
        ),
        (
            "a_generator_of_an_object",
            [["generator", _RNG, "Trainer.rng"], ["generator", _OLD, "Trainer.parts['noise'][0]"]],
        ),
        (
            "a_generator_of_an_object_that_a_function_has",
            [["generator", _RNG, "a_generator_of_an_object_that_a_function_has.trainer.rng"]],
        ),
        ("a_generator_of_a_class", [["generator", _RNG, "Config.rng"]]),
        ("a_generator_in_a_closure", [["generator", _PYTHON, "a_generator_in_a_closure.draw.rng"]]),
        ("a_generator_in_a_slot", [["generator", _PYTHON, "a_generator_in_a_slot.slotted.rng"]]),
        ("a_twin_of_one_that_is_saved", [["generator", _RNG, "a_twin_of_one_that_is_saved.twin"]]),
        ("states_that_are_saved_as_values", []),
        ("an_object_that_saves_its_generator", []),
        (
            "an_object_that_forgets_its_generator",
            [["generator", _RNG, "an_object_that_forgets_its_generator.holder.rng"]],
        ),
        (
            "an_object_that_was_not_registered",
            [["stateful", "__main__.Holder", "an_object_that_was_not_registered.holder"]],
        ),
        (
            "iterators",
            [
                ["iterator", "builtins.generator", "batches()"],
                ["iterator", "builtins.generator", "iterators.kept"],
                ["iterator", "builtins.list_iterator", "iterators.rest"],
                ["iterator", "itertools.count", "iterators.numbers"],
            ],
        ),
        ("an_iterator_of_a_class", [["an_iterator_of_a_class.counting", "position=4"]]),
        ("digests_follow_the_state", [3, True, 3, True]),
        ("equal_states_have_equal_digests", True),
        (
            "global_generators_that_are_not_saved",
            [["generator", _OLD, "numpy.random"], ["generator", _PYTHON, "random"]],
        ),
        ("nothing_is_kept_alive", [[True, True, True], ["program.rng"], []]),
        (
            "strange_objects",
            [
                [
                    ["generator", _RNG, "strange_objects.rng"],
                    ["stateful", "__main__.Raising", "strange_objects.raising"],
                ],
                [],
            ],
        ),
        ("nothing_is_drawn", True),
        (
            "the_main_module_under_its_second_name",
            [["amount"], [["generator", _RNG, "rng"]]],
        ),
        ("code_as_the_program_writes_it", ["rng", "self.parts['noise'][0]"]),
        ("variables_of_a_frame_stay_its_own", [1, True]),
    ],
)
def test_what_is_not_saved_is_found_by_its_name(plain: dict[str, Any], case: str, expected: object) -> None:
    assert plain[case] == _in_order(expected)


_TORCH_GENERATOR = "torch.Generator"
_ADAM = "torch.optim.adam.Adam"
_STEP_LR = "torch.optim.lr_scheduler.StepLR"


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("a_well_made_training", []),
        ("a_generator_of_a_function", [["generator", _TORCH_GENERATOR, "a_generator_of_a_function.draws"]]),
        ("a_generator_of_a_sampler", [["generator", _TORCH_GENERATOR, "a_generator_of_a_sampler.sampler.generator"]]),
        ("a_generator_that_is_saved_as_a_tensor", []),
        (
            "parts_of_a_training",
            [
                ["optimizer", _ADAM, "parts_of_a_training.optimizer"],
                ["stateful", _STEP_LR, "parts_of_a_training.scheduler"],
                ["stateful", "torch.amp.grad_scaler.GradScaler", "parts_of_a_training.scaler"],
            ],
        ),
        ("a_scheduler_only", [["stateful", _STEP_LR, "a_scheduler_only.scheduler"]]),
        (
            "an_optimizer_whose_scheduler_is_saved",
            [["optimizer", _ADAM, "an_optimizer_whose_scheduler_is_saved.optimizer"]],
        ),
        ("an_average_of_the_weights", [["stateful", "__main__.Average", "an_average_of_the_weights.average"]]),
        ("a_second_model", [["stateful", "torch.nn.modules.container.Sequential", "a_second_model.second"]]),
        ("a_wrapper_of_the_model", []),
        ("a_trainer_that_saves_its_parts", []),
        (
            "two_optimizers_that_are_alike",
            [["optimizer", "torch.optim.sgd.SGD", "two_optimizers_that_are_alike.two"]],
        ),
        (
            "loaders",
            [
                [["loader", "loaders.loader", "1 batch handed out"]],
                [["loader", "loaders.loader", "2 batches handed out"]],
            ],
        ),
        (
            "the_next_iterator_of_a_loader",
            [[["the_next_iterator_of_a_loader.loader", f"{n} batch{'es' * (n > 1)} handed out"]] for n in (1, 2, 1, 2)],
        ),
        ("a_loader_with_workers", [["loader", "a_loader_with_workers.loader", "1 batch handed out"]]),
        (
            "a_generator_of_the_dataset_of_a_resumable_loader",
            [["generator", _RNG, "a_generator_of_the_dataset_of_a_resumable_loader.data….dataset.rng"]],
        ),
        ("nothing_is_drawn", True),
        ("a_dropped_generator", True),
    ],
)
def test_what_is_not_saved_of_a_torch_training_is_found_by_its_name(
    torch: dict[str, Any], case: str, expected: object
) -> None:
    assert torch[case] == _in_order(expected)


def _in_order(expected: object) -> object:
    is_names = isinstance(expected, list) and all(isinstance(one, list) and len(one) == 3 for one in expected)
    return sorted(expected) if is_names and isinstance(expected, list) else expected
