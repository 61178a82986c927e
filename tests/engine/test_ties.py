import numpy as np
import pytest
import torch

from holdfast.core.errors import StateMismatchError
from holdfast.engine import ties
from holdfast.engine.matching import match_state
from tests.format.trips import fill, store


def load(stored, state, *, strict=True):
    plan = match_state(stored.tree, stored.leaves, state, strict=strict)
    fill(plan, stored)
    plan.apply()
    return plan


def problems_of(stored, state):
    with pytest.raises(StateMismatchError) as caught:
        match_state(stored.tree, stored.leaves, state)
    return caught.value.problems


def columns(count):
    whole = np.zeros((100, 60))
    return whole, {"c": [whole[:, index] for index in range(count)]}


def cross():
    """The diagonal and the first row of a matrix: one element is in both, and most of the matrix in neither."""
    whole = np.zeros((50, 50))
    return whole, {"diagonal": whole.reshape(-1)[::51], "row": whole[0]}


def windows():
    whole = np.zeros((50, 120))
    return whole, {"w": [whole[:, index : index + 2] for index in range(20)]}


@pytest.fixture(params=[ties._MAX_RUNS, 0], ids=["runs", "wholes"])
def both_ways(request, monkeypatch):
    monkeypatch.setattr(ties, "_MAX_RUNS", request.param)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize(
    "make", [lambda: columns(16), lambda: columns(17), lambda: columns(40), lambda: columns(60), cross, windows]
)
def test_arrays_of_a_buffer_that_is_not_in_the_state_load_into_the_same_arrays(make):
    whole, state = make()
    whole[:] = np.arange(whole.size).reshape(whole.shape)
    stored = store(state)
    program, arrays = make()

    load(stored, arrays)

    for saved, loaded in zip(state.values(), arrays.values(), strict=True):
        assert np.array_equal(saved, loaded)
    touched = np.flatnonzero(program)
    assert np.array_equal(program.ravel()[touched], whole.ravel()[touched])


@pytest.mark.usefixtures("both_ways")
def test_separate_arrays_load_into_columns_of_one_buffer():
    stored = store({"c": [np.full(100, float(index)) for index in range(17)]})
    whole, state = columns(17)

    load(stored, state)

    assert np.array_equal(whole[7], [*range(17), *[0] * 43])


@pytest.mark.usefixtures("both_ways")
def test_arrays_that_were_separate_do_not_load_into_ones_that_cross():
    stored = store({"diagonal": np.zeros(50), "row": np.ones(50)})
    whole, state = cross()

    (problem,) = problems_of(stored, state)

    assert problem == "row: tied to diagonal in the program, separate in the checkpoint"
    assert not whole.any()


@pytest.mark.usefixtures("both_ways")
def test_arrays_that_crossed_elsewhere_do_not_load_into_ones_that_cross_here():
    whole, state = cross()
    whole[:] = np.arange(2500).reshape(50, 50)
    stored = store(state)
    program = np.zeros((50, 50))

    (problem,) = problems_of(stored, {"diagonal": program.reshape(-1)[::51], "row": program[1]})

    assert problem == "row: tied to diagonal in the program, separate in the checkpoint"


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("count", [2, 40])
def test_many_that_are_one_in_the_program_are_all_named_but_the_first(count):
    stored = store({"c": [np.full(3, float(index)) for index in range(count)]})
    one = np.zeros(3)

    problems = problems_of(stored, {"c": [one] * count})

    assert [problem.split(":")[0] for problem in problems] == [f"c[{index}]" for index in range(1, count)]


@pytest.mark.usefixtures("both_ways")
def test_parts_that_are_one_in_the_program_and_lie_apart_in_their_whole_are_a_problem():
    buffer = np.arange(8.0)
    stored = store({"flat": buffer, "a": buffer[:4], "b": buffer[4:]})
    part = np.zeros(4)

    (problem,) = problems_of(stored, {"flat": np.zeros(8), "a": part, "b": part})

    assert problem == "b: tied to a in the program, separate in the checkpoint"
    assert not part.any()


@pytest.mark.usefixtures("both_ways")
def test_parts_that_lie_otherwise_in_the_programs_whole_are_a_problem():
    buffer = np.arange(8.0)
    stored = store({"flat": buffer, "a": buffer[:4], "b": buffer[4:]})
    flat = np.zeros(8)

    problems = problems_of(stored, {"flat": flat, "a": flat[4:], "b": flat[:4]})

    assert [problem.split(":")[0] for problem in problems] == ["a", "b"]


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("make", [np.zeros, lambda length: torch.zeros(length, dtype=torch.float64)])
def test_parts_of_the_same_whole_are_loaded(make):
    buffer = np.arange(8.0)
    stored = store(
        {"flat": buffer, "a": buffer[:4], "b": buffer[4:], "odd": buffer[1::2], "grid": buffer.reshape(2, 4)}
    )
    flat = make(8)

    load(stored, {"flat": flat, "a": flat[:4], "b": flat[4:], "odd": flat[1::2], "grid": flat.reshape(2, 4)})

    assert flat.tolist() == buffer.tolist()


def test_a_whole_and_its_part_load_into_memory_of_another_order():
    saved = np.arange(12.0).reshape(3, 4)
    stored = store({"whole": saved, "part": saved[1:, ::-2], "again": saved})
    whole = np.zeros((3, 4), order="F")

    load(stored, {"whole": whole, "part": whole[1:, ::-2], "again": whole})

    assert np.array_equal(whole, saved)


@pytest.mark.usefixtures("both_ways")
def test_what_is_tied_in_the_program_only_is_left_alone_unless_strict():
    stored = store({"a": np.full(4, 1.0), "b": np.full(4, 2.0), "c": np.full(4, 3.0)})
    whole = np.zeros(12)

    plan = load(stored, {"a": whole[:4], "b": whole[2:6], "c": whole[8:]}, strict=False)

    assert plan.skipped == ["b: tied to a in the program, separate in the checkpoint"]
    assert whole.tolist() == [1, 1, 1, 1, 0, 0, 0, 0, 3, 3, 3, 3]


def test_an_array_whose_own_elements_overlap_is_compared_as_a_whole():
    def make():
        whole = np.zeros(2000)
        return whole, {"w": np.lib.stride_tricks.as_strided(whole, (5, 3), (8, 8)), "far": whole[::400]}

    whole, state = make()
    whole[:] = np.arange(2000)
    stored = store(state)
    program, arrays = make()

    load(stored, arrays)

    assert program[:7].tolist() == whole[:7].tolist()


def test_ten_thousand_columns_of_one_buffer_are_loaded():
    whole = np.zeros((20, 30_000))
    state = {"c": [whole[:, index] for index in range(0, 30_000, 3)]}
    stored = store(state)

    plan = match_state(stored.tree, stored.leaves, state)

    assert len(plan.destinations) == 10_000
