import random
import sys

import numpy as np
import pytest
import torch

import holdfast
from holdfast.engine import randomness
from holdfast.engine.accelerators import devices_in_use
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


@pytest.mark.parametrize(("then", "now"), [(np.random.PCG64, np.random.MT19937), (np.random.MT19937, np.random.PCG64)])
def test_a_program_that_has_another_bit_generator_when_it_restores_goes_on_with_that_of_the_checkpoint(then, now):
    usual = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(then(3))
        value = stored_random()
        expected = np.random.normal(size=3).tolist()
        np.random.set_bit_generator(now(4))

        left = restore_random(value)

        assert left == []
        assert np.random.normal(size=3).tolist() == expected
    finally:
        np.random.set_bit_generator(usual)


def test_a_bit_generator_that_numpy_does_not_know_is_left_out_and_named_once(monkeypatch, caplog):
    monkeypatch.setattr(randomness, "_named", set())
    monkeypatch.delattr(np.random, "MT19937")

    assert "numpy" not in current_random()
    assert "numpy" not in current_random()

    assert len(caplog.messages) == 1
    assert "the random state of numpy is not saved" in caplog.text


def test_what_cannot_be_restored_is_named(monkeypatch):
    value = current_random() | {"torch_cuda": [torch.zeros(1)], "torch_new": 1}

    left = restore_random(value)
    monkeypatch.delitem(sys.modules, "torch")
    without_torch = restore_random(value)

    assert left == ["torch_cuda", "torch_new"]
    assert without_torch == ["torch", "torch_cuda", "torch_new"]


class StandIn:
    """Like torch's module for a type of accelerator, with generators of the CPU. No such device is needed."""

    def __init__(self, devices: int = 2, *, initialised: bool = True) -> None:
        self.generators = [torch.Generator().manual_seed(index) for index in range(devices)]
        self.initialised = initialised

    def is_available(self) -> bool:
        return bool(self.generators)

    def is_initialized(self) -> bool:
        return self.initialised

    def device_count(self) -> int:
        return len(self.generators)

    def get_rng_state(self, device: int) -> torch.Tensor:
        return self.generators[device].get_state()

    def set_rng_state(self, state: torch.Tensor, device: int) -> None:
        self.generators[device].set_state(state)

    def draw(self) -> list[float]:
        return [torch.rand(1, generator=generator).item() for generator in self.generators]


@pytest.mark.parametrize("name", ["cuda", "xpu", "privateuseone"])
def test_the_generators_of_every_device_of_an_accelerator_go_on_where_they_were(name, monkeypatch):
    device = StandIn()
    monkeypatch.setattr(torch, name, device, raising=False)
    device.draw()
    value = stored_random()
    expected = device.draw()

    left = restore_random(value)

    assert device.draw() == expected
    assert left == []


def test_a_backend_that_does_not_say_whether_it_is_in_use_is_saved(monkeypatch):
    class Terse(StandIn):
        is_initialized = None  # type: ignore[assignment]

    monkeypatch.setattr(torch, "privateuseone", Terse(), raising=False)

    assert "torch_privateuseone" in current_random()


def test_an_accelerator_that_is_not_in_use_is_left_alone(monkeypatch):
    monkeypatch.setattr(torch, "xpu", StandIn(initialised=False))

    assert set(current_random()) == {"python", "numpy", "torch"}


def test_of_more_devices_than_there_are_those_that_are_here_go_on_and_the_others_are_named(monkeypatch):
    before, now = StandIn(devices=2), StandIn(devices=1)
    monkeypatch.setattr(torch, "xpu", before)
    before.draw()
    value = stored_random()
    expected = before.draw()
    monkeypatch.setattr(torch, "xpu", now)

    left = restore_random(value)

    assert left == ["torch_xpu[1]"]
    assert now.draw() == expected[:1]


