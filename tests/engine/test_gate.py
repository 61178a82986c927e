"""The gate: what is deferrable, what waits for what, and that nothing waits for ever."""

import mmap
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from holdfast.core.errors import SaveFailedError, StateError
from holdfast.engine.gate import Gate
from holdfast.engine.laying import lay_out_leaves
from holdfast.engine.overlap import Overlapped
from holdfast.format.encode import encode_state
from tests.background.rig import until


@pytest.fixture
def model():
    module = torch.nn.Sequential(torch.nn.Linear(300, 700), torch.nn.BatchNorm1d(700))
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    return module


@pytest.fixture
def optimizer(model):
    made = torch.optim.Adam(model.parameters())
    made.step()
    return made


@pytest.fixture
def open_gate():
    gates = []

    def build(state, **options):
        gates.append(Gate(state, **options))
        return gates[-1]

    yield build
    for gate in gates:
        gate.close()


class _Capture:
    """An overlapped capture whose copier waits until it is told to go on."""

    def __init__(self, gate, state):
        self.may_go_on = threading.Event()
        with gate.capturing():
            encoded = encode_state(state)
            self.layout = lay_out_leaves(encoded)
            self.names = [leaf.name for leaf in encoded.leaves]
            deferral = gate.deferrable(encoded, gate.guarded_tensors())
            self.deferred = {self.names[index] for index in deferral.leaves}
            self.memory = mmap.mmap(-1, self.layout.size_bytes)
            self.copy = Overlapped(
                self.layout,
                encoded.carriers,
                deferral.leaves,
                memoryview(self.memory),
                workers=1,
                changed=deferral.changed,
                before=self.may_go_on.wait,
            )
            gate.hold(self.copy)

    def finish(self):
        self.may_go_on.set()
        assert self.copy.wait(60)
        return self.copy.error

    def bytes_of(self, name):
        place = self.layout.places[self.names.index(name)]
        return self.memory[place.begin : place.end]


def _in_thread(work):
    """Run it in a thread that says when it is over."""
    over = threading.Event()

    def run():
        try:
            work()
        finally:
            over.set()

    threading.Thread(target=run, daemon=True).start()
    return over


def test_parameters_and_moments_are_deferred_and_nothing_else(model, optimizer, open_gate):
    state = {"model": model, "optimizer": optimizer, "loose": torch.ones(9), "numpy": np.ones(9)}

    capture = _Capture(open_gate(state), state)

    assert capture.finish() is None
    at_once = set(capture.names) - capture.deferred
    assert at_once == {"model.1.running_mean", "model.1.running_var", "model.1.num_batches_tracked", "loose", "numpy"}
    assert "model.0.weight" in capture.deferred
    assert "optimizer.state.0.exp_avg" in {name.replace("[0]", ".0", 1) for name in capture.deferred}


def test_a_buffer_in_the_same_storage_as_a_parameter_is_not_deferred(open_gate):
    storage = torch.zeros(100, 4)
    weight = torch.nn.Parameter(storage[:50])
    grid = torch.zeros(50, 4)
    columns = torch.nn.Parameter(grid[:, ::2])
    optimizer = torch.optim.SGD([weight, columns])
    state = {
        "weight": weight,
        "buffer": storage[50:],
        "columns": columns,
        "between": grid[:10, 1::2],
        "optimizer": optimizer,
    }

    capture = _Capture(open_gate(state), state)

    assert capture.finish() is None
    assert capture.deferred == {"weight"}  # between the elements of `columns` is memory of others


def test_an_array_that_is_only_partly_a_parameter_is_not_deferred(open_gate):
    storage = torch.zeros(100)
    weight = torch.nn.Parameter(storage[:50])
    state = {"all": storage, "weight": weight, "optimizer": torch.optim.SGD([weight])}

    assert _Capture(open_gate(state), state).deferred == set()


def test_parameters_in_one_flat_buffer_are_deferred_together(open_gate):
    flat = torch.arange(60.0)
    parts = [torch.nn.Parameter(flat[:20]), torch.nn.Parameter(flat[20:60])]
    state = {"flat": flat, "parts": parts, "optimizer": torch.optim.SGD(parts)}

    assert _Capture(open_gate(state), state).deferred == {"flat"}


def test_a_step_waits_for_the_copy_and_the_snapshot_is_of_before_it(model, optimizer, open_gate):
    state = {"model": model, "optimizer": optimizer}
    gate = open_gate(state)
    before = model[0].weight.detach().numpy().tobytes()
    capture = _Capture(gate, state)

    stepped = _in_thread(optimizer.step)
    until(lambda: gate._updates)  # it has come to the gate
    assert not stepped.wait(0.05)
    assert capture.finish() is None
    assert stepped.wait(60)

    assert capture.bytes_of("model.0.weight") == before
    assert model[0].weight.detach().numpy().tobytes() != before
    assert gate.waited_s > 0


