"""resumable(): anything that a training may have as data, and clear words where it cannot be."""

import subprocess
import sys
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)

import holdfast
from holdfast.core.errors import StateError, UsageError
from holdfast.data import Data, Handed, resumable


class Squares(Dataset):
    """A map-style dataset."""

    def __init__(self, length: int = 23) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, index**2 + float(torch.rand(()))


class Rows(IterableDataset):
    def __iter__(self):
        yield from range(10)


class Pair(NamedTuple):
    x: np.ndarray
    y: torch.Tensor


NUMBERS = np.arange(23)
KINDS = {
    "numpy": NUMBERS,
    "tensor": torch.arange(23),
    "tuple": (NUMBERS, NUMBERS * 2),
    "named tuple": Pair(NUMBERS, torch.arange(23)),
    "dict": {"x": NUMBERS, "more": {"y": torch.arange(23)}},
    "list": list(range(23)),
    "range": range(23),
    "dataset": Squares(),
    "loader": DataLoader(Squares(), 4, shuffle=True),
    "workers": DataLoader(Squares(), 4, shuffle=True, num_workers=1),
}


def numbers_of(batch) -> list[int]:
    """The first thing that each sample of it consists of."""
    while isinstance(batch, tuple | dict) or (isinstance(batch, list) and isinstance(batch[0], torch.Tensor)):
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    return [int(number if not isinstance(number, tuple) else number[0]) for number in batch]


def options_for(name: str) -> dict[str, object]:
    return {"seed": 7} if name in ("loader", "workers") else {"seed": 7, "batch_size": 4}


@pytest.mark.parametrize("name", list(KINDS))
def test_every_kind_gives_the_same_order_and_goes_on_in_the_middle(name):
    data = resumable(KINDS[name], **options_for(name))
    expected = [numbers_of(batch) for batch in resumable(list(range(23)), seed=7, batch_size=4)]

    batches = iter(data)
    first = [numbers_of(next(batches)) for _ in range(2)]
    again = resumable(KINDS[name], **options_for(name))
    again.load_state_dict(data.state_dict())

    assert isinstance(data, Data)
    assert len(data) == 6
    assert first + [numbers_of(batch) for batch in again] == expected
    assert first + [numbers_of(batch) for batch in batches] == expected


def test_batches_have_the_structure_of_the_data():
    def first(thing):
        return next(iter(resumable(thing, seed=7, batch_size=4)))

    pair = first(KINDS["named tuple"])
    assert isinstance(pair, Pair)
    assert isinstance(pair.y, torch.Tensor)
    assert pair.x.tolist() == pair.y.tolist()
    mapping = first(KINDS["dict"])
    assert mapping["x"].tolist() == mapping["more"]["y"].tolist()
    assert first(["a", "b", "c", "d"]) != ["a", "b", "c", "d"]


def test_a_batch_is_a_copy():
    array = np.zeros(8)
    batch = next(iter(resumable(array, batch_size=4)))
    batch += 1

    assert not array.any()


def test_rows_of_a_table():
    class Rows:
        def __getitem__(self, indices):
            return ("rows", indices.tolist())

    class Table:
        shape = (5, 2)
        iloc = Rows()

        def __getitem__(self, column):
            raise AssertionError("columns")

    assert next(iter(resumable(Table(), batch_size=2))) == ("rows", [0, 1])


def test_a_sequence_of_the_programs_own_has_the_randomness_of_its_samples():
    class Noisy:
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> tuple[int, float]:
            return index, float(np.random.rand())

    class AtOnce(Noisy):
        def __getitems__(self, indices: list[int]) -> list[tuple[int, float]]:
            return [(index, float(np.random.rand())) for index in indices]

    for kind in (Noisy, AtOnce):
        expected = list(resumable(kind(), seed=7, batch_size=3))
        assert list(resumable(kind(), seed=7, batch_size=3)) == expected
    one_by_one = {sample for batch in resumable(Noisy(), seed=7, batch_size=1) for sample in batch}
    assert one_by_one == {sample for batch in resumable(Noisy(), seed=7, batch_size=4) for sample in batch}


