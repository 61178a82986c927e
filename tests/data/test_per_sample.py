"""Randomness of a sample: the same whoever makes it, and nobody else's draws change."""

import pickle
import random
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch

from holdfast.data import places
from holdfast.data.bits import all_bits, number_at, sample_bits
from holdfast.data.generators import Generator, generators
from holdfast.data.per_sample import PerItem, PerSample

DRAWS = {
    "random": random.random,
    "gauss": lambda: random.gauss(0, 1),
    "numpy": np.random.rand,
    "normal": np.random.randn,
    "torch": lambda: torch.rand(()).item(),
}


def all_states() -> list[object]:
    _, words, index, has_gauss, gauss = np.random.get_state()
    numpy = [words.tolist(), index, gauss if has_gauss else None]
    return [random.getstate(), numpy, torch.get_rng_state().tolist()]


def drawing(*names: str):
    return lambda index: (index, *(DRAWS[name]() for name in names))


@pytest.mark.parametrize("names", [(), ("random",), ("numpy",), ("torch",), ("gauss", "normal"), tuple(DRAWS)])
def test_it_depends_on_seed_epoch_and_number_only(names):
    make = drawing(*names)
    expected = PerSample(7).batch(3, list(range(10)), make, list)

    random.random(), np.random.randn(), torch.rand(5)
    fresh = PerSample(7)
    assert [fresh.batch(3, [index], make, list)[0] for index in reversed(range(10))] == expected[::-1]
    if names:
        for other in (PerSample(8).batch(3, [0], make, list), PerSample(7).batch(4, [0], make, list)):
            assert other[0] != expected[0]
        assert len({sample[1:] for sample in expected}) == 10


@pytest.mark.parametrize("names", [(), ("random",), ("numpy",), ("torch",), ("gauss",), ("normal",), tuple(DRAWS)])
@pytest.mark.parametrize("odd", [False, True], ids=["even", "odd"])
def test_generators_are_as_before(names, odd):
    if odd:  # a second normal number is waiting
        random.gauss(0, 1)
        np.random.randn()
    per_sample = PerSample(7)
    for _ in range(3):
        before = all_states()
        per_sample.batch(0, [1, 2, 3], drawing(*names), list)
        assert all_states() == before


@pytest.mark.parametrize("restores", [True, False], ids=["here", "in a worker"])
@pytest.mark.parametrize("name", list(DRAWS))
def test_a_sample_that_draws_only_now_and_then_is_seeded_as_well(name, restores):
    """Nothing is seeded at first, since the first samples draw nothing."""

    def seldom(index: int) -> float:
        return DRAWS[name]() if index >= 50 else 0.0

    expected = [PerSample(7).batch(0, [index], seldom, list)[0] for index in range(60)]
    np.random.randn()  # leaves one behind
    one = PerSample(7)
    one.restores = restores
    found = [sample for begin in range(0, 60, 4) for sample in one.batch(0, range(begin, begin + 4), seldom, list)]

    assert found == expected
    assert len(set(expected)) == 11


def test_a_sample_that_fails_by_chance_fails_always_or_never():
    def unlucky(index: int) -> float:
        if index and (drawn := random.random()) < 0.5:
            raise ValueError(f"{index} {drawn}")
        return 0.0

    def outcome(per_sample: PerSample, index: int) -> object:
        try:
            return per_sample.batch(0, [index], unlucky, list)
        except ValueError as error:
            return str(error)

    seen = PerSample(7)
    expected = [outcome(seen, index) for index in range(20)]
    assert [outcome(PerSample(7), index) for index in range(20)] == expected
    assert {type(one) for one in expected} == {str, list}


