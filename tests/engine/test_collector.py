"""The garbage collector stays out of the way of a save, comes back, and is not needed to free what a save looked at."""

import gc
import weakref

import numpy as np
import pytest

from holdfast.engine.collector import collector_paused
from holdfast.engine.matching import match_state
from holdfast.format.arrays import LeafInfo
from holdfast.format.decode import build
from holdfast.format.encode import encode_state


@pytest.fixture
def without_collector():
    gc.disable()
    yield
    gc.enable()


def test_no_automatic_collection_happens_while_it_is_paused():
    with collector_paused():
        paused = gc.isenabled()

    assert not paused
    assert gc.isenabled()


def test_it_comes_back_after_an_error():
    with pytest.raises(ZeroDivisionError), collector_paused():
        raise ZeroDivisionError

    assert gc.isenabled()


def test_a_program_that_switched_it_off_keeps_it_off(without_collector):
    with collector_paused():
        pass

    assert not gc.isenabled()


def test_encoding_holds_on_to_no_array_once_its_result_is_gone(without_collector):
    array = np.arange(6.0)
    reference = weakref.ref(array)

    encoded = encode_state({"a": array})
    del encoded, array

    assert reference() is None


def test_matching_holds_on_to_no_array_once_its_plan_is_gone(without_collector):
    array = np.arange(6.0)
    reference = weakref.ref(array)
    encoded = encode_state({"a": np.zeros(6)})
    leaves = [LeafInfo(leaf.name, leaf.dtype, leaf.shape) for leaf in encoded.leaves]

    plan = match_state(encoded.tree, leaves, {"a": array})
    del plan, array

    assert reference() is None


def test_building_holds_on_to_no_memory_once_its_plan_is_gone(without_collector):
    encoded = encode_state({"a": np.zeros(6)})
    leaves = [LeafInfo(leaf.name, leaf.dtype, leaf.shape) for leaf in encoded.leaves]

    plan = build(encoded.tree, leaves)
    memory = weakref.ref(plan.destinations[0].carrier.base)
    del plan

    assert memory() is None
