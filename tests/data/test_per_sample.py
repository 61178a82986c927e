"""Randomness of a sample: the same whoever makes it, and nobody else's draws change."""

import pickle
import random
import sys

import numpy as np
import pytest
import torch

from holdfast.data.generators import generators
from holdfast.data.per_sample import PerItem, PerSample, sample_seed

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


@pytest.mark.parametrize("name", list(DRAWS))
def test_a_sample_that_draws_only_now_and_then_is_seeded_as_well(name):
    """Nothing is seeded at first, since the first samples draw nothing."""

    def seldom(index: int) -> float:
        return DRAWS[name]() if index >= 50 else 0.0

    expected = [PerSample(7).batch(0, [index], seldom, list)[0] for index in range(60)]
    np.random.randn()  # leaves one behind
    one = PerSample(7)
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


def test_another_bit_generator_of_numpy_is_put_back():
    own = np.random.mtrand.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(5))
        before = repr(np.random.get_state(legacy=False))
        found = PerSample(7).batch(0, [1, 2], drawing("numpy"), list)

        assert repr(np.random.get_state(legacy=False)) == before
        assert found == PerSample(7).batch(0, [1, 2], drawing("numpy"), list)
        assert found[0][1] != found[1][1]
    finally:
        np.random.set_bit_generator(own)


@pytest.mark.parametrize("at", range(3), ids=["random", "numpy", "torch"])
def test_looking_sees_every_draw_and_restores_it(at):
    generator = generators()[at]
    draw = [random.random, np.random.rand, lambda: torch.rand(())][at]
    for _ in range(1300):  # past two turns of the state
        before = generator.look()
        assert generator.look() == before
        first = draw()
        after = generator.look()
        assert after != before
        generator.restore(before)
        assert draw() == first
        assert generator.look() == after


@pytest.mark.parametrize("number", [0, 5, 2**63 + 12345])
def test_a_generator_is_seeded_as_its_library_does_it(number):
    seeds = [random.seed, lambda number: np.random.seed([number & 0xFFFFFFFF, number >> 32]), torch.manual_seed]
    for generator, seed in zip(generators(), seeds, strict=True):
        random.gauss(0, 1)  # leaves one behind
        generator.seed(number)
        found = all_states()
        seed(number)
        assert all_states() == found


def test_where_the_state_of_random_cannot_be_read_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(sys, "implementation", type("Other", (), {"name": "pypy"}))
    generator = generators()[0]
    assert not generator._readable

    before = generator.look()
    first = random.random()
    assert generator.look() != before
    generator.restore(before)
    assert random.random() == first


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


def test_seeds_are_the_same_on_every_machine_and_in_every_version():
    found = [sample_seed(7, 0, 0), sample_seed(7, 3, 10**9), sample_seed(7, 0, 0, kind="batch")]

    assert found == [1814335938268219919, 9892823232155820051, 18157420224093376147]


def test_seeds_differ():
    found = {sample_seed(7, epoch, index) for epoch in range(10) for index in range(10_000)}

    assert len(found) == 100_000
    assert len({sample_seed(7, 0, 0, kind="worker", worker=worker) for worker in range(100)}) == 100


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


def test_where_the_normal_number_of_numpy_cannot_be_read_it_is_asked_for(monkeypatch):
    numpy = generators()[1]
    assert numpy._gauss_at is not None
    np.random.randn()
    read = [numpy.look(), np.random.randn(), numpy.look()]
    monkeypatch.setattr(numpy, "_gauss_at", None)
    numpy.restore(read[0])

    assert [numpy.look(), np.random.randn(), numpy.look()] == read


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


def test_numpy_is_seeded_with_all_64_bits():
    numpy = generators()[1]
    found = []
    for number in (5, 5 + (1 << 32)):
        numpy.seed(number)
        found.append(np.random.rand())

    assert found[0] != found[1]