def test_two_threads_that_step_both_wait_for_the_copy(model, open_gate):
    optimizers = [torch.optim.SGD(model[index].parameters(), lr=1.0) for index in (0, 1)]
    state = {"model": model, "optimizers": optimizers}
    capture = _Capture(open_gate(state), state)

    stepped = [_in_thread(optimizer.step) for optimizer in optimizers]
    assert not any(event.wait(0.05) for event in stepped)
    assert capture.finish() is None

    assert all(event.wait(60) for event in stepped)


def test_updating_waits_and_guards_numpy_arrays_if_the_program_promises_so(open_gate):
    array = np.zeros(1000)
    state = {"array": array}
    gate = open_gate(state, all_guarded=True)
    capture = _Capture(gate, state)
    assert capture.deferred == {"array"}

    def update():
        with gate.updating():
            array[:] = 1

    updated = _in_thread(update)
    assert not updated.wait(0.05)
    assert capture.finish() is None
    assert updated.wait(60)

    assert capture.bytes_of("array") == bytes(8000)
    assert array[0] == 1


def test_jax_arrays_are_deferred_and_survive_donation(open_gate):
    array = jnp.arange(1 << 18, dtype=jnp.float32)
    viewed = jnp.arange(5)
    names_of_ours = {"kind": "jax", "leaf": [0]}
    state = {"params": {"w": array}, "viewed": viewed, "view": np.asarray(viewed), "other": names_of_ours}
    before = np.asarray(array).tobytes()
    capture = _Capture(open_gate(state), state)
    assert capture.deferred == {"params.w"}

    step = jax.jit(lambda value: value + 1, donate_argnums=0)
    step(array).block_until_ready()

    assert capture.finish() is None
    assert capture.bytes_of("params.w") == before


def test_an_in_place_write_that_nothing_held_back_is_seen_and_the_leaf_named(model, optimizer, open_gate):
    state = {"model": model, "optimizer": optimizer}
    capture = _Capture(open_gate(state), state)

    with torch.no_grad():
        model[0].bias.clamp_(max=0.1)

    error = capture.finish()
    assert isinstance(error, StateError)
    assert "'model.0.bias'" in str(error)
    assert "weight" not in str(error)


def test_a_step_of_an_optimizer_that_is_not_in_the_state_is_seen(model, optimizer, open_gate):
    state = {"model": model, "optimizer": optimizer}
    other = torch.optim.SGD(model.parameters(), lr=1.0)
    capture = _Capture(open_gate(state), state)

    other.step()

    assert isinstance(capture.finish(), StateError)


def test_a_forward_and_backward_pass_do_not_spoil_a_capture(model, optimizer, open_gate):
    state = {"model": model, "optimizer": optimizer}
    gate = open_gate(state)
    capture = _Capture(gate, state)

    optimizer.zero_grad()
    model(torch.randn(5, 300)).sum().backward()

    assert capture.finish() is None
    assert gate.waited_s == 0


def test_a_capture_waits_for_the_update_of_another_thread(open_gate):
    array = np.zeros(10)
    gate = open_gate({"array": array}, all_guarded=True)
    is_updating, may_end = threading.Event(), threading.Event()

    def update():
        with gate.updating():
            is_updating.set()
            may_end.wait(60)
            array[:] = 1

    updated = _in_thread(update)
    assert is_updating.wait(60)
    found = []
    captured = _in_thread(lambda: found.append(_Capture(gate, {"array": array})))
    assert not captured.wait(0.05)
    may_end.set()
    assert captured.wait(60)
    assert updated.wait(60)

    assert found[0].finish() is None
    assert found[0].bytes_of("array") == np.ones(10).tobytes()


def test_a_capture_in_the_middle_of_an_update_of_its_own_thread_defers_nothing(model, optimizer, open_gate):
    state = {"model": model, "optimizer": optimizer}
    gate = open_gate(state)

    with gate.updating():
        assert _Capture(gate, state).deferred == set()
    assert "model.0.weight" in _Capture(gate, state).deferred


def test_a_step_that_raised_does_not_count_as_under_way(open_gate):
    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            raise ValueError("no")

    optimizer = Failing([torch.nn.Parameter(torch.ones(3))])
    state = {"optimizer": optimizer, "weight": optimizer.param_groups[0]["params"][0]}
    gate = open_gate(state)

    def fail():
        with gate.updating(), pytest.raises(ValueError, match="no"):
            optimizer.step()

    is_alive = threading.Event()
    failed = _in_thread(lambda: (fail(), is_alive.wait(60)))
    fail()
    with pytest.raises(ValueError, match="no"):
        optimizer.step()
    capture = _Capture(gate, state)
    is_alive.set()

    assert capture.deferred == {"weight"}
    assert capture.finish() is None
    assert failed.wait(60)