def test_a_collate_function_that_draws_is_seeded_by_its_batch():
    def mixed(samples: list[int]) -> tuple[float, ...]:
        return (*samples, torch.rand(()).item())

    one, two = PerSample(7), PerSample(7)
    first = [one.batch(0, [index, index + 1], int, mixed) for index in (0, 2, 4)]
    again = [two.batch(0, [index, index + 1], int, mixed) for index in (4, 2, 0)]

    assert first == again[::-1]
    assert len({batch[-1] for batch in first}) == 3


def test_what_is_made_at_once_has_the_randomness_of_the_batch():
    def rows(indices):
        return [(index, np.random.rand()) for index in indices]

    one, two = PerSample(7), PerSample(7)
    assert one.at_once(0, [3, 4], rows) == [two.at_once(0, numbers, rows) for numbers in ([9], [3, 4])][-1]


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.Philox, np.random.SFC64, np.random.MT19937])
@pytest.mark.parametrize("name", ["numpy", "normal"])
def test_another_bit_generator_of_numpy_is_put_back(kind, name):
    own = np.random.mtrand.get_bit_generator()
    kept = np.random.get_state()
    try:
        np.random.set_bit_generator(kind(5))
        expected = PerSample(7).batch(0, [1, 2], drawing(name), list)
        np.random.randn()  # leaves one behind
        before = np.random.get_state(legacy=False)
        one = PerSample(7)
        found = [one.batch(0, [index], drawing(name), list)[0] for index in (1, 2)]

        assert repr(np.random.get_state(legacy=False)) == repr(before)
        assert found == expected
        assert found[0][1] != found[1][1]
    finally:
        np.random.set_bit_generator(own)
        np.random.set_state(kept)


def test_a_bit_generator_that_is_chosen_between_batches_is_looked_at():
    own = np.random.mtrand.get_bit_generator()
    per_sample = PerSample(7)
    per_sample.batch(0, [0], drawing(), list)
    try:
        np.random.set_bit_generator(np.random.MT19937(5))
        before = all_states()
        found = per_sample.batch(0, [1], drawing("numpy"), list)

        assert all_states() == before
        assert found == PerSample(7).batch(0, [1], drawing("numpy"), list)
    finally:
        np.random.set_bit_generator(own)


def unreadable(monkeypatch: pytest.MonkeyPatch) -> list[Generator]:
    """Where nothing is known of the memory, as with another Python."""
    monkeypatch.setattr(sys, "implementation", type("Other", (), {"name": "pypy"}))
    places._place_of_gauss.cache_clear()
    places._place_of_engine.cache_clear()
    try:
        return generators()
    finally:
        monkeypatch.undo()
        places._place_of_gauss.cache_clear()
        places._place_of_engine.cache_clear()


@pytest.mark.parametrize("readable", [True, False], ids=["read", "asked"])
@pytest.mark.parametrize("at", range(3), ids=["random", "numpy", "torch"])
def test_every_draw_is_seen_and_put_back(at, readable, monkeypatch):
    generator = (generators() if readable else unreadable(monkeypatch))[at]
    draw = [random.random, np.random.rand, lambda: torch.rand(())][at]
    for _ in range(1300):  # past two turns of the state
        before = generator.look()
        generator.note()
        assert generator.look() == before
        assert not generator.has_moved()
        first = draw()
        assert generator.look() != before
        assert generator.has_moved()
        generator.put_back()
        assert generator.look() == before
        assert draw() == first
        after = generator.look()
        generator.keep()
        draw()
        generator.put_back()
        assert generator.look() == after
        generator.restore(before)
        assert draw() == first


@pytest.mark.parametrize("name", ["gauss", "normal", "torch normal"])
def test_a_draw_that_only_takes_the_number_that_is_kept_is_seen(name):
    at, draw = {
        "gauss": (0, lambda: random.gauss(0, 1)),
        "normal": (1, np.random.randn),
        "torch normal": (2, lambda: torch.randn(1, dtype=torch.float64).item()),
    }[name]
    generator = generators()[at]
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    draw()  # two are made, and one is kept

    generator.note()
    kept = draw()
    assert generator.has_moved()
    generator.put_back()
    assert draw() == kept


