"""What is said of things beside the state on which nothing that was compared depends."""

from holdfast.engine.evidence import Bystander
from holdfast.proving.beside import beside_the_state, other_arrays
from tests.proving.traces import generator, trace, work


def _variable(name, digest, kind="numpy.ndarray"):
    return Bystander("variable", kind, name, "train.py", digest, code=name)


def test_objects_with_a_state_of_their_own_are_named():
    things = [
        Bystander("stateful", "torch.optim.lr_scheduler.StepLR", "main.sched", "train.py", "1", code="sched"),
        generator("1"),
        _variable("rate", "1"),
    ]

    found = beside_the_state(trace(work(1, {"w": "=1"}), work(2, {"w": "=2"}, bystanders=things)))

    assert found == [
        "not in the state, though nothing that was compared depends on it: sched (StepLR), rng (Generator)"
    ]
    assert beside_the_state(trace(work(1, {"w": "=1"}))) == []


def test_arrays_that_are_others_in_a_resumed_run_are_named_and_numbers_and_unsteady_ones_are_not():
    def things(digest):
        names = ("ema", "noise", "first")
        return [_variable(name, digest, "builtins.int" if name == "first" else "numpy.ndarray") for name in names]

    reference = trace(work(1, {"w": "=1"}, bystanders=things("1")), work(2, {"w": "=2"}, bystanders=things("2")))
    resumed = trace(work(1, {"w": "=1"}, kind="restored"), work(2, {"w": "=2"}, bystanders=things("x")))

    found = other_arrays(reference, [reference, resumed], {"variable numpy.ndarray train.py:noise"})

    assert len(found) == 1
    assert found[0].endswith("depends on it: ema (ndarray)")
