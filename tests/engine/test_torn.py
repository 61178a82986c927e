"""The hammer: 100,000 updates during captures, and every snapshot is of one moment.

An update sets every element of the state to its number. A snapshot with two numbers in it is torn. The same hammer
finds torn snapshots where the gate is left open, so it would find them here.
"""

import mmap
import threading

import numpy as np
import pytest
import torch

from holdfast.core.errors import StateError
from holdfast.engine.gate import Gate
from holdfast.engine.laying import lay_out_leaves
from holdfast.engine.overlap import Overlapped
from holdfast.format.encode import encode_state

_SIZES = [1, 7, 300, 20_000, 60_000, 100_000, 130_000]


class _Numbered(torch.optim.Optimizer):
    """Sets the parameters, and the state that goes with them, to the number of the step."""

    def __init__(self, sizes):
        super().__init__([torch.nn.Parameter(torch.zeros(size)) for size in sizes], {})
        self.number = 0
        self.parameters = self.param_groups[0]["params"]
        for parameter in self.parameters[:3]:
            self.state[parameter]["moment"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure=None):
        self.number += 1
        for parameter in self.parameters:
            parameter.fill_(self.number)
            for moment in self.state[parameter].values():
                moment.fill_(self.number)


class _Snapshots:
    """Takes snapshots into one image, one after the other."""

    def __init__(self, gate, state):
        self.gate, self.state = gate, state
        self.memory = mmap.mmap(-1, lay_out_leaves(encode_state(state)).size_bytes)
        self.taken = self.torn = self.refused = 0

    def begin(self):
        with self.gate.capturing():
            encoded = encode_state(self.state)
            self.layout = lay_out_leaves(encoded)
            deferral = self.gate.deferrable(encoded, self.gate.guarded_tensors())
            assert len(deferral.leaves) == len(encoded.leaves)
            carriers = encoded.carriers
            image = memoryview(self.memory)
            self.copy = Overlapped(self.layout, carriers, deferral.leaves, image, workers=1, changed=deferral.changed)
            self.gate.hold(self.copy)

    def end(self):
        """Look at the snapshot that was begun; the number of its moment."""
        assert self.copy.wait(60)
        values = np.frombuffer(self.memory, np.float32, offset=len(self.layout.header))
        numbers = np.unique(values)
        self.taken += 1
        self.torn += len(numbers) > 1
        self.refused += self.copy.error is not None
        assert self.copy.error is None or isinstance(self.copy.error, StateError)
        return int(numbers[0])


def _count_up(stop, update, updates):
    for _ in range(updates):
        if stop.is_set():
            return
        update()
    stop.set()


def _hammer_from_another_thread(snapshots, update, updates):
    """Updates in a thread, as fast as it can, while snapshots are taken; the numbers of their moments."""
    stop = threading.Event()
    thread = threading.Thread(target=_count_up, args=(stop, update, updates))
    thread.start()
    numbers = []
    try:
        while not stop.is_set():
            snapshots.begin()
            numbers.append(snapshots.end())
    finally:
        stop.set()
        thread.join()
    return numbers


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def optimizer():
    return _Numbered(_SIZES)


@pytest.fixture
def gate(optimizer):
    made = Gate({"optimizer": optimizer, "parameters": optimizer.parameters})
    yield made
    made.close()


@pytest.fixture
def snapshots(gate, optimizer):
    return _Snapshots(gate, {"optimizer": optimizer, "parameters": optimizer.parameters})


@pytest.mark.slow
def test_no_snapshot_is_torn_by_steps_of_another_thread(snapshots, optimizer):
    numbers = _hammer_from_another_thread(snapshots, optimizer.step, 40_000)

    assert optimizer.number == 40_000
    assert len(set(numbers)) > 100
    assert numbers == sorted(numbers)
    assert snapshots.torn == snapshots.refused == 0


@pytest.mark.slow
def test_no_snapshot_is_torn_by_the_steps_that_follow(snapshots, optimizer):
    for number in range(1, 20_001):
        optimizer.step()
        if number % 20 == 0:
            snapshots.begin()
            optimizer.step()  # at once: the copier has hardly begun
            optimizer.number = number
            assert snapshots.end() == number

    assert snapshots.taken == 1000
    assert snapshots.torn == snapshots.refused == 0


@pytest.mark.slow
def test_no_snapshot_is_torn_by_updates_of_numpy_arrays():
    arrays = [np.zeros(size, np.float32) for size in _SIZES]
    gate = Gate(arrays, all_guarded=True)
    snapshots = _Snapshots(gate, {"arrays": arrays})
    updates = iter(range(1, 40_001))

    def update():
        with gate.updating():
            number = next(updates)
            for array in arrays:
                array.fill(number)

    numbers = _hammer_from_another_thread(snapshots, update, 40_000)

    assert arrays[-1][-1] == 40_000
    assert len(set(numbers)) > 100
    assert snapshots.torn == snapshots.refused == 0


def test_without_the_gate_snapshots_are_torn_and_torch_sees_it(snapshots, gate, optimizer):
    gate.close()  # the hooks are gone

    while snapshots.torn < 5 and snapshots.taken < 200_000:
        snapshots.begin()
        optimizer.step()
        seen = snapshots.torn, snapshots.refused
        snapshots.end()
        was_torn, was_refused = snapshots.torn - seen[0], snapshots.refused - seen[1]
        assert was_refused >= was_torn

    assert snapshots.torn == 5


def test_without_the_gate_numpy_snapshots_are_torn():
    arrays = [np.zeros(size, np.float32) for size in _SIZES]
    snapshots = _Snapshots(Gate(arrays, all_guarded=True), {"arrays": arrays})

    while snapshots.torn < 5 and snapshots.taken < 200_000:
        snapshots.begin()
        for array in arrays:
            array.fill(snapshots.taken + 1)
        snapshots.end()

    assert snapshots.torn == 5
