import random
import sys

import numpy as np
import torch

from holdfast.engine.randomness import current_random, restore_random
from holdfast.format.decode import build
from tests.format.trips import fill, store


def draw():
    return random.random(), random.gauss(0, 1), np.random.normal(), torch.rand(2).tolist()


def stored_random():
    stored = store({}, random=current_random())
    plan = build(stored.random, stored.leaves)
    fill(plan, stored)
    return plan.value()


def test_every_global_generator_goes_on_where_it_was():
    draw()
    value = stored_random()
    expected = draw()
    draw()

    left = restore_random(value)

    assert draw() == expected
    assert left == []


def test_the_current_state_is_a_copy_that_later_draws_do_not_change():
    value = current_random()
    expected = draw()

    restore_random(value)

    assert draw() == expected


def test_a_bit_generator_that_the_program_chose_is_kept():
    chosen, usual = np.random.PCG64(3), np.random.get_bit_generator()
    np.random.set_bit_generator(chosen)
    try:
        value = stored_random()
        expected = np.random.random()

        restore_random(value)

        assert np.random.random() == expected
    finally:
        np.random.set_bit_generator(usual)


def test_what_cannot_be_restored_is_named(monkeypatch):
    value = current_random() | {"torch_cuda": [torch.zeros(1)], "torch_new": 1}

    left = restore_random(value)
    monkeypatch.delitem(sys.modules, "torch")
    without_torch = restore_random(value)

    assert left == ["torch_cuda", "torch_new"]
    assert without_torch == ["torch", "torch_cuda", "torch_new"]
