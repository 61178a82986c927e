"""Any tree of plain values and arrays comes back; any damage to its nodes is an error of our own."""

import collections
import copy
import datetime as dt
import math
import pathlib
import resource
import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.errors import FormatError, HoldfastError
from holdfast.engine.matching import match_state
from holdfast.format.decode import build
from tests.format.test_decode import BERLIN, alike
from tests.format.trips import fill, round_trip, store

ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.floats(),
    st.complex_numbers(),
    st.text(st.characters()),
    st.text(st.characters(categories=["Cs", "Lu"])),
    st.binary(),
    st.dates(),
    st.datetimes(timezones=st.sampled_from([None, dt.UTC, BERLIN])),
    st.timedeltas(),
    st.builds(np.float32, st.floats(width=32)),
    st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 5)),
    st.times(timezones=st.sampled_from([None, dt.UTC])),
    st.binary(min_size=4097, max_size=4100),
    st.builds(slice, st.integers(), st.none() | st.integers(), st.none() | st.integers()),
    st.builds(pathlib.PurePosixPath, st.text(st.characters(exclude_characters="\0"), max_size=5)),
    st.builds(torch.Size, st.lists(st.integers(-(2**63), 2**63 - 1), max_size=70)),
    st.sampled_from(
        [torch.float32, torch.device("cuda:1"), np.dtype("<M8[ns]"), np.dtype([("a", [("b", "S3", (2,))])])]
    ),
)
KEYS = st.recursive(
    st.one_of(st.text(), st.integers(), st.booleans(), st.none(), st.binary(), st.floats(allow_nan=False)),
    lambda inner: st.one_of(st.tuples(inner, inner), st.frozensets(inner, max_size=3)),
    max_leaves=4,
)
TREES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
        st.dictionaries(st.text(), inner, max_size=4).map(collections.OrderedDict),
        st.builds(collections.deque, st.lists(inner, max_size=4), st.sampled_from([None, 7, 2**62, sys.maxsize])),
        st.sets(KEYS, max_size=4),
    ),
    max_leaves=20,
)


@given(TREES)
@settings(max_examples=200, deadline=None)
def test_any_tree_of_plain_values_comes_back_as_it_was(tree):
    assert alike(round_trip(tree), tree)


@st.composite
def array_lists(draw):
    """Arrays, some of them views of the same buffers in every way that slicing, turning and reshaping can make."""
    bases = [
        np.arange(draw(st.integers(0, 40)), dtype=draw(st.sampled_from(["i2", "f8", "u1", "c16"]))) for _ in range(2)
    ]
    arrays = []
    for _ in range(draw(st.integers(1, 6))):
        array = draw(st.sampled_from(bases))
        start, stop = draw(st.integers(-40, 40)), draw(st.integers(-40, 40))
        array = array[start : stop : draw(st.sampled_from([1, 1, 2, -1, -3]))]
        if array.size and array.size % 2 == 0 and draw(st.booleans()):
            array = array.reshape(2, -1)
            array = array.T if draw(st.booleans()) else array
        if array.ndim == 1 and draw(st.booleans()):
            array = np.broadcast_to(array, (2, *array.shape))
        arrays.append(array)
    return arrays


@given(array_lists())
@settings(max_examples=200, deadline=None)
def test_arrays_that_share_memory_in_any_way_come_back_with_their_values(arrays):
    loaded = round_trip(arrays)

    for before, after in zip(arrays, loaded, strict=True):
        assert (before.dtype, before.shape) == (after.dtype, after.shape)
        assert np.array_equal(before, after)


@given(array_lists())
@settings(max_examples=100, deadline=None)
def test_arrays_that_share_memory_in_any_way_load_into_separate_ones(arrays):
    stored = store({"v": arrays})
    state = {"v": [np.empty(array.shape, array.dtype, order="F") for array in arrays]}

    plan = match_state(stored.tree, stored.leaves, state)
    fill(plan, stored)
    plan.apply()

    assert all(np.array_equal(before, after) for before, after in zip(arrays, state["v"], strict=True))


CUTS = st.lists(
    st.tuples(
        st.sampled_from(["f8", "i2"]),
        st.integers(0, 150),
        st.integers(1, 12),
        st.sampled_from([1, 1, 2, 3, 12, 13, -1, -5]),
        st.booleans(),
    ),
    min_size=1,
    max_size=24,
)


def cut(buffer, cuts):
    """Parts of the buffer, some of them turned."""
    arrays = []
    for dtype, start, length, step, is_turned in cuts:
        part = buffer.view(dtype)[start:][: length * abs(step)][::step]
        arrays.append(part.reshape(2, -1).T if is_turned and len(part) % 2 == 0 else part)
    return arrays