class TestProtocol:
    def test_where_it_is_at_every_batch(self):
        data = resumable(list("abcde"), seed=7, batch_size=2)
        assert (data.epoch, data.completed, data.ends_epoch, data.last) == (0, 0, False, None)

        seen = []
        for batch in data:
            handed = data.last
            assert isinstance(handed, Handed)
            assert [list("abcde")[at] for at in handed.indices] == batch
            seen.append((*handed[:3], data.epoch, data.completed, data.ends_epoch))

        assert seen == [(0, 0, 2, 0, 0, False), (0, 2, 4, 0, 0, False), (0, 4, 5, 0, 1, True)]
        assert (data.epoch, data.completed, data.ends_epoch) == (1, 1, True)
        next(iter(data))
        assert (data.epoch, data.completed, data.ends_epoch) == (1, 1, False)

    def test_what_it_knows_of_itself(self):
        data = resumable(list("abcde"), seed=7, batch_size=2, rank=1, world=2)

        assert data.facts == {
            "seed": 7,
            "length": 5,
            "shuffle": True,
            "rank": 1,
            "world": 2,
            "batch_size": 2,
            "drop_last": False,
            "pad": False,
        }

    def test_the_end_of_an_epoch_is_known_after_a_restart(self):
        data = resumable(list("abcd"), seed=7, batch_size=2)
        states = [data.state_dict() for _ in data]
        again = resumable(list("abcd"), seed=7, batch_size=2)

        again.load_state_dict(states[0])
        assert (again.completed, again.ends_epoch, again.last) == (0, False, None)
        again.load_state_dict(states[1])
        assert (again.epoch, again.completed, again.ends_epoch) == (0, 1, True)

    def test_what_drop_last_leaves_out_is_not_brought_back_by_a_smaller_batch(self):
        data = resumable(list(range(10)), seed=7, batch_size=4, drop_last=True)
        states = [data.state_dict() for _ in data]
        again = resumable(list(range(10)), seed=7, batch_size=2, drop_last=True)
        again.load_state_dict(states[-1])

        assert again.completed == 1
        assert list(again) == []
        assert (states[-1]["consumed"], data.last.stop) == (10, 8)

    @pytest.mark.parametrize("kind", ["list", "loader", "workers", "stream"])
    def test_two_loops_at_the_same_time_are_refused(self, kind):
        thing = (lambda: iter(range(23))) if kind == "stream" else KINDS[kind]
        data = resumable(thing, **({} if kind == "stream" else options_for(kind)))

        with pytest.raises(UsageError, match=r"another loop over it has begun[^$]*make another loader"):
            for _ in data:
                next(iter(data))

    @pytest.mark.parametrize("kind", ["numpy", "loader", "workers", "stream", "stream loader"])
    def test_it_does_not_keep_a_batch_that_the_training_has_dropped(self, kind):
        things = {
            "numpy": NUMBERS,
            "loader": DataLoader(NUMBERS, 4),
            "workers": DataLoader(NUMBERS, 4, num_workers=1),
            "stream": lambda: (np.zeros(3) for _ in range(5)),
            "stream loader": DataLoader(Rows(), 2),
        }
        data = resumable(things[kind], seed=7, batch_size=4 if kind == "numpy" else None)
        batches = iter(data)
        for _ in range(3):
            batch = next(batches)
            kept = weakref.ref(batch)
            del batch
            assert kept() is None

    def test_nor_can_a_loop_go_on_whose_position_was_moved(self):
        data = resumable(list(range(23)), seed=7, batch_size=4)
        state = data.state_dict()

        with pytest.raises(UsageError, match=r"load_state_dict\(\) has moved it"):
            for _ in data:
                data.load_state_dict(state)


class TestLoaders:
    def test_a_distributed_sampler_says_who_takes_part(self):
        parts = []
        for rank in range(3):
            sampler = DistributedSampler(Squares(), num_replicas=3, rank=rank, shuffle=True)
            data = resumable(DataLoader(Squares(), 2, sampler=sampler), seed=7)
            assert data.facts["world"] == 3
            parts.append([numbers_of(batch) for batch in data])

        assert [len(part) for part in parts] == [4, 4, 4]
        seen = [number for part in parts for batch in part for number in batch]
        assert set(seen) == set(range(23))
        assert len(seen) == 24  # one is repeated, so that shares are equal

    def test_options_stand_in_for_what_the_loader_says(self):
        data = resumable(DataLoader(Squares(), 4, shuffle=True), seed=7, batch_size=5, shuffle=False, drop_last=True)

        assert [numbers_of(batch) for batch in data] == [list(range(at, at + 5)) for at in (0, 5, 10, 15)]

    def test_a_rank_without_a_sample_is_refused_at_the_begin(self):
        data = resumable(DataLoader(Squares(9), 2), seed=7, rank=3, world=4)

        with pytest.raises(UsageError, match="some ranks get no sample of the last batch"):
            next(iter(data))
        with_its_own = DataLoader(Squares(9), 2, collate_fn=len)
        assert list(resumable(with_its_own, seed=7, rank=3, world=4)) == [2, 0]

    def test_worker_init_sees_the_dataset_of_the_program(self):
        loader = DataLoader(Squares(), 23, num_workers=1, worker_init_fn=lengthen)

        (batch,) = resumable(loader, seed=7)
        assert numbers_of(batch) == [number + 100 for number in range(23)]

    def test_a_dataset_that_makes_batches_is_asked_once_a_batch(self):
        class AtOnce(Squares):
            asked = 0

            def __getitems__(self, indices: list[int]) -> list[int]:
                self.asked += 1
                return indices

        dataset = AtOnce()
        batches = list(resumable(DataLoader(dataset, 4), seed=7))
        assert [len(batch) for batch in batches] == [4, 4, 4, 4, 4, 3]
        assert dataset.asked == 6

    @pytest.mark.parametrize("context", ["fork", "spawn"])
    def test_however_workers_are_started(self, context):
        loader = DataLoader(Squares(), 4, shuffle=True, num_workers=1, multiprocessing_context=context)
        expected = list(resumable(DataLoader(Squares(), 4, shuffle=True), seed=7))

        for (numbers, squares), (others, other_squares) in zip(resumable(loader, seed=7), expected, strict=True):
            assert torch.equal(numbers, others)
            assert torch.equal(squares, other_squares)