def test_a_restore_says_what_of_the_random_state_stays_behind(tmp_path, monkeypatch, caplog):
    state = {"w": np.zeros(3)}
    monkeypatch.setattr(torch, "xpu", StandIn(devices=2))
    with holdfast.Checkpointer(tmp_path, state, background="off") as ckpt:
        ckpt.save(step=1)
    monkeypatch.setattr(torch, "xpu", StandIn(devices=1))
    caplog.clear()

    with holdfast.Checkpointer(tmp_path, state, background="off") as ckpt:
        restored = ckpt.restore()

    assert restored.skipped == ["the random state of torch_xpu[1]: not restored"]
    assert [text for text in caplog.messages if "random" in text] == [
        "the random state of torch_xpu[1] is in the checkpoint, but cannot be restored here"
    ]


def test_a_restore_without_the_random_state_says_nothing_of_it(tmp_path, monkeypatch, caplog):
    state = {"w": np.zeros(3)}
    monkeypatch.setattr(torch, "xpu", StandIn(devices=2))
    with holdfast.Checkpointer(tmp_path, state, background="off") as ckpt:
        ckpt.save(step=1)
    monkeypatch.setattr(torch, "xpu", StandIn(devices=0))

    with holdfast.Checkpointer(tmp_path, state, background="off", random=False) as ckpt:
        restored = ckpt.restore()

    assert restored.skipped == []
    assert "random state" not in caplog.text


@pytest.mark.parametrize("name", ["torch_nn", "torch_os", "torch_cuda.random", "torch_accelerator", "cuda", ""])
def test_a_name_in_a_checkpoint_reaches_nothing_but_accelerators(name):
    assert restore_random({name: [torch.zeros(1)]}) == [name]


def test_a_state_that_is_no_list_is_not_restored(monkeypatch):
    monkeypatch.setattr(torch, "xpu", StandIn())

    assert restore_random({"torch_xpu": 1}) == ["torch_xpu"]


def raises(*_: object) -> None:
    raise RuntimeError("the device is lost")


@pytest.mark.parametrize("fault", [{"device_count": None}, {"device_count": raises}, {"get_rng_state": raises}])
def test_an_accelerator_that_cannot_be_asked_is_left_out_with_a_warning(fault, monkeypatch, caplog):
    monkeypatch.setattr(randomness, "_named", set())
    monkeypatch.setattr(torch, "xpu", type("Lacking", (StandIn,), {n: staticmethod(f) for n, f in fault.items()})())

    assert set(current_random()) == {"python", "numpy", "torch"}

    assert "the random state of torch_xpu is not saved" in caplog.text


@pytest.mark.parametrize("fault", [{"device_count": None}, {"set_rng_state": None}, {"set_rng_state": raises}])
def test_an_accelerator_that_cannot_be_set_is_named_and_the_others_are_restored(fault, monkeypatch, caplog):
    monkeypatch.setattr(torch, "xpu", StandIn())
    value = dict(sorted(current_random().items(), reverse=True))
    expected = draw()
    monkeypatch.setattr(torch, "xpu", type("Lacking", (StandIn,), {n: staticmethod(f) for n, f in fault.items()})())

    left = restore_random(value)

    assert left == ["torch_xpu"]
    assert draw() == expected
    assert "the random state of torch_xpu is not restored" in caplog.text


def test_an_accelerator_that_cannot_say_whether_it_is_there_is_not(monkeypatch):
    monkeypatch.setattr(torch, "xpu", type("Silent", (StandIn,), {"is_available": staticmethod(raises)})())

    assert "xpu" not in devices_in_use()
    assert restore_random({"torch_xpu": [torch.zeros(1)]}) == ["torch_xpu"]


def test_a_torch_that_cannot_say_which_accelerator_it_has_has_none_but_the_known_ones(monkeypatch):
    monkeypatch.setattr(torch, "xpu", StandIn())
    monkeypatch.setattr(torch.accelerator, "current_accelerator", raises)

    assert set(devices_in_use()) == {"xpu"}


def test_one_that_cannot_say_whether_it_is_in_use_is_taken_to_be(monkeypatch):
    monkeypatch.setattr(torch, "xpu", type("Silent", (StandIn,), {"is_initialized": staticmethod(raises)})())

    assert "torch_xpu" in current_random()