def test_draws_that_bring_the_index_back_to_where_it_was_are_seen():
    for generator, draw in zip(
        generators(),
        [lambda: random.getrandbits(32 * 624), lambda: np.random.bytes(4 * 624), lambda: torch.rand(624)],
        strict=True,
    ):
        generator.note()
        draw()
        assert generator.has_moved()


def test_a_seed_that_leaves_the_index_where_it_was_is_seen():
    for generator, seed in zip(generators(), [random.seed, np.random.seed, torch.manual_seed], strict=True):
        seed(1)
        generator.note()
        seed(2)
        assert generator.has_moved()


def test_a_worker_notes_the_states_once_and_again_when_one_was_drawn_from(monkeypatch):
    noted = []
    note = places.Region.note
    monkeypatch.setattr(places.Region, "note", lambda self: noted.append(self) or note(self))
    one = PerSample(7)
    one.restores = False
    one.batch(0, [0], drawing(), list)
    noted.clear()
    for begin in range(10):
        one.batch(0, [begin], drawing(), list)

    assert noted == []
    assert one.batch(0, [5], drawing("numpy"), list) == PerSample(7).batch(0, [5], drawing("numpy"), list)


def test_all_generators_are_looked_at_in_memory_here():
    """Else the benchmarks would be of something else."""
    assert [type(generator).__name__ for generator in generators()] == ["_Python", "_Numpy", "_Torch"]
    assert generators()[1]._found() is not None


def test_in_memory_or_not_a_seed_gives_the_same_states(monkeypatch):
    asked = unreadable(monkeypatch)
    assert [type(generator).__name__ for generator in asked] == ["_PythonAsked", "_Numpy", "_TorchAsked"]
    assert asked[1]._found() is None
    for place in [0, 5056, 123 * 5056]:
        states = []
        for these in (generators(), asked):
            random.gauss(0, 1), np.random.randn(), torch.randn(1, dtype=torch.float64)  # each leaves one behind
            for generator in these:
                generator.seed(generator.bits(sample_bits(7, 0, 0)[0], place))
            states.append(all_states())
        assert states[0] == states[1]
        read = sample_bits(7, 0, 0)[0]
        assert random.getstate()[1] == (*struct.unpack("<624I", read(2496, seek=place)), 0)
        assert np.random.get_state()[1].tolist() == np.frombuffer(read(2496, seek=place + 2496), "<u4").tolist()
        assert torch.initial_seed() == number_at(read, place + 4992)


def test_memory_that_says_something_else_than_the_library_is_not_used(monkeypatch):
    places._place_of_engine.cache_clear()
    monkeypatch.setattr(places, "_ENGINE_WORDS_AT", 24)  # as if torch had another field before the words
    try:
        assert type(generators()[2]).__name__ == "_TorchAsked"
    finally:
        places._place_of_engine.cache_clear()


def test_an_address_that_is_not_there_is_refused():
    with pytest.raises(OSError, match="Input/output error"):
        places._read(8, 100)


def test_it_can_be_sent_to_a_worker():
    used = PerSample(7)
    expected = used.batch(0, [1, 2], drawing(*DRAWS), list)

    assert pickle.loads(pickle.dumps(used)).batch(0, [1, 2], drawing(*DRAWS), list) == expected


def test_items_without_numbers_are_seeded_by_worker_and_count():
    per_item = pickle.loads(pickle.dumps(PerItem(7)))
    seen = per_item.look()
    before = all_states()
    found = []
    for epoch, count, worker in [(0, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 0), (0, 0, 0)]:
        per_item.begin(epoch, count, worker)
        found.append((random.random(), np.random.rand(), torch.rand(()).item()))
    per_item.restore(seen)

    assert all_states() == before
    assert found[0] == found[-1]
    assert len(set(found)) == 4


