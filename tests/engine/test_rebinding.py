"""Names that stood for something of the state: which are seen to stand for something else, and which are not."""

import numpy as np
import torch

from holdfast.engine.rebinding import Rebinding

other = np.zeros(3)


def seen(rebinding, state):
    """By the name that the program writes: the path in the state."""
    return {one.code: one.shown for one in rebinding.look(state)}


class Trainer:
    def __init__(self):
        self.ema = torch.zeros(3)
        self.net = Net()

    def begin(self):
        self.rebinding = Rebinding()
        self.rebinding.remember({"ema": self.ema, "w": self.net.w})

    def look(self, ema, w):
        return seen(self.rebinding, {"ema": ema, "w": w})


class Net:
    def __init__(self):
        self.w = np.zeros(3)


def test_a_name_that_stands_for_another_array_is_seen_with_the_path_of_the_one_that_is_saved():
    w, params, rebinding = np.zeros(3), {"bias": np.ones(2)}, Rebinding()
    bias, state = params["bias"], {"w": w, "params": params}
    rebinding.remember(state)
    assert seen(rebinding, state) == {}

    w = w - 1
    bias = bias + 1

    assert seen(rebinding, state) == {"w": "w", "bias": "params.bias"}


def test_dicts_lists_and_entries_of_the_dict_that_was_given_are_seen():
    best, history, given, rebinding = {"loss": 1.0}, [1], {"v": np.zeros(2)}, Rebinding()
    state = {"best": best, "history": history, "v": given["v"]}
    rebinding.remember(state)

    best, history = {"loss": 0.5}, [*history, 2]
    given["v"] = given["v"] + 1

    assert seen(rebinding, state) == {"best": "best", "history": "history", "given['v']": "v"}


def test_attributes_of_the_programs_own_objects_are_seen():
    trainer = Trainer()
    ema, w = trainer.ema, trainer.net.w
    trainer.begin()

    trainer.ema = 0.9 * trainer.ema
    trainer.net.w = trainer.net.w + 1

    found = trainer.look(ema, w)
    assert {"self.ema": "ema", "self.net.w": "w"}.items() <= found.items()


def test_changes_in_place_and_the_same_object_again_are_none():
    w, progress, rebinding = np.zeros(3), {"step": 0}, Rebinding()
    state = {"w": w, "progress": progress}
    rebinding.remember(state)

    w += 1
    w[:] = 2
    w = state["w"]
    progress["step"] = 1

    assert seen(rebinding, state) == {}


def test_names_that_are_new_gone_or_stand_for_another_kind_of_thing_are_none():
    w, again, gone, rebinding = np.zeros(3), np.zeros(3), np.zeros(3), Rebinding()
    state = {"w": w, "again": again, "gone": gone}
    rebinding.remember(state)

    for part in state.values():  # stands for one after the other
        assert part is not None
    part = other
    again = "a text"
    del gone

    assert seen(rebinding, state) == {}
    del part, again


def test_a_state_that_has_the_new_object_is_none():
    w, inner, rebinding = np.zeros(3), {"v": np.zeros(3)}, Rebinding()
    v, state = inner["v"], {"w": w, "inner": inner}
    rebinding.remember(state)

    w = w + 1
    state["w"] = w
    v = v + 1
    inner["v"] = v

    assert seen(rebinding, state) == {}


def test_the_same_attribute_of_another_object_is_another_name():
    first, second = Trainer(), Trainer()
    ema, w = first.ema, first.net.w
    first.begin()

    second.rebinding = first.rebinding

    assert second.look(ema, w) == {}
