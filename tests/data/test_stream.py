"""Data without numbers: exact where it says where it is, counted and thrown away where it does not."""

import logging
import random
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from holdfast.core.errors import StateError, UsageError
from holdfast.data import resumable
from holdfast.data.forward import bar

# More workers than the machine has cores are what some of these are about.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


class Counter:
    """An iterable that says where it is. Remembers how many it was asked for."""

    def __init__(self, length: int = 10) -> None:
        self.length = length
        self.epoch = 0
        self.at = self.start = self.asked = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[int, int]]:
        self.at, self.start = self.start, 0
        while self.at < self.length:
            self.at += 1
            self.asked += 1
            yield self.epoch, self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["at"]


class CountingIterator:
    """An iterator that says where it is."""

    def __init__(self, length: int) -> None:
        self.at, self.length = 0, length

    def __iter__(self) -> "CountingIterator":
        return self

    def __next__(self) -> int:
        if self.at == self.length:
            raise StopIteration
        self.at += 1
        return self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Stateless:
    def __iter__(self) -> Iterator[tuple[float, ...]]:
        files = [10, 20, 30]
        random.shuffle(files)
        for file in files:
            for at in range(4):
                yield (file + at, random.random(), np.random.rand(), torch.rand(()).item())


KINDS = {
    "iterable with state": lambda: resumable(Counter()),
    "in batches": lambda: resumable(Counter(), batch_size=3),
    "iterators with state": lambda: resumable(lambda: CountingIterator(10)),
    "without state": lambda: resumable(Stateless(), seed=7),
    "without state in batches": lambda: resumable(Stateless(), seed=7, batch_size=5),
    "function": lambda: resumable(lambda: iter(range(10))),
    "function of the epoch": lambda: resumable(lambda epoch: ((epoch, number) for number in range(10))),
    "function that draws": lambda: resumable(lambda: (random.random() for _ in range(10)), seed=7),
}
EXACT = ["iterable with state", "in batches", "iterators with state"]


@pytest.mark.parametrize("name", list(KINDS))
@pytest.mark.parametrize("asks", [False, True], ids=["", "asking for the end"])
def test_it_goes_on_wherever_it_was_left(name, asks, caplog):
    whole = KINDS[name]()
    expected, states = [[], []], [[], []]
    for epoch in range(2):
        assert whole.completed == epoch
        for batch in whole:
            expected[epoch].append(batch)
            if asks:
                assert whole.completed == epoch + whole.ends_epoch
            states[epoch].append(whole.state_dict())

    for epoch in range(2):
        for at, state in enumerate(states[epoch]):
            data = KINDS[name]()
            data.load_state_dict(state)
            assert list(data) == expected[epoch][at + 1 :]
            assert data.epoch == epoch + 1
            if epoch == 0:
                assert list(data) == expected[1]
    assert bool(caplog.records) is (name not in EXACT)


def test_the_end_is_seen_one_ahead_without_moving():
    thing = Counter(3)
    data = resumable(thing)
    seen = []
    for batch in data:
        before = data.state_dict()
        seen.append((batch, data.ends_epoch, data.completed, data.last[:3]))
        after = data.state_dict()
        assert after == before
        assert after["ended"] is seen[-1][1]

    assert seen == [((0, 0), False, 0, (0, 0, 1)), ((0, 1), False, 0, (0, 1, 2)), ((0, 2), True, 1, (0, 2, 3))]
    assert data.last.indices is None
    assert data.facts["length"] is None
    assert data.facts["pad"] is None
    assert not hasattr(data, "__len__")


def test_a_saved_end_is_known_at_once_and_nothing_is_read_again():
    data = resumable(Counter(3))
    states = [(data.ends_epoch, data.state_dict()) for _ in data]
    thing = Counter(3)
    again = resumable(thing)
    again.load_state_dict(states[-1][1])

    assert (again.completed, again.ends_epoch) == (1, True)
    assert list(again) == []
    assert thing.asked == 0
    assert list(again) == [(1, 0), (1, 1), (1, 2)]


