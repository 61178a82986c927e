"""Batches of an epoch, and their shares: whoever takes part, every position comes exactly once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import UsageError
from holdfast.data.sharing import batches_in, check_ranks, next_batch, share_of

sizes = st.integers(1, 50)
worlds = st.integers(1, 9)


def positions_of(batch: range, world: int, *, pad: bool = False) -> list[list[int]]:
    """Of each rank."""
    return [[at for part in share_of(batch, rank, world, pad=pad) for at in part] for rank in range(world)]


@given(st.integers(0, 500), st.lists(st.tuples(sizes, worlds), min_size=1, max_size=20))
def test_with_any_sequence_of_batch_sizes_and_worlds_every_position_comes_once_and_in_order(length, attempts):
    seen: list[int] = []
    while len(seen) < length:
        size, world = attempts[len(seen) % len(attempts)]
        for share in positions_of(next_batch(len(seen), length, size, drop_last=False), world):
            seen += share

    assert seen == list(range(length))
    assert len(next_batch(length, length, 5, drop_last=False)) == 0


@given(st.integers(0, 100), worlds)
def test_shares_differ_by_one_at_most(count, world):
    found = [len(share) for share in positions_of(range(count), world)]

    assert sum(found) == count
    assert max(found) - min(found) <= 1


@given(st.integers(1, 100), worlds, st.integers(0, 1000))
def test_padded_ones_are_equal_and_miss_nothing(count, world, begin):
    batch = range(begin, begin + count)
    found = positions_of(batch, world, pad=True)

    assert {len(share) for share in found} == {-(-count // world)}
    assert {at for share in found for at in share} == set(batch)


@pytest.mark.parametrize("pad", [True, False])
def test_of_nothing_everybody_gets_nothing(pad):
    assert positions_of(range(7, 7), 3, pad=pad) == [[], [], []]


@given(st.integers(0, 300), sizes, st.booleans(), st.data())
def test_the_number_of_batches_is_that_of_those_that_come(length, size, drop_last, data):
    consumed = data.draw(st.integers(0, length))
    expected = batches_in(consumed, length, size, drop_last=drop_last)

    count = 0
    while len(batch := next_batch(consumed, length, size, drop_last=drop_last)):
        assert len(batch) == size or not drop_last
        consumed, count = batch.stop, count + 1

    assert count == expected


@pytest.mark.parametrize(("rank", "world"), [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_that_is_none_is_refused(rank, world):
    with pytest.raises(UsageError, match=f"rank is {rank} of a world of {world}"):
        check_ranks(rank, world)