def lengthen(worker: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert type(info.dataset) is Squares
    info.dataset.__class__ = Shifted


class Shifted(Squares):
    def __getitem__(self, index: int) -> tuple[int, float]:
        return index + 100, 0.0


class Endless(Dataset):
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("thing", "options", "message"),
    [
        (DataLoader(Squares(), 4), {}, "seed is missing"),
        (Squares(), {"batch_size": 4}, "seed is missing"),
        ([1, 2], {"batch_size": 4, "shuffle": True}, "seed is missing"),
        ([1, 2], {"seed": "7", "batch_size": 4}, "seed is '7'"),
        ([1, 2], {"seed": 7}, "batch_size is missing"),
        (Squares(), {"seed": 7}, "batch_size is missing"),
        ([1, 2], {"batch_size": 0}, "batch_size is 0"),
        (iter([1, 2]), {}, "is an iterator"),
        (5, {}, "int is no data"),
        ("data.csv", {"batch_size": 4}, "is no data"),
        (Squares, {"seed": 7, "batch_size": 4}, "is no data"),
        (np.float64(1), {"batch_size": 4}, "of no dimension"),
        (np.array(1), {"batch_size": 4}, "of no dimension"),
        ((np.zeros(3), np.zeros(4)), {"batch_size": 4}, r"\[0\] has 3, \[1\] has 4"),
        ({"x": np.zeros(3), "y": [1, 2, 3]}, {"batch_size": 4}, r"\['y'\] is list"),
        ({}, {"batch_size": 4}, "there are none"),
        (Endless(), {"seed": 7, "batch_size": 2}, "no length"),
        ([1], {"batch_size": 1, "rank": 1}, "one of them is missing"),
        ([1], {"batch_size": 1, "rank": 2, "world": 2}, "rank is 2 of a world of 2"),
        (lambda: iter([1]), {"shuffle": True}, "the order of a stream is its own"),
        (lambda: iter([1]), {"rank": 0, "world": 2}, "not shared out"),
        (lambda: iter([1]), {"seed": "x"}, "seed is 'x'"),
        (lambda: iter([1]), {"batch_size": 0}, "batch_size is 0"),
        (lambda a, b: iter([1]), {}, "the function needs a, b"),
        (DataLoader(Squares(), 2, sampler=WeightedRandomSampler([1.0] * 23, 23)), {"seed": 7, "shuffle": True},
         r"WeightedRandomSampler.*shuffle=True is given together with it"),
        (DataLoader(Squares(), 2, sampler=RandomSampler(Squares(), num_samples=5)), {"seed": 7}, "another number"),
        (DataLoader(Squares(), 2, num_workers=1, in_order=False), {"seed": 7}, "in_order=False"),
        (resumable([1], batch_size=1), {}, "is resumable already"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(thing, options, message):
    with pytest.raises(UsageError, match=message):
        iter(resumable(thing, **options)).__next__()


def test_a_dataset_whose_length_changed_is_named():
    data = resumable(DataLoader(Squares(23), 4, shuffle=True), seed=7)
    next(iter(data))

    with pytest.raises(StateError, match="Squares: it has 24 samples, and had 23 when epoch 0 was left after 4"):
        resumable(DataLoader(Squares(24), 4, shuffle=True), seed=7).load_state_dict(data.state_dict())
    old = resumable(DataLoader(Squares(24), 4, shuffle=True), seed=7, finish="old")
    old.load_state_dict(data.state_dict())
    assert len(list(old)) == 5
    assert len(list(old)) == 6


class TestRanks:
    def test_are_those_of_the_launcher(self, monkeypatch):
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "3")

        facts = resumable([1, 2, 3], batch_size=1).facts
        assert (facts["rank"], facts["world"]) == (1, 3)

    @pytest.mark.parametrize(("rank", "world"), [("1", ""), ("x", "2")])
    def test_which_must_make_sense(self, monkeypatch, rank, world):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", world)

        with pytest.raises(UsageError, match=f"RANK='{rank}' and WORLD_SIZE='{world}'"):
            resumable([1], batch_size=1)


def test_importing_it_does_not_import_torch():
    code = (
        "import sys, holdfast.data, numpy; data = holdfast.data.resumable(numpy.arange(5), seed=7, batch_size=2);"
        "list(data); assert callable(holdfast.data.resumable); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_its_names():
    assert holdfast.data.__all__ == ["resumable", "Data", "Handed"]
    assert set(holdfast.data.__all__) <= set(dir(holdfast.data))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = holdfast.data.nothing


class Draws:
    """An array of the program's own."""

    shape = (8, 2)

    def __getitem__(self, indices):
        return np.random.rand(len(indices))


def test_an_array_that_draws_is_seeded_and_the_training_is_left_alone():
    found = []
    for training in (1, 2):
        np.random.seed(training)
        found.append([batch.tolist() for batch in resumable(Draws(), seed=1, batch_size=4)])
        drawn = np.random.rand()
        np.random.seed(training)
        assert np.random.rand() == drawn

    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


class Scaled(DataLoader):
    def __iter__(self):
        for batch in super().__iter__():
            yield 1000 * batch


class Sized:
    def __init__(self, length: object) -> None:
        self.length = length

    def __len__(self) -> int:
        if isinstance(self.length, Exception):
            raise self.length
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("thing", "options", "message"),
    [
        ((np.zeros((100, 3)), [0] * 100), {}, r"a tuple of arrays has parts that are none: \[1\] is list"),
        ([1, 2], {"shuffle": 1}, r"shuffle is 1 \(int\)"),
        ([1, 2], {"drop_last": "no"}, "drop_last is 'no'"),
        ([1, 2], {"pad": "no"}, "pad is 'no'"),
        ([1, 2], {"seed": 10**5000}, "seed has 16610 bits"),
        ([1, 2], {"seed": "7"}, "seed is '7'"),
        ([1, 2], {"rank": 0.0, "world": 2}, "rank is 0.0"),
        ([1, 2], {"rank": "0", "world": "2"}, "rank is '0'"),
        ([1, 2], {"batch_size": 2.0}, "batch_size is 2.0"),
        ([1, 2], {"finish": "now"}, "finish is 'now'"),
        ([1, 2], {"batch_size": None}, "batch_size is missing"),
        (memoryview(b"abc"), {}, "is no data"),
        ({"x": [1, 2]}, {}, r"\['x'\] is list"),
        (Sized(-1), {}, "does not say how many samples"),
        (Sized(2**70), {}, "does not say how many samples"),
        (Sized(NotImplementedError("unknown")), {}, "NotImplementedError: unknown"),
        (Scaled(Squares(), 2), {"batch_size": None}, "Scaled is a DataLoader with an __iter__"),
        (Scaled(Rows(), 2), {"batch_size": None}, "Scaled is a DataLoader with an __iter__"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_hint(thing, options, message):
    with pytest.raises(UsageError, match=f"(?s){message}.*hint: "):
        resumable(thing, **{"seed": 7, "batch_size": 2, **options})


def test_numbers_and_switches_of_numpy_are_taken():
    one = np.int64(1)
    options: dict[str, Any] = {"seed": one, "batch_size": one, "rank": one, "world": np.int64(2), "shuffle": np.True_}
    data = resumable([1, 2, 3], **options)
    expected = resumable([1, 2, 3], seed=1, batch_size=1, rank=1, world=2)

    assert data.state_dict() == expected.state_dict()
    assert {type(value) for value in data.facts.values()} == {int, bool}
    assert list(data) == list(expected)


def test_a_saved_seed_that_is_too_long_to_be_written_is_refused():
    data = resumable([1, 2, 3], seed=7, batch_size=1)
    for change in ({"seed": 10**5000}, {"length": 10**5000}, {"epoch": 10**5000}, {"shuffle": 1, "seed": 10**5000}):
        with pytest.raises(StateError, match="bits"):
            data.load_state_dict({**data.state_dict(), **change})