def test_exactly_what_is_left_is_read_where_it_says_where_it_is():
    thing = Counter(1000)
    data = resumable(thing)
    first = resumable(Counter(1000))
    for _ in islice(first, 990):
        pass
    data.load_state_dict(first.state_dict())

    assert len(list(data)) == 10
    assert thing.asked == 10


def test_a_loop_that_is_left_goes_on_without_reading_anything_twice(caplog):
    made = []

    def make() -> Iterator[int]:
        made.append(None)
        return iter(range(6))

    data = resumable(make)
    first = list(islice(data, 2))
    assert data.ends_epoch is False

    assert first + list(data) == list(range(6))
    assert len(made) == 1
    assert not caplog.records


def test_going_forward_is_said(caplog):
    data = resumable(lambda: iter(range(10)))
    list(islice(data, 7))
    again = resumable(lambda: iter(range(10)))
    again.load_state_dict(data.state_dict())
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert next(iter(again)) == 7

    (record,) = caplog.records
    assert record.name == "holdfast"
    assert "epoch 0 was left after 7" in record.getMessage()
    assert "state_dict()" in record.getMessage()


def test_a_bar_shows_where_somebody_looks(monkeypatch, capsys):
    with bar("going", 10) as show:
        show(5)
    assert capsys.readouterr().err == ""

    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    with bar("going", 10) as show:
        for done in range(11):
            show(done)
    assert "going" in capsys.readouterr().err


def test_a_batch_size_may_change_between_attempts():
    data = resumable(lambda: iter(range(10)), batch_size=3)
    first = list(islice(data, 2))
    again = resumable(lambda: iter(range(10)), batch_size=2, drop_last=True)
    again.load_state_dict(data.state_dict())

    assert first == [[0, 1, 2], [3, 4, 5]]
    assert list(again) == [[6, 7], [8, 9]]


def test_drop_last_leaves_a_short_batch_out():
    data = resumable(lambda: iter(range(5)), batch_size=2, drop_last=True)

    assert [(batch, data.ends_epoch) for batch in data] == [([0, 1], False), ([2, 3], True)]


def test_an_error_in_the_stream_is_not_its_end(caplog):
    broken = [True]

    def make() -> Iterator[int]:
        for number in range(5):
            if number == 3 and broken:
                broken.clear()
                raise OSError("disk")
            yield number

    data = resumable(make)
    seen = []
    with pytest.raises(OSError, match="disk"):
        seen.extend(data)
    seen = [data.last.begin]
    assert data.epoch == 0
    assert list(data) == [3, 4]
    assert caplog.records


@pytest.mark.parametrize("kind", [Counter, Stateless])
def test_an_error_ahead_is_raised_in_the_loop_and_not_where_one_saves(kind):
    class Failing(kind):
        def __iter__(self):
            for number, item in enumerate(super().__iter__()):
                if (item[1] if kind is Counter else number) == 3:
                    raise OSError("disk")
                yield item

    data = resumable(Failing(), seed=7)
    states = []
    with pytest.raises(OSError, match="disk"):
        for _ in data:
            states.append((data.ends_epoch, data.state_dict()))

    assert [ended for ended, _ in states] == [False] * 3
    again = resumable(kind(), seed=7)
    again.load_state_dict(states[-1][1])
    assert list(again) == list(resumable(kind(), seed=7))[3:]


def test_draws_of_the_training_are_not_changed_by_a_stream():
    random.seed(1)
    expected = [random.random() for _ in range(3)]
    random.seed(1)
    data = iter(resumable(Stateless(), seed=7))
    assert [(next(data), random.random())[1] for _ in range(3)] == expected


@pytest.mark.parametrize(
    ("make", "message"), [(lambda: 5, "made int for epoch 0"), (lambda: SAME, "the same iterator as before")]
)
def test_functions_that_make_no_iterators_are_refused(make, message):
    data = resumable(make)
    with pytest.raises(UsageError, match=message):
        for _ in range(2):
            list(data)


