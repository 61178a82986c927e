"""torchdata's StatefulDataLoader: in our order where a seed is given, else by its own state."""

from itertools import chain, islice

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from holdfast.core.errors import UsageError
from holdfast.data import resumable

stateful = pytest.importorskip(
    "torchdata.stateful_dataloader", reason="torchdata is not installed: pip install torchdata"
)

# Its own, of a torch that has moved on since.
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning", "ignore::DeprecationWarning")


class Numbers(IterableDataset):
    def __init__(self) -> None:
        self.at = 0

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        mine = list(range(worker, 23, workers))
        while self.at < len(mine):
            self.at += 1
            yield mine[self.at - 1]
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def flat(batches) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("workers", [0, 2])
def test_with_a_seed_the_order_is_ours(workers):
    loader = stateful.StatefulDataLoader(list(range(23)), 4, shuffle=True, num_workers=workers)
    data = resumable(loader, seed=7)
    expected = list(resumable(list(range(23)), seed=7, batch_size=4))

    assert flat(data) == expected


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["stream", "numbers", "shuffled"])
@pytest.mark.parametrize("asks", [False, True], ids=["", "asking for the end"])
def test_without_a_seed_its_own_state_is_used(workers, kind, asks, caplog):
    def make():
        torch.manual_seed(1)
        thing = Numbers() if kind == "stream" else list(range(23))
        shuffle = {"shuffle": True} if kind == "shuffled" else {}
        return resumable(stateful.StatefulDataLoader(thing, 3, num_workers=workers, **shuffle))

    whole = make()
    epochs: list[list] = [[], []]
    for epoch in range(2):
        for batch in whole:
            assert not asks or whole.ends_epoch is (len(epochs[epoch]) == 7)
            epochs[epoch].append((batch.tolist(), whole.state_dict()))
    assert sorted(chain(*(batch for batch, _ in epochs[0]))) == list(range(23))

    for epoch, at in [(0, 0), (0, 4), (1, 2), (0, 7)]:
        data = make()
        data.load_state_dict(epochs[epoch][at][1])
        assert flat(data) == [batch for batch, _ in epochs[epoch][at + 1 :]]
        if epoch == 0 and kind != "shuffled":
            assert flat(data) == [batch for batch, _ in epochs[1]]
    assert not caplog.records


def test_a_loop_that_is_left_goes_on():
    data = resumable(stateful.StatefulDataLoader(Numbers(), 3))
    first = flat(islice(data, 3))

    assert list(chain(*first, *flat(data))) == list(range(23))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("kind", ["stream", "numbers"])
def test_it_leaves_the_draws_of_the_training_alone(workers, seed, kind):
    loader = stateful.StatefulDataLoader(Numbers() if kind == "stream" else list(range(23)), 3, num_workers=workers)
    before = torch.get_rng_state()
    data = resumable(loader, seed=seed)
    for _ in data:
        data.state_dict()
    next(iter(data))

    assert torch.equal(torch.get_rng_state(), before)


def test_its_batches_are_its_own():
    with pytest.raises(UsageError, match="batch_size=5 cannot be given: without a seed"):
        resumable(stateful.StatefulDataLoader(list(range(23)), 3), batch_size=5)
