"""A DataLoader that resumes: with any number of workers, at the position of the training, with the same crops."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from holdfast.core.errors import UsageError
from holdfast.data.torch_loader import resumable_loader


class Noisy(Dataset):
    """Samples that are made of all kinds of chance."""

    def __init__(self, length: int = 23) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, random.random(), np.random.rand(), torch.rand(()).item()], dtype=torch.float64)


class Backwards(Sampler):
    def __iter__(self):
        return reversed(range(23))

    def __len__(self) -> int:
        return 23


Backwards.__name__ = "RandomSampler"


def source(length: int = 23, batch_size: int = 4, *, seed: int = 7, shuffle: bool = True, **options: object):
    return resumable_loader(DataLoader(Noisy(length), batch_size, shuffle=shuffle, **options), seed=seed)


def samples(batches) -> list[int]:
    return [int(sample[0]) for batch in batches for sample in batch]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_same_batches_with_any_number_of_workers_wherever_it_goes_on(workers):
    expected = list(source())
    for consumed in range(len(expected) + 1):
        data = source(num_workers=workers)
        data.load_state_dict({**data.state_dict(), "consumed": min(4 * consumed, 23)})
        found = list(data)

        assert len(found) == len(expected) - consumed
        assert all(torch.equal(one, other) for one, other in zip(found, expected[consumed:], strict=True))


def test_an_epoch_has_every_sample_once_and_the_next_has_other_crops():
    data = source()
    first, second = list(data), list(data)

    assert sorted(samples(first)) == sorted(samples(second)) == list(range(23))
    crops = {int(sample[0]): sample[1:].tolist() for batch in first for sample in batch}
    assert all(crops[int(sample[0])] != sample[1:].tolist() for batch in second for sample in batch)


@pytest.mark.parametrize(
    "options", [{"num_workers": 2, "prefetch_factor": 4}, {"num_workers": 2, "persistent_workers": True}]
)
def test_what_workers_have_prefetched_does_not_count(options):
    data = source(**options)
    batches = iter(data)
    taken = [next(batches), next(batches)]

    state = data.state_dict()
    assert state["consumed"] == 8
    again = source(**options)
    again.load_state_dict(state)
    assert sorted(samples(taken) + samples(again)) == list(range(23))


def test_a_loop_that_is_left_goes_on_with_the_rest():
    data = source(num_workers=2, persistent_workers=True)
    for batch in data:
        first = samples([batch])
        break

    assert sorted(first + samples(data)) == list(range(23))
    assert data.epoch == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_the_draws_of_the_training_are_not_changed(workers):
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = (random.random(), np.random.rand(), torch.rand(3).tolist())

    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    for _ in zip(range(3), source(num_workers=workers), strict=False):
        pass
    assert (random.random(), np.random.rand(), torch.rand(3).tolist()) == expected


@pytest.mark.parametrize("worlds", [(4, 3), (1, 8), (3, 1)])
def test_another_number_of_ranks_in_the_middle_of_an_epoch(worlds):
    before, after = worlds
    loader = DataLoader(Noisy(101), 2, shuffle=True)
    ranks = [resumable_loader(loader, seed=7, rank=rank, world=before) for rank in range(before)]
    seen = [sample for data in ranks for _, batch in zip(range(3), data, strict=False) for sample in samples([batch])]
    (state,) = {str(data.state_dict()): data.state_dict() for data in ranks}.values()

    for rank in range(after):
        data = resumable_loader(loader, seed=7, rank=rank, world=after, pad=False)
        data.load_state_dict(state)
        seen += [sample for batch in data.progress.rest() for sample in data.progress.indices_of(batch).tolist()]

    assert sorted(seen) == list(range(101))


def test_what_the_loader_says_is_kept():
    loader = DataLoader(Noisy(), 5, drop_last=True, shuffle=False, collate_fn=len)

    assert list(resumable_loader(loader, seed=7)) == [5, 5, 5, 5]


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (DataLoader(Noisy(), 2, sampler=WeightedRandomSampler([1.0] * 23, 23)), "WeightedRandomSampler"),
        (DataLoader(Noisy(), 2, sampler=RandomSampler(Noisy(), replacement=True)), "with replacement"),
        (DataLoader(Noisy(), batch_sampler=BatchSampler(range(23), 2, drop_last=False)), "order of its own"),
        (DataLoader(Noisy(), batch_size=None), r"makes no batches \(batch_size=None\)"),
        (
            DataLoader(Noisy(), batch_sampler=BatchSampler(RandomSampler(Noisy()), 2, drop_last=False)),
            r"its own \(BatchSampler of a RandomSampler, given as batch_sampler=\)",
        ),
        (DataLoader(Noisy(), 2, sampler=SequentialSampler(range(4))), "is of 4 samples, and the dataset has 23"),
        (DataLoader(Noisy(), 2, sampler=Backwards()), r"its own \(RandomSampler\)"),
    ],
    ids=["weighted", "replacement", "own batches", "no batches", "batches", "of others", "named alike"],
)
def test_an_order_that_no_seed_gives_is_refused(loader, message):
    with pytest.raises(UsageError, match=message):
        resumable_loader(loader, seed=7)


class Ends(Dataset):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return next(iter(())) if index == 13 else index


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_that_stops_is_not_taken_for_the_end_of_the_epoch(workers):
    data = resumable_loader(DataLoader(Ends(), 4, num_workers=workers), seed=7)
    found = []
    with pytest.raises(UsageError, match="StopIteration was raised where samples 12, 13, 14, 15 of epoch 0"):
        found += [batch.tolist() for batch in data]

    assert (data.epoch, data.progress.consumed) == (0, 12)


class Counting(Dataset):
    """Has a generator of its own, which the program saves."""

    def __init__(self, *, draws: bool) -> None:
        self.calls: list[int] = []
        self.draws = draws

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> float:
        self.calls.append(index)
        return random.random() if self.draws else 0.0


@pytest.mark.parametrize("draws", [False, True])
def test_no_sample_is_made_twice_to_learn_what_it_draws(draws):
    dataset = Counting(draws=draws)
    list(resumable_loader(DataLoader(dataset, 2), seed=7))

    assert dataset.calls == list(range(8))


def test_a_profiler_sees_the_batches_by_the_name_that_the_plain_loader_gives_them():
    loader = DataLoader(Noisy(8), 4)
    seen = []
    for data in (loader, resumable_loader(loader, seed=7)):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            list(data)
        seen.append({event.key: event.count for event in profile.key_averages() if "DataLoader" in event.key})

    plain, ours = seen
    assert list(plain) == list(ours)
    assert list(ours.values()) == [2]