SAME = iter([1, 2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "is not the position of a stream"),
        ({"epoch": None, "more": 1}, "is not the position of a stream"),
        ({"stream": 2}, "of version 2"),
        ({"epoch": -1}, "its position is"),
        ({"consumed": 1.5}, "its position is"),
        ({"ended": 1}, "its position is"),
        ({"world": 2}, "saved with 2 ranks, and the program has 1 rank\n"),
        ({"rank": 1, "own": {}}, "saved with rank 1"),
        ({"seed": 8}, "saved with seed 8"),
        ({"shape": None}, "saved with another kind of stream"),
        ({"shape": {"batch_size": 2, "workers": 3}}, "saved with 3 workers, and the program has 0 workers"),
    ],
)
def test_states_that_do_not_fit_are_refused_and_nothing_changes(change, message):
    data = resumable(DataLoader(Numbers(), 2), seed=7)
    list(islice(data, 2))
    before = data.state_dict()

    with pytest.raises(StateError, match=message):
        data.load_state_dict(change if change is None else {**before, **change})
    assert data.state_dict() == before


def test_a_stream_that_has_become_shorter_is_refused():
    data = resumable(lambda: iter(range(10)))
    list(islice(data, 7))
    again = resumable(lambda: iter(range(5)))
    again.load_state_dict(data.state_dict())

    with pytest.raises(StateError, match="epoch 0 has 5 now, and was left after 7"):
        list(again)


class Numbers(IterableDataset):
    """Shared out between workers; draws."""

    def __init__(self, length: int = 23) -> None:
        self.length = length
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def part(self) -> tuple[int, int]:
        info = get_worker_info()
        return (0, 1) if info is None else (info.id, info.num_workers)

    def __iter__(self) -> Iterator[list[float]]:
        worker, workers = self.part()
        for number in range(worker, self.length, workers):
            yield [self.epoch, number, random.random(), np.random.rand(), torch.rand(()).item()]


class Stateful(Numbers):
    """The same, and says where it is."""

    def __init__(self, length: int = 23) -> None:
        super().__init__(length)
        self.at = self.start = 0

    def __iter__(self) -> Iterator[list[float]]:
        worker, workers = self.part()
        self.at, self.start = self.start, 0
        for number in list(range(worker, self.length, workers))[self.at :]:
            self.at += 1
            yield [self.epoch, number, random.random(), np.random.rand(), torch.rand(()).item()]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["at"]


def plain(batch) -> list[list[float]]:
    return [column.tolist() for column in batch]


@pytest.mark.parametrize("kind", [Numbers, Stateful])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 1},
        {"num_workers": 3},
        {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3},
    ],
    ids=["here", "one", "three", "persistent"],
)
class TestLoaders:
    def make(self, kind, options, length=23):
        return resumable(DataLoader(kind(length), 3, **options), seed=7)

    def test_goes_on_at_any_batch(self, kind, options, caplog):
        whole = self.make(kind, options)
        epochs = [[(plain(batch), whole.state_dict()) for batch in whole] for _ in range(2)]
        assert sorted(number for batch, _ in epochs[1] for number in batch[1]) == list(range(23))
        assert {one for batch, _ in epochs[1] for one in batch[0]} == {1}

        cases = range(0, len(epochs[0]), 1 if options.get("num_workers", 0) < 2 else 3)
        for epoch, at in [(0, at) for at in cases] + [(1, 3)]:
            data = self.make(kind, options)
            data.load_state_dict(epochs[epoch][at][1])
            assert [plain(batch) for batch in data] == [batch for batch, _ in epochs[epoch][at + 1 :]]
            if epoch == 0:
                assert plain(next(iter(data))) == epochs[1][0][0]
        assert bool(caplog.records) is (kind is Numbers)

    def test_a_loop_that_is_left_goes_on(self, kind, options):
        expected = [plain(batch) for batch in self.make(kind, options)]
        data = self.make(kind, options)
        first = [plain(batch) for batch in islice(data, 3)]
        assert not data.ends_epoch
        state = data.state_dict()

        assert first + [plain(batch) for batch in data] == expected
        data.load_state_dict(state)
        assert first + [plain(batch) for batch in data] == expected


def test_a_worker_that_is_done_stays_so():
    """Some workers have nothing left while others go on."""

    def make():
        return resumable(DataLoader(Uneven(), 1, num_workers=3), seed=7)

    whole = make()
    batches = [(batch.tolist(), whole.state_dict()) for batch in whole]
    for at, (_, state) in enumerate(batches):
        data = make()
        data.load_state_dict(state)
        assert [batch.tolist() for batch in data] == [batch for batch, _ in batches[at + 1 :]]