def test_a_step_inside_a_step_is_one_update(model, open_gate):
    class Twice(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            return super().step(closure)

    optimizer = Twice(model.parameters(), lr=1.0)
    state = {"model": model, "optimizer": optimizer}
    gate = open_gate(state)

    optimizer.step()

    assert _Capture(gate, state).finish() is None
    assert gate._updates == {}


def test_after_the_deadline_the_training_goes_on_and_the_snapshot_fails(model, optimizer, open_gate):
    state = {"model": model, "optimizer": optimizer}
    gate = open_gate(state, deadline_s=0.05)
    capture = _Capture(gate, state)
    before = model[0].weight.detach().clone()

    optimizer.step()  # the copier hangs
    optimizer.step()

    assert not torch.equal(before, model[0].weight)
    error = capture.finish()
    assert isinstance(error, SaveFailedError)
    assert "0.05 s" in str(error)


def test_a_copier_that_dies_lets_the_training_go_on(model, optimizer, open_gate):
    state = {"model": model, "optimizer": optimizer}
    gate = open_gate(state)
    capture = _Capture(gate, state)
    capture.copy._lock.acquire()  # so that the copier ends only after the step has begun to wait
    try:
        capture.copy.xxh3 = None
        capture.may_go_on.set()
        stepped = _in_thread(optimizer.step)
        assert not stepped.wait(0.05)
    finally:
        capture.copy._lock.release()

    assert stepped.wait(60)
    assert isinstance(capture.copy.error, SaveFailedError)


def test_a_capture_that_takes_for_ever_does_not_hold_the_training_and_fails(open_gate):
    gate = open_gate({}, deadline_s=0.05)

    def update():
        with gate.updating():
            pass

    with pytest.raises(StateError, match="an update went on"):
        with gate.capturing():
            assert _in_thread(update).wait(60)
    with gate.capturing():
        pass


def test_an_update_that_never_ends_makes_the_capture_fail(open_gate):
    gate = open_gate({}, deadline_s=0.05)
    is_updating, may_end = threading.Event(), threading.Event()

    def update():
        with gate.updating():
            is_updating.set()
            may_end.wait(60)

    updated = _in_thread(update)
    assert is_updating.wait(60)
    with pytest.raises(StateError, match="has not ended"):
        with gate.capturing():
            pass
    may_end.set()
    assert updated.wait(60)
    with gate.capturing():
        pass


def test_an_interrupted_wait_leaves_the_gate_open(model, optimizer, open_gate):
    state = {"model": model, "optimizer": optimizer}
    gate = open_gate(state)
    capture = _Capture(gate, state)

    def interrupted(timeout_s=None):
        raise KeyboardInterrupt

    capture.copy.wait = interrupted
    for update in (optimizer.step, gate.updating().__enter__):
        with pytest.raises(KeyboardInterrupt):
            update()

    assert gate._updates == {}
    del capture.copy.wait
    assert capture.finish() is None


def test_closing_removes_the_hooks(model, optimizer):
    hooks = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    gate = Gate({"model": model, "optimizer": optimizer})
    assert all(hooks)

    gate.close()
    gate.close()

    assert not any(hooks)


_FORK = """
import os, signal, threading, warnings
import numpy as np
from holdfast.engine.gate import Gate
from holdfast.engine.overlap import Overlapped
from holdfast.engine.laying import lay_out_leaves
from holdfast.format.encode import encode_state

warnings.simplefilter("ignore")
state = {"array": np.zeros(10)}
gate, may_go_on = Gate(state, all_guarded=True), threading.Event()
with gate.capturing():
    encoded = encode_state(state)
    layout = lay_out_leaves(encoded)
    image = memoryview(bytearray(layout.size_bytes))
    copy = Overlapped(layout, encoded.carriers, {0}, image, workers=1, before=may_go_on.wait)
    gate.hold(copy)
is_inside, may_leave = threading.Event(), threading.Event()
def stay_inside():
    with gate._changed:
        is_inside.set()
        may_leave.wait(60)
threading.Thread(target=stay_inside).start()
is_inside.wait(60)
child = os.fork()
if child == 0:
    signal.alarm(20)  # no process stays behind where it does wait
    assert copy.wait(600) is False
    with gate.updating(), gate.capturing():
        os._exit(0)
assert os.waitpid(child, 0) == (child, 0)
may_leave.set()
may_go_on.set()
assert copy.wait(60) and copy.error is None
"""


def test_a_forked_child_is_not_held_back_by_a_copier_that_it_does_not_have():
    subprocess.run([sys.executable, "-c", _FORK], check=True, timeout=30)


def test_a_gate_needs_neither_torch_nor_jax():
    script = """
import sys
import numpy as np
from holdfast.engine.gate import Gate
from holdfast.format.encode import encode_state
state = {"array": np.zeros(10), "list": [np.ones(3)]}
gate = Gate(state)
with gate.capturing():
    assert gate.deferrable(encode_state(state), gate.guarded_tensors()).leaves == frozenset()
assert not {"torch", "jax"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
