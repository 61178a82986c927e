"""A source of batches: exactly once per epoch, in the same order, whatever happens in between."""

from collections.abc import Iterable
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.errors import StateError, UsageError
from holdfast.data.source import Source


def source(length: int, batch_size: int = 4, **options: object) -> Source[list[int]]:
    options = {"seed": 7, **options}
    return Source(length, lambda indices: indices.tolist(), batch_size=batch_size, **options)  # type: ignore[arg-type]


def flat(batches: Iterable[list[int]]) -> list[int]:
    return [sample for batch in batches for sample in batch]


def undisturbed(length: int, epochs: int, **options: object) -> list[list[int]]:
    """The samples of each epoch, one after the other."""
    whole = source(length, 1, **options)
    return [[sample for batch in whole for sample in batch] for _ in range(epochs)]


def test_an_epoch_has_every_sample_once_and_the_next_one_has_another_order():
    data = source(10)
    first, second = list(data), list(data)

    assert [len(batch) for batch in first] == [4, 4, 2]
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(10))
    assert first != second
    assert (data.epoch, data.progress.consumed) == (2, 0)


def test_what_is_handed_out_is_consumed():
    data = source(10)
    batches = iter(data)
    next(batches)

    assert data.state_dict() == {"order": 1, "epoch": 0, "consumed": 4, "seed": 7, "length": 10, "shuffle": True}


def test_after_the_last_batch_the_epoch_is_not_over_before_its_loop_is():
    data = source(8)
    for _ in data:
        state = data.state_dict()
    again = source(8)
    again.load_state_dict(state)

    assert (state["epoch"], state["consumed"]) == (0, 8)
    assert list(again) == []  # what the program does after each epoch is done now
    assert again.epoch == 1
    assert list(again) == list(data)


@settings(max_examples=400)
@given(
    length=st.integers(1, 60),
    shuffle=st.booleans(),
    lives=st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 7), st.integers(0, 12), st.integers(0, 3)), min_size=1, max_size=30
    ),
)
def test_any_interruptions_worlds_and_batch_sizes_give_the_undisturbed_order(length, shuffle, lives):
    """Each life has its world, its batch size, so many steps, of which the last few are lost with it."""
    epochs = 3
    kept: list[tuple[int, int]] = []
    state = source(length, shuffle=shuffle).state_dict()
    rounds = 0
    while state["epoch"] < epochs:
        world, size, steps, lost = lives[rounds % len(lives)]
        rounds += 1
        if rounds % len(lives) == 0:
            steps, lost = max(steps, 1), 0  # or it would not come to an end
        ranks = [source(length, size, shuffle=shuffle, rank=rank, world=world) for rank in range(world)]
        for rank in ranks:
            rank.load_state_dict(state)
        done: list[tuple[list[tuple[int, int]], dict[str, object]]] = []
        for _ in range(steps):
            if ranks[0].epoch >= epochs:
                break
            epoch = ranks[0].epoch
            samples = [(epoch, sample) for rank in ranks for sample in next(iter(rank), [])]
            assert len({str(rank.state_dict()) for rank in ranks}) == 1
            done.append((samples, ranks[0].state_dict()))
        durable = done[: max(0, len(done) - lost)]
        kept += [sample for samples, _ in durable for sample in samples]
        state = durable[-1][1] if durable else state

    expected = undisturbed(length, epochs, shuffle=shuffle)
    assert [[sample for at, sample in kept if at == epoch] for epoch in range(epochs)] == expected
    assert [at for at, _ in kept] == sorted(at for at, _ in kept)


def test_the_same_global_batches_with_another_number_of_ranks():
    one = [sorted(batch) for batch in source(64, 8)]
    four = [source(64, 2, rank=rank, world=4) for rank in range(4)]

    assert [sorted(flat(parts)) for parts in zip(*four, strict=True)] == one


class TestChangedData:
    def left(self, length: int = 10, batches: int = 1) -> dict[str, object]:
        data = source(length)
        given = iter(data)
        for _ in range(batches):
            next(given)
        return data.state_dict()

    @pytest.mark.parametrize("length", [9, 11])
    def test_in_the_middle_of_an_epoch_it_is_refused(self, length):
        with pytest.raises(
            StateError, match=f"it has {length} samples, and had 10 when epoch 0 was left after 4 of them"
        ):
            source(length).load_state_dict(self.left())

    def test_unless_the_epoch_is_to_be_finished_as_it_was(self):
        data = source(12, finish="old")
        data.load_state_dict(self.left())
        rest, following = list(data), list(data)

        expected = list(source(10))
        assert rest == expected[1:]
        assert sorted(flat(following)) == list(range(12))

    def test_or_skipped(self):
        data = source(8, finish="skip")
        data.load_state_dict(self.left())

        assert (data.epoch, data.progress.consumed) == (1, 0)
        assert sorted(flat(data)) == list(range(8))

    def test_samples_that_are_gone_cannot_be_finished(self):
        with pytest.raises(StateError, match="are not there any more"):
            source(8, finish="old").load_state_dict(self.left())

    @pytest.mark.parametrize(("batches", "epoch"), [(0, 0), (3, 1)])
    def test_between_two_epochs_it_may_have_any_length_and_that_is_said(self, batches, epoch, caplog):
        data = source(13)
        data.load_state_dict(self.left(batches=batches))

        assert "it has 13 samples, and had 10 until now" in caplog.text
        assert (data.epoch, data.progress.consumed) == (epoch, 0)
        assert sorted(flat(data)) == list(range(13))

    @pytest.mark.parametrize("batches", [0, 1, 3])
    def test_of_the_same_length_nothing_is_said(self, batches, caplog):
        source(10).load_state_dict(self.left(batches=batches))

        assert caplog.text == ""

    @pytest.mark.parametrize("options", [{"seed": 8}, {"shuffle": False}])
    def test_another_order_is_refused(self, options):
        with pytest.raises(StateError, match="it was saved with seed=7, shuffle=True"):
            source(10, **options).load_state_dict(self.left())