def test_bits_are_the_same_on_every_machine_and_in_every_version():
    found = [
        sample_bits(7, 0, 0),
        sample_bits(7, 3, 10**9),
        sample_bits(7, 0, 0, kind="batch"),
        sample_bits(7, 0, 2**60),
    ]

    assert [number_at(*bits) for bits in found] == [
        15004144766488069603,
        12730810603273308747,
        1715529791645465921,
        15408786229996080387,
    ]


def test_bits_differ():
    found = {number_at(*sample_bits(7, epoch, index)) for epoch in range(10) for index in range(1_000)}
    assert len(found) == 10_000

    far = [0, 1, 2**51 - 1, 2**51, 2**62, -1]
    assert len({number_at(*sample_bits(7, 0, index)) for index in far}) == len(far)
    assert len({number_at(*sample_bits(7, 0, 0, kind="worker", worker=worker)) for worker in range(100)}) == 100
    assert len({number_at(*sample_bits(7, 0, 0, kind=kind)) for kind in ("sample", "batch", "worker")}) == 3


def test_bits_of_many_are_those_of_each():
    indices = [5, 2**51, 0, 2**62 - 1, 2**51 - 1]

    assert [number_at(*bits) for bits in all_bits(7, 2, indices)] == [
        number_at(*sample_bits(7, 2, index)) for index in indices
    ]


def test_a_normal_number_that_is_waiting_is_kept_also_after_the_training_has_gone_back():
    per_sample = PerSample(7)
    per_sample.batch(0, [0], drawing("numpy"), list)
    np.random.randn()
    kept = np.random.get_state()
    expected = np.random.randn()
    per_sample.batch(0, [1], drawing("numpy"), list)  # sees the same state without it

    np.random.set_state(kept)
    per_sample.batch(0, [2], drawing("numpy"), list)
    assert np.random.randn() == expected


def test_an_interrupted_sample_leaves_the_generators_as_they_were():
    per_sample = PerSample(7)
    per_sample.batch(0, [0], drawing(), list)  # draws nothing: all are watched
    before = all_states()

    def interrupted(index: int) -> float:
        random.random(), np.random.rand(), torch.rand(())
        raise KeyboardInterrupt

    for one in (per_sample, PerSample(7)):
        with pytest.raises(KeyboardInterrupt):
            one.batch(0, [1], interrupted, list)
        assert all_states() == before


_LAZY = """
import subprocess
import sys
from holdfast.data.per_sample import PerSample

def make(index):
    import torch
    return float(torch.rand(1))

def make_at_once(indices):
    return [make(index) for index in indices]

assert "torch" not in sys.modules
per_sample = PerSample(7)
if sys.argv[1] == "batch":
    first, again, fresh = (one.batch(0, [3, 4], make, list) for one in (per_sample, per_sample, PerSample(7)))
elif sys.argv[1] == "late":
    per_sample.batch(0, [1, 2], float, list)
    first, again, fresh = (one.batch(0, [3, 4], make, list) for one in (per_sample, per_sample, PerSample(7)))
else:
    first, again, fresh = (one.at_once(0, [3, 4], make_at_once) for one in (per_sample, per_sample, PerSample(7)))
import torch
assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(torch.initial_seed())))
print(first == again == fresh)
"""


@pytest.mark.parametrize("kind", ["batch", "late", "at once"])
def test_a_sample_that_imports_torch_itself_is_seeded_as_well(kind):
    done = subprocess.run([sys.executable, "-c", _LAZY, kind], capture_output=True, text=True, timeout=120)

    assert done.stdout == "True\n", done.stderr


def test_a_program_may_put_another_function_in_the_place_of_that_of_random(monkeypatch):
    draw = random.random
    monkeypatch.setattr(random, "random", lambda: draw())

    one, other = (PerSample(7).batch(0, [1, 2], lambda index: random.random(), list) for _ in range(2))

    assert one == other
    assert one[0] != one[1]