class Uneven(Stateful):
    def __iter__(self) -> Iterator[float]:
        worker, _ = self.part()
        self.at, self.start = self.start, 0
        for number in range(self.at, [1, 6, 3][worker]):
            self.at += 1
            yield worker * 100 + number + random.random()


@pytest.mark.parametrize("kind", [Numbers, Stateful])
def test_workers_may_be_spawned(kind):
    def make(context):
        return resumable(DataLoader(kind(), 3, num_workers=1, multiprocessing_context=context), seed=7)

    data = make("fork")
    batches = [(plain(batch), data.state_dict()) for batch in data]
    again = make("spawn")
    again.load_state_dict(batches[2][1])

    assert [plain(batch) for batch in again] == [batch for batch, _ in batches[3:]]


def test_another_number_of_workers_is_refused():
    data = resumable(DataLoader(Stateful(), 3, num_workers=2), seed=7)
    next(iter(data))

    with pytest.raises(StateError, match="workers"):
        resumable(DataLoader(Stateful(), 3, num_workers=1), seed=7).load_state_dict(data.state_dict())


def test_a_loader_over_a_stream_has_its_own_batches():
    with pytest.raises(UsageError, match="batch_size=4 cannot be given"):
        resumable(DataLoader(Numbers(), 2), batch_size=4)


def test_the_length_is_that_of_the_loader_where_it_has_one():
    class Sized(Numbers):
        def __len__(self) -> int:
            return self.length

    data = resumable(DataLoader(Sized(), 3))
    assert len(data) == 8
    assert len(list(data)) == 8


def test_worker_init_sees_the_dataset_of_the_program():
    loader = DataLoader(Numbers(), 3, num_workers=1, worker_init_fn=shorten)

    assert len(list(resumable(loader))) == 2


def shorten(worker: int) -> None:
    get_worker_info().dataset.length = 5


class Shuffled(IterableDataset):
    """Draws its order when it is asked for an iterator."""

    def __iter__(self):
        return iter(random.sample(range(8), 8))


def permuted(epoch: int) -> Iterator[int]:
    return iter(np.random.permutation(8).tolist())


SHUFFLED = {
    "function": lambda **seed: resumable(permuted, **seed),
    "iterable": lambda **seed: resumable(Shuffled(), **seed),
    "loader": lambda **seed: resumable(DataLoader(Shuffled(), None), **seed),
    "worker": lambda **seed: resumable(DataLoader(Shuffled(), None, num_workers=1), **seed),
}


@pytest.mark.parametrize("name", SHUFFLED)
def test_an_order_that_is_drawn_at_the_begin_is_that_of_seed_and_epoch(name):
    whole = SHUFFLED[name](seed=1)
    states = [[(item, whole.state_dict()) for item in whole] for _ in range(2)]
    expected = [[item for item, _ in epoch] for epoch in states]
    assert expected[0] != expected[1]

    for epoch, at in [(0, 2), (1, 3), (0, 7)]:
        random.random(), np.random.rand()
        data = SHUFFLED[name](seed=1)
        data.load_state_dict(states[epoch][at][1])
        before = random.getstate(), np.random.get_state()[2], torch.get_rng_state().tolist()
        assert list(data) == expected[epoch][at + 1 :]
        assert (random.getstate(), np.random.get_state()[2], torch.get_rng_state().tolist()) == before


def test_without_a_seed_that_order_leaves_the_training_alone_and_it_is_said(caplog):
    data = SHUFFLED["function"]()
    np.random.seed(3)
    orders = [list(data) for _ in range(2)]
    drawn = np.random.rand()

    assert orders[0] != orders[1]
    np.random.seed(3)
    assert np.random.rand() == drawn
    assert [record.message.count("give seed=") for record in caplog.records] == [1]


def drawing_items() -> Iterator[float]:
    for _ in range(8):
        yield random.random()


