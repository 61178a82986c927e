"""Plain variables beside the state: which are seen, under which names, and which are not."""

import numpy as np
import torch

from holdfast.engine.coverage_of_state import Registered
from holdfast.engine.traces import leaf_texts
from holdfast.engine.variables import look_at_variables
from holdfast.format.encode import encode_state


def registered(**state):
    return [Registered(state, leaf_texts(encode_state(state)))]


def seen(*, state=None):
    """Those of the calling function, by name."""
    found = look_at_variables(registered(**(state or {})))
    return {one.name: one for one in found}


class Trainer:
    def __init__(self):
        self.velocity = np.ones(3)
        self.mean = 0.5
        self.weights = np.zeros(3)

    def look(self):
        return seen(state={"weights": self.weights})


def test_arrays_numbers_and_small_containers_are_seen_by_their_names():
    velocity, mean, counts, moment = np.ones(4), 0.25, {"a": [1, 2]}, torch.ones(2)

    found = seen()

    prefix = "test_arrays_numbers_and_small_containers_are_seen_by_their_names."
    assert {f"{prefix}{name}" for name in ("velocity", "mean", "counts", "moment")} <= set(found)
    assert found[f"{prefix}mean"].shown == "0.25"
    assert found[f"{prefix}velocity"].type == "numpy.ndarray"
    assert found[f"{prefix}velocity"].kind == "variable"
    del velocity, mean, counts, moment


def test_another_value_is_another_digest_and_the_same_value_the_same():
    def digest_of(velocity):
        return seen()["digest_of.velocity"].digest

    assert digest_of(np.ones(3)) == digest_of(np.ones(3))
    assert digest_of(np.ones(3)) != digest_of(np.ones(3, np.float32))
    assert digest_of(np.ones(3)) != digest_of(np.array([1, 1, 1.5]))


def test_what_is_saved_is_not_a_bystander_and_neither_is_a_view_of_it():
    weights, progress = np.arange(4.0), {"step": 3}
    again = weights[:]

    found = seen(state={"weights": weights, "progress": progress})

    assert not [name for name in found if name.endswith((".weights", ".progress", ".again"))]
    del again


def test_attributes_of_the_programs_own_objects_are_seen():
    found = Trainer().look()

    assert {name for name in found if name.startswith("Trainer.")} == {"Trainer.velocity", "Trainer.mean"}


def test_large_arrays_and_other_objects_are_left_out():
    data, thing, many = np.zeros(1 << 20), object(), list(range(1000))

    found = seen()

    assert not [name for name in found if name.endswith((".data", ".thing", ".many"))]
    del data, thing, many


def test_looking_changes_nothing():
    state = np.random.get_state()[1].copy()
    seen()
    assert np.array_equal(np.random.get_state()[1], state)
