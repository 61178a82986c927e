"""Iterables of Hugging Face's datasets: exact by their own state; counted where that would lose samples."""

import os
import random
from itertools import chain, islice

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
datasets = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed: pip install datasets")

from torch.utils.data import DataLoader  # noqa: E402

from holdfast.data import resumable  # noqa: E402


def stream(shards: int = 4, *, buffer: int | None = None):
    whole = datasets.Dataset.from_dict({"number": list(range(40))}).to_iterable_dataset(num_shards=shards)
    return whole if buffer is None else whole.shuffle(seed=1, buffer_size=buffer)


def numbers(batches) -> list[list[int]]:
    return [[row["number"] for row in batch] if isinstance(batch, list) else batch["number"] for batch in batches]


@pytest.mark.parametrize("buffer", [None, 7], ids=["in order", "with a buffer"])
def test_it_goes_on_at_any_batch(buffer, caplog):
    whole = resumable(stream(buffer=buffer), seed=7, batch_size=3)
    epochs = [[(batch, whole.state_dict()) for batch in whole] for _ in range(2)]
    expected = [numbers(batch for batch, _ in epoch) for epoch in epochs]
    assert all(sorted(chain(*epoch)) == list(range(40)) for epoch in expected)
    assert (expected[0] == expected[1]) is (buffer is None)

    for epoch, at in [(0, 0), (0, 5), (0, 12), (1, 4), (0, 13)]:
        data = resumable(stream(buffer=buffer), seed=7, batch_size=3)
        data.load_state_dict(epochs[epoch][at][1])
        assert numbers(data) == expected[epoch][at + 1 :]
        if epoch == 0:
            assert numbers(data) == expected[1]
    assert bool(caplog.records) is (buffer is not None)
    assert all("shuffle buffer" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("asks", [False, True])
def test_a_loop_that_is_left_and_looked_at(asks):
    data = resumable(stream(), batch_size=3)
    first = []
    for batch in islice(data, 4):
        first += numbers([batch])
        assert not asks or not data.ends_epoch
    state = data.state_dict()

    again = resumable(stream(), batch_size=3)
    again.load_state_dict(state)
    assert first + numbers(again) == numbers(resumable(stream(), batch_size=3))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("buffer", [None, 5], ids=["in order", "with a buffer"])
def test_in_a_loader_with_workers(workers, buffer, caplog):
    def make():
        return resumable(DataLoader(stream(buffer=buffer), 3, num_workers=workers), seed=7)

    whole = make()
    epochs = [[(batch["number"].tolist(), whole.state_dict()) for batch in whole] for _ in range(2)]
    assert sorted(chain(*(batch for batch, _ in epochs[0]))) == list(range(40))

    for epoch, at in [(0, 0), (0, 5), (0, 12), (1, 4)]:
        data = make()
        data.load_state_dict(epochs[epoch][at][1])
        assert [batch["number"].tolist() for batch in data] == [batch for batch, _ in epochs[epoch][at + 1 :]]
    assert bool(caplog.records) is (buffer is not None)


def test_a_dataset_with_numbers_is_asked_by_number():
    table = datasets.Dataset.from_dict({"number": list(range(23))})
    expected = list(resumable(list(range(23)), seed=7, batch_size=4))

    assert numbers(resumable(table, seed=7, batch_size=4)) == expected
    loader = DataLoader(table.with_format("torch"), 4, shuffle=True)
    assert [batch["number"].tolist() for batch in resumable(loader, seed=7)] == expected


def test_a_table_gives_rows_and_what_its_transform_draws_is_seeded():
    table = datasets.Dataset.from_dict({"number": list(range(6))})
    drawing = table.with_transform(lambda rows: {"drawn": [random.random() for _ in rows["number"]]})
    found = []
    for training in (1, 2):
        random.seed(training)
        before = random.getstate()
        found.append(list(resumable(drawing, seed=1, batch_size=3)))
        assert random.getstate() == before

    assert found[0] == found[1]
    assert sorted(row["number"] for batch in resumable(table, seed=1, batch_size=4) for row in batch) == list(range(6))