def test_what_is_taken_ahead_or_again_does_not_move_the_training_without_a_seed(caplog):
    data = resumable(drawing_items)
    items = iter(data)
    next(items), next(items)
    before = random.getstate()
    state = data.state_dict()
    assert random.getstate() == before
    assert [record.message.count("give seed=") for record in caplog.records] == [1]

    again = resumable(drawing_items)
    again.load_state_dict({**state})
    expected = random.random()
    random.setstate(before)
    again._items = again._begun()  # the two that were consumed
    assert random.random() == expected


class Kept(IterableDataset):
    """Keeps its place in itself, also where it was told to begin."""

    def __init__(self) -> None:
        self.start = self.at = 0

    def __iter__(self):
        for at in range(self.start, 7):
            self.at = at + 1
            yield at

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.start = state["at"]


class Place(Kept):
    """Goes on where it is."""

    def __iter__(self):
        while self.at < 7:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.mark.parametrize("kind", [Kept, Place])
@pytest.mark.parametrize("make", [resumable, lambda one: resumable(DataLoader(one, None), seed=1)], ids=["", "loader"])
@pytest.mark.parametrize("back", [0, 2, 5, 7, 8])
def test_a_training_that_goes_back_finds_a_stateful_stream_where_it_was(kind, make, back):
    data = make(kind())
    states, given = [data.state_dict()], []
    while len(given) < 10:
        for item in data:
            given.append(item)
            states.append(data.state_dict())
            if len(given) == 10:
                break
    assert given == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2]

    data.load_state_dict(states[back])
    again: list[int] = []
    while len(again) < 17 - back:
        again += data
    assert again[: 17 - back] == [*range(7), *range(7), *range(7)][back:17]


class Reordered(IterableDataset):
    """Each epoch in an order of its own, with the number of the epoch in its state."""

    def __init__(self) -> None:
        self.epoch = self.at = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = random.Random(self.epoch).sample(range(8), 8)
        while self.at < 8:
            self.at += 1
            yield order[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.at = state["epoch"], state["at"]


@pytest.mark.parametrize(
    "make",
    [
        resumable,
        lambda one: resumable(DataLoader(one, None), seed=1),
        lambda one: resumable(DataLoader(one, None, num_workers=1, persistent_workers=True), seed=1),
    ],
    ids=["", "loader", "persistent"],
)
def test_epochs_after_a_resume_have_their_own_order_though_the_state_says_another_epoch(make, caplog):
    whole = make(Reordered())
    epochs = [[(item, whole.state_dict()) for item in whole] for _ in range(4)]
    expected = [[item for item, _ in epoch] for epoch in epochs]
    data = make(Reordered())

    data.load_state_dict(epochs[1][3][1])

    assert [list(data) for _ in range(3)] == [expected[1][4:], expected[2], expected[3]]
    assert not caplog.records


class Untold(Reordered):
    """Counts the epochs by itself."""

    set_epoch = None

    def __iter__(self) -> Iterator[int]:
        yield from super().__iter__()
        self.epoch += 1


def test_a_stream_that_counts_epochs_by_itself_is_warned_of_once_after_a_resume(caplog):
    whole = resumable(Untold())
    states = [whole.state_dict() for _ in range(2) for _ in whole]
    list(whole)
    assert not caplog.records
    data = resumable(Untold())

    data.load_state_dict(states[3])
    list(data), list(data), list(data)

    assert [record.message.count("set_epoch(epoch)") for record in caplog.records] == [1]
    assert "Untold" in caplog.text


def test_a_stream_that_is_where_it_was_at_first_after_an_epoch_is_not_warned_of(caplog):
    data = resumable(Place())
    next(iter(data))
    again = resumable(Place())

    again.load_state_dict(data.state_dict())

    assert [list(again), list(again)] == [[*range(1, 7)], [*range(7)]]
    assert not caplog.records


def test_workers_draw_the_same_in_an_epoch_whenever_it_is_begun_without_a_seed():
    def make():
        return resumable(DataLoader(Shuffled(), None, num_workers=2))

    data = make()
    list(data), list(data)
    state = data.state_dict()
    expected = list(data)
    again = make()
    again.load_state_dict(state)

    assert list(again) == expected
    assert list(make()) != expected
