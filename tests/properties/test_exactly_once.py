"""Whatever happens to a training, every sample comes exactly once per epoch, in the order of an undisturbed one."""

from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from holdfast.data import resumable
from holdfast.data.order import Order
from holdfast.data.source import Source

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

EPOCHS = 2


class Life(NamedTuple):
    """One attempt: with how many ranks, which batch size, for how many steps, of which the last are lost with it."""

    world: int
    batch_size: int
    steps: int
    lost: int


lives = st.lists(
    st.builds(Life, st.integers(1, 5), st.integers(1, 9), st.integers(0, 9), st.integers(0, 3)), max_size=8
)
lengths = st.one_of(st.integers(0, 40), st.integers(41, 300))


def undisturbed(length: int, epoch: int, *, shuffle: bool) -> list[int]:
    return Order(length, seed=7, epoch=epoch, shuffle=shuffle).indices(0, length).tolist()


def train(length: int, attempts: list[Life], **options: bool) -> list[list[list[list[int]]]]:
    """What counts in the end: of each epoch, the batches; of each of them, the shares of the ranks."""
    kept: list[list[list[list[int]]]] = [[] for _ in range(EPOCHS)]
    state = None
    for life in [*attempts, Life(2, 3, 10**6, 0)]:
        ranks = [
            Source(length, lambda indices: indices.tolist(), seed=7, batch_size=life.batch_size, rank=rank,
                   world=life.world, **options)
            for rank in range(life.world)
        ]  # fmt: skip
        for data in ranks:
            if state is not None:
                data.load_state_dict(state)
        done = []
        while len(done) < life.steps and ranks[0].completed < EPOCHS:
            for shares in zip(*ranks, strict=True):
                done.append((ranks[0].last.epoch, list(shares), ranks[0].state_dict()))
                assert all(data.state_dict() == done[-1][2] for data in ranks)
                assert all(data.ends_epoch is ranks[0].ends_epoch for data in ranks)
                if len(done) == life.steps or ranks[0].completed == EPOCHS:
                    break
        for epoch, shares, after in done[: len(done) - life.lost] if life.lost else done:
            kept[epoch].append(shares)
            state = after
    return kept


# Each case has up to nine lives of up to five ranks; there is nothing slow in it but Python.
@settings(max_examples=9_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(lengths, st.booleans(), lives)
def test_every_sample_once_and_in_the_same_order(length, shuffle, attempts):
    for epoch, batches in enumerate(train(length, attempts, shuffle=shuffle)):
        assert list(chain(*(chain(*shares) for shares in batches))) == undisturbed(length, epoch, shuffle=shuffle)


@settings(max_examples=1_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(lengths, st.booleans(), lives)
def test_with_drop_last_whole_batches_of_the_same_order_and_at_most_one_of_them_left_out(length, shuffle, attempts):
    largest = max([life.world * life.batch_size for life in attempts] + [6])
    for epoch, batches in enumerate(train(length, attempts, shuffle=shuffle, drop_last=True)):
        seen = list(chain(*(chain(*shares) for shares in batches)))
        assert seen == undisturbed(length, epoch, shuffle=shuffle)[: len(seen)]
        assert length - len(seen) < largest
        assert all(len({len(share) for share in shares}) == 1 for shares in batches)


@settings(max_examples=1_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(lengths, st.booleans(), lives)
def test_with_padding_equal_shares_that_miss_nothing(length, shuffle, attempts):
    for epoch, batches in enumerate(train(length, attempts, shuffle=shuffle, pad=True)):
        order, seen = undisturbed(length, epoch, shuffle=shuffle), []
        for shares in batches:
            assert len({len(share) for share in shares}) == 1
            # Repeated is only what the same batch has.
            fresh = list(dict.fromkeys(chain(*shares)))
            assert len(list(chain(*shares))) - len(fresh) < len(shares) * len(shares[0])
            seen += fresh
        assert sorted(seen) == sorted(order)
        assert len(seen) == len(order)


class Noisy(Dataset):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, torch.rand(()).item(), np.random.rand()], dtype=torch.float64)


@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
@pytest.mark.parametrize("workers", [0, 1, 2, 4])
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    length=st.integers(1, 40),
    attempts=st.lists(st.tuples(st.integers(1, 7), st.integers(0, 5), st.sampled_from([0, 1])), max_size=3),
    data=st.data(),
)
def test_real_workers_give_the_same_samples(workers, persistent, length, attempts, data):
    """Also what is random in them, with another number of workers and another batch size in every life."""
    expected = torch.cat(list(resumable(DataLoader(Noisy(length), 1, shuffle=True), seed=7)))
    seen, state = [], None
    for size, steps, others in [*attempts, (3, 10**6, 1)]:
        used = workers if others else data.draw(st.sampled_from([0, 1, 2]))
        loader = DataLoader(
            Noisy(length), size, shuffle=True, num_workers=used, persistent_workers=persistent and used > 0
        )
        source = resumable(loader, seed=7)
        if state is not None:
            source.load_state_dict(state)
        if source.completed:
            break
        seen += list(islice(source, steps))
        state = source.state_dict()

    assert torch.equal(torch.cat(seen), expected)