@pytest.mark.parametrize(
    "state",
    [
        {},
        None,
        {"epoch": 0},
        {"order": 2, "epoch": 0, "consumed": 0, "seed": 7, "length": 10, "shuffle": True},
        {"order": 1, "epoch": -1, "consumed": 0, "seed": 7, "length": 10, "shuffle": True},
        {"order": 1, "epoch": 0, "consumed": 11, "seed": 7, "length": 10, "shuffle": True},
        {"order": 1, "epoch": 0, "consumed": 1.5, "seed": 7, "length": 10, "shuffle": True},
        {"order": 1, "epoch": 0, "consumed": 0, "seed": 7, "length": 10, "shuffle": "yes"},
    ],
)
@pytest.mark.parametrize("finish", ["refuse", "old", "skip"])
def test_what_is_no_position_is_refused_and_nothing_changes(state, finish):
    data = source(10, finish=finish)

    with pytest.raises(StateError, match="the data"):
        data.load_state_dict(state)
    assert data.state_dict() == source(10).state_dict()


@pytest.mark.parametrize(
    "options",
    [{"batch_size": 0}, {"batch_size": 1.5}, {"batch_size": True}, {"finish": "no"}, {"rank": 2}, {"seed": None}],
)
def test_bad_options_are_refused(options):
    with pytest.raises(UsageError):
        source(10, **{"batch_size": 4, **options})


def test_with_drop_last_and_padding():
    assert [len(batch) for batch in source(10, drop_last=True)] == [4, 4]
    assert len(source(10, drop_last=True)) == 2
    padded = [list(source(10, 3, rank=rank, world=3, pad=True)) for rank in range(3)]
    assert [[len(batch) for batch in rank] for rank in padded] == [[3, 1]] * 3


def test_an_epoch_without_samples_is_over_at_once():
    data = source(0)

    assert list(data) == []
    assert data.epoch == 1
    assert np.array_equal(data.progress.indices_of(range(0)), [])


class TestAsBefore:
    def test_the_position_is_that_from_before_the_batch(self):
        data = source(10)
        expected = list(source(10))
        found = []
        for batch in data:
            after = data.state_dict()
            with data.as_before(data.last):
                again = source(10)
                again.load_state_dict(data.state_dict())
            assert data.state_dict() == after
            found.append(batch)
            assert list(again) == expected[len(found) - 1 :]

        assert found == expected  # the loop went on as it was

    def test_it_can_be_the_last_batch_of_an_epoch_that_is_over(self):
        data = source(10, drop_last=True)
        epoch = list(data)
        with data.as_before(data.last):
            state = data.state_dict()
        again = source(10, drop_last=True)
        again.load_state_dict(state)

        assert (state["epoch"], state["consumed"]) == (0, 4)
        assert list(again) == epoch[1:]
        assert (data.epoch, data.state_dict()["consumed"]) == (1, 0)

    def test_an_epoch_of_an_older_length_keeps_it(self):
        state = {"order": 1, "epoch": 0, "consumed": 4, "seed": 7, "length": 8, "shuffle": True}
        data = source(10, finish="old")
        data.load_state_dict(state)
        list(data)
        with data.as_before(data.last):
            assert data.state_dict() == state
        assert data.state_dict()["length"] == 10

    def test_afterwards_it_is_as_it_was_also_where_something_failed(self):
        data = source(10)
        batches = iter(data)
        next(batches)
        after = data.state_dict()
        with pytest.raises(KeyError), data.as_before(data.last):
            raise KeyError

        assert data.state_dict() == after


class Cut(Source[list[int]]):
    """What makes the batches ends before the epoch does."""

    def _batches(self):
        return islice(super()._batches(), 2)


def test_batches_that_end_too_early_are_not_taken_for_an_epoch():
    data = Cut(10, lambda indices: indices.tolist(), seed=7, batch_size=3)

    with pytest.raises(UsageError, match="its batches ended after 6 of 10 samples"):
        list(data)
    assert (data.epoch, data.state_dict()["consumed"]) == (0, 6)


def test_a_function_that_stops_is_not_taken_for_the_end_of_the_epoch():
    data = Source(10, lambda indices: next(iter(())), seed=7, batch_size=3)

    with pytest.raises(UsageError, match="StopIteration was raised where samples"):
        list(data)