@given(CUTS)
@settings(max_examples=150, deadline=None)
def test_arrays_that_share_memory_load_into_ones_that_share_it_in_the_same_way(cuts):
    buffer = np.arange(400.0)
    saved, loaded = cut(buffer, cuts), cut(np.zeros(400), cuts)
    stored = store({"v": saved})

    plan = match_state(stored.tree, stored.leaves, {"v": loaded})
    fill(plan, stored)
    plan.apply()

    assert all(np.array_equal(before, after) for before, after in zip(saved, loaded, strict=True))


@given(CUTS, st.data())
@settings(max_examples=150, deadline=None)
def test_arrays_that_share_memory_otherwise_than_saved_are_left_alone_or_right(cuts, data):
    moves = data.draw(st.lists(st.sampled_from([0, 0, 1, 4]), min_size=len(cuts), max_size=len(cuts)))
    moved = [(dtype, start + move, *rest) for (dtype, start, *rest), move in zip(cuts, moves, strict=True)]
    saved, loaded = cut(np.arange(400.0), cuts), cut(np.zeros(400), moved)
    stored = store({"v": saved})

    plan = match_state(stored.tree, stored.leaves, {"v": loaded}, strict=False)
    fill(plan, stored)
    plan.apply()

    left = {problem.partition(":")[0] for problem in plan.skipped}
    for index, (before, after) in enumerate(zip(saved, loaded, strict=True)):
        assert f"v[{index}]" in left or np.array_equal(before, after)


def rich_state():
    array = np.arange(12.0).reshape(3, 4)
    return {
        "a": {
            "w": array,
            "row": array[1],
            "f": np.asfortranarray(np.ones((2, 3))),
            "wide": np.broadcast_to(array[0], (5, 4)),
        },
        "b": [1, 2**70, -0.0, math.nan, "x", b"y", (1, {2: None}), {3}, collections.deque([1], 2), range(3), slice(1)],
        "c": np.random.default_rng(1),
        "d": {"long": b"z" * 5000, "o": np.array([1, None], object), "t": dt.datetime(2026, 1, 1, tzinfo=BERLIN)},
        "e": [np.float32(1), np.dtype("f4"), np.zeros(2, [("a", "i4"), ("b", "f8", (2,))])],
    }


RICH = store(rich_state())
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    st.sampled_from([2**31, 2**40, 2**62, 2**63, 2**64, -(2**63), 10**30]),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["float64", "<U9", "|O", "struct", "sub", "dict", "array", "tuple", "pickle", "state", "MT19937"]),
    st.lists(st.integers(-2, 2**40), max_size=4),
    st.dictionaries(st.sampled_from(["kind", "leaf", "of", "items", "view"]), st.integers(-1, 3), max_size=3),
)


def places(node, path=()):
    yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, item in items:
        if not (isinstance(key, int) and key > 20):  # the words of a generator's table are all alike
            yield from places(item, (*path, key))


PLACES = list(places(RICH.tree))[1:]


@st.composite
def damaged_trees(draw):
    tree = copy.deepcopy(RICH.tree)
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(PLACES))
        node = tree
        try:
            for key in way:
                node = node[key]
            how = draw(st.sampled_from(["replace", "remove", "copy"]))
            if how == "remove":
                del node[last]
            else:
                node[last] = draw(JUNK) if how == "replace" else copy.deepcopy(_find(draw(st.sampled_from(PLACES))))
        except (KeyError, IndexError, TypeError):  # an earlier change took the place away
            continue
    return tree


def _find(path):
    node = RICH.tree
    for key in path:
        node = node[key]
    return node


@pytest.fixture
def little_memory():
    """A limit on what may be allocated, well above what the tests use themselves."""
    with open("/proc/self/statm") as statm:
        used_bytes = int(statm.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + (512 << 20), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@given(damaged_trees())
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_damaged_tree_is_built_or_refused_with_an_error_of_our_own(little_memory, tree):
    try:
        plan = build(tree, RICH.leaves)
        fill(plan, RICH)
        plan.value()
    except HoldfastError:
        pass


@given(damaged_trees())
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_damaged_tree_is_matched_or_refused_with_an_error_of_our_own(little_memory, tree):
    state = rich_state() | {"f": {}}

    try:
        plan = match_state(tree, RICH.leaves, state, strict=False)
        fill(plan, RICH)
        plan.apply()
    except HoldfastError:
        pass


@given(JUNK)
def test_junk_in_the_place_of_a_tree_is_a_format_error_or_a_plain_value(node):
    try:
        build(node, [])
    except FormatError:
        pass
