"""The order of an epoch: a permutation, uniform enough, the same everywhere, at once at any position."""

import json
from collections import Counter
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.errors import UsageError
from holdfast.data.order import MAX_LENGTH, Order

VECTORS = Path(__file__).parents[1] / "vectors" / "order-v1.json"
# Around where the way of computing it changes, and around squares, where the rectangle does.
EDGES = [0, 1, 2, 3, 65_535, 65_536, 65_537, 257**2 - 1, 257**2, 257**2 + 1, 300 * 301, 100_003]


@pytest.mark.parametrize("length", EDGES)
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_sample_comes_exactly_once(length, shuffle):
    found = Order(length, seed=7, epoch=3, shuffle=shuffle).indices(0, length)

    assert found.dtype == np.int64
    assert np.array_equal(np.sort(found), np.arange(length))
    assert length < 10 or np.array_equal(found, np.arange(length)) is not shuffle


@settings(max_examples=200)
@given(st.integers(0, 200_000), st.integers(-(2**70), 2**70), st.integers(0, 10**9), st.data())
def test_parts_and_single_positions_are_those_of_the_whole(length, seed, epoch, data):
    order = Order(length, seed=seed, epoch=epoch)
    whole = order.indices(0, length)
    start = data.draw(st.integers(0, length))
    stop = data.draw(st.integers(start, length))
    step = data.draw(st.integers(1, 10))

    assert np.array_equal(order.indices(start, stop, step), whole[start:stop:step])
    for position in range(start, min(stop, start + 5)):
        assert order[position] == whole[position]


@pytest.mark.parametrize("length", [10, 100_000])
def test_another_seed_epoch_or_length_gives_another_order(length):
    orders = [
        Order(length, seed=7, epoch=0),
        Order(length, seed=8, epoch=0),
        Order(length, seed=7, epoch=1),
        Order(length + 1, seed=7, epoch=0),
    ]

    assert len({order.indices(0, 10).tobytes() for order in orders}) == len(orders)


@pytest.mark.parametrize("length", [3, 4])
def test_every_order_of_a_few_has_the_same_chance(length):
    found = Counter(tuple(Order(length, seed=seed, epoch=0).indices(0, length).tolist()) for seed in range(6000))
    expected = 6000 / len(list(permutations(range(length))))

    # Chi-squared with 5 (23) degrees of freedom is above 25 (60) once in ten thousand.
    assert sum((found[one] - expected) ** 2 / expected for one in permutations(range(length))) < (
        25 if length == 3 else 60
    )


def test_a_large_one_looks_random():
    """Neighbours are unrelated, every sample can come anywhere, and halves mix."""
    length, count = 1_000_000, 100_000
    found = Order(length, seed=1, epoch=0).indices(0, count)
    steps = np.diff(found)

    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.02
    assert abs(np.mean(found) / length - 0.5) < 0.01
    counts = np.histogram(found, bins=100, range=(0, length))[0]
    assert sum((counts - count / 100) ** 2 / (count / 100)) < 170  # 99 degrees of freedom: above once in 100,000
    assert np.unique(np.abs(steps)).size > 0.9 * 2 * count / 3 * 0.9


def test_where_a_sample_comes_changes_evenly_from_epoch_to_epoch():
    places = [int(np.flatnonzero(Order(70_000, seed=5, epoch=e).indices(0, 70_000) == 12_345)[0]) for e in range(200)]

    counts = np.histogram(places, bins=10, range=(0, 70_000))[0]
    assert sum((counts - 20) ** 2 / 20) < 34  # 9 degrees of freedom: above once in 10,000


@pytest.mark.parametrize("length", [10**9, 10**12, MAX_LENGTH - 1, MAX_LENGTH])
def test_of_billions_any_part_is_had_at_once(length):
    order = Order(length, seed=7, epoch=0)
    parts = [order.indices(at, at + 1000) for at in (0, length // 2, length - 1000)]
    found = np.concatenate(parts)

    assert len(np.unique(found)) == 3000
    assert found.min() >= 0
    assert found.max() < length
    assert order[length - 1] == parts[-1][-1]


def test_it_is_the_same_on_every_machine_and_in_every_version():
    for vector in json.loads(VECTORS.read_text()):
        order = Order(vector["length"], seed=vector["seed"], epoch=vector["epoch"])
        assert [order[position] for position in vector["positions"]] == vector["samples"], vector


@pytest.mark.parametrize("bad", [-1, MAX_LENGTH + 1, 1.5, "10", None, True])
def test_a_length_that_is_none_is_refused(bad):
    with pytest.raises(UsageError, match="length is"):
        Order(bad, seed=7, epoch=0)


@pytest.mark.parametrize("bad", [{"seed": None}, {"seed": 1.0}, {"epoch": -1}, {"epoch": "0"}])
def test_so_are_seeds_and_epochs(bad):
    with pytest.raises(UsageError, match=f"{next(iter(bad))} is"):
        Order(10, **{"seed": 7, "epoch": 0, **bad})


@pytest.mark.parametrize("position", [-1, 10, 10**9])
def test_positions_outside_are_refused(position):
    with pytest.raises(IndexError):
        Order(10, seed=7, epoch=0)[position]
    with pytest.raises(IndexError):
        Order(10, seed=7, epoch=0).indices(position, position + 1)
