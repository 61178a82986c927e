import collections
import copy
import dataclasses
import enum
import random
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from holdfast.core.errors import StateMismatchError, UsageError
from holdfast.engine.adapters import check_restorable
from holdfast.engine.matching import match_state
from tests.format.trips import fill, store


def load(stored, state, **options):
    """Match, read and apply, as a restore does."""
    plan = match_state(stored.tree, stored.leaves, state, **options)
    fill(plan, stored)
    plan.apply()
    return plan


def problems_of(stored, state, **options):
    before = copy.deepcopy({name: _snapshot(value) for name, value in state.items()})
    with pytest.raises(StateMismatchError) as caught:
        match_state(stored.tree, stored.leaves, state, **options)

    assert str({name: _snapshot(value) for name, value in state.items()}) == str(before), "the program was touched"
    return caught.value.problems


def _snapshot(value):
    if isinstance(value, dict):
        return {key: _snapshot(item) for key, item in value.items()}
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    return value.state_dict() if hasattr(value, "state_dict") else value


@dataclasses.dataclass
class Config:
    lr: float
    weights: np.ndarray


@dataclasses.dataclass(frozen=True)
class Frozen:
    depth: int


class Point(NamedTuple):
    x: int
    w: object


class Mode(enum.Enum):
    A = 1
    B = 2


def test_arrays_are_filled_in_place_whatever_their_strides():
    saved = np.arange(24.0).reshape(2, 3, 4)
    stored = store({"c": saved, "f": saved, "s": saved.copy(), "t": torch.from_numpy(saved.copy())})
    fortran = np.zeros((2, 3, 4), order="F")
    strided = np.zeros((4, 3, 8))[::-2, :, ::2]
    state = {
        "c": np.zeros((2, 3, 4)),
        "f": fortran,
        "s": strided,
        "t": torch.zeros(4, 3, 2, dtype=torch.float64).permute(2, 1, 0),
    }
    objects = dict(state)

    load(stored, state)

    assert all(state[name] is objects[name] for name in state)
    assert all(np.array_equal(np.asarray(value), saved) for value in state.values())


def test_whole_arrays_are_read_straight_into_the_programs_memory():
    stored = store({"w": np.arange(8.0), "t": torch.arange(3.0)})
    state = {"w": np.zeros(8), "t": torch.zeros(3)}

    plan = match_state(stored.tree, stored.leaves, state)

    assert [
        np.shares_memory(d.carrier, np.asarray(v)) for d, v in zip(plan.destinations, state.values(), strict=True)
    ] == [
        True,
        True,
    ]


def test_numpy_and_torch_arrays_load_into_each_other():
    stored = store({"a": np.arange(3, dtype=np.float32), "b": torch.arange(3)})
    state = {"a": torch.zeros(3), "b": np.zeros(3, np.int64)}

    load(stored, state)

    assert state["a"].tolist() == state["b"].tolist() == [0, 1, 2]


def test_containers_are_the_same_objects_with_new_contents():
    saved = {
        "d": {"step": 7, "inner": {"x": [1, 2]}, "new": 1},
        "l": [3, [4]],
        "s": {1, 2},
        "q": collections.deque([1, 2, 3]),
        "b": bytearray(b"new"),
        "e": {},
        "dd": collections.defaultdict(int, a=2),
    }
    stored = store(saved)
    state = {
        "d": {"old": 0, "inner": {"x": [], "y": 1}},
        "l": [0, [9, 9], 5],
        "s": {9},
        "q": collections.deque(maxlen=5),
        "b": bytearray(b"older"),
        "e": {"gone": 1},
        "dd": collections.defaultdict(list),
    }
    kept = [
        state["d"],
        state["d"]["inner"],
        state["d"]["inner"]["x"],
        state["l"],
        state["l"][1],
        *list(state.values())[2:],
    ]

    load(stored, state)

    now = [
        state["d"],
        state["d"]["inner"],
        state["d"]["inner"]["x"],
        state["l"],
        state["l"][1],
        *list(state.values())[2:],
    ]
    assert all(one is other for one, other in zip(kept, now, strict=True))
    assert state == saved
    assert state["q"].maxlen == 5
    assert list(state["d"]) == ["step", "inner", "new"]


def test_an_empty_container_is_filled_with_arrays_too():
    stored = store({"buffer": [np.arange(3), {"t": torch.ones(2)}]})
    buffer = []

    load(stored, {"buffer": buffer})

    assert buffer[0].tolist() == [0, 1, 2]
    assert buffer[1]["t"].tolist() == [1, 1]


def test_none_in_the_program_takes_what_the_checkpoint_has():
    stored = store({"best": {"weights": np.arange(3), "loss": 0.5}})
    best = {"weights": None, "loss": None}

    load(stored, {"best": best})

    assert best["weights"].tolist() == [0, 1, 2]


def test_arrays_inside_containers_stay_the_same_arrays():
    stored = store({"d": {"t": (np.arange(3), 5)}})
    array = np.zeros(3, np.int64)
    state = {"d": {"t": (array, 6)}}

    load(stored, state)

    assert state["d"]["t"][0] is array
    assert array.tolist() == [0, 1, 2]
    assert state["d"]["t"][1] == 5


def test_a_dataclass_is_changed_in_place_and_keeps_its_arrays():
    stored = store({"c": Config(0.5, np.arange(2.0)), "d": {"f": Frozen(3), "p": Point(1, [2]), "m": Mode.B}})
    config = Config(0.1, np.zeros(2))
    weights = config.weights
    state = {"c": config, "d": {"f": Frozen(0), "p": Point(0, None), "m": Mode.A}}

    load(stored, state)

    assert (config.lr, config.weights is weights, weights.tolist()) == (0.5, True, [0, 1])
    assert state["d"] == {"f": Frozen(3), "p": Point(1, [2]), "m": Mode.B}


def test_generators_go_on_in_place():
    generators = [
        np.random.default_rng(1),
        np.random.RandomState(2),
        random.Random(3),
        torch.Generator().manual_seed(4),
    ]
    stored = store({"g": generators})
    expected = [g.random() for g in generators[:1]] + [generators[1].random_sample(), generators[2].random()]
    state = {"g": [np.random.default_rng(9), np.random.RandomState(9), random.Random(9), torch.Generator()]}
    same = list(state["g"])

    load(stored, state)

    assert all(a is b for a, b in zip(state["g"], same, strict=True))
    assert [same[0].random(), same[1].random_sample(), same[2].random()] == expected
    assert same[3].initial_seed() == 4


def test_object_arrays_are_filled_in_place():
    stored = store({"o": np.array([1, "a", None], object)})
    target = np.empty(3, object)

    load(stored, {"o": target})

    assert target.tolist() == [1, "a", None]


class Counted:
    """An object with live containers and arrays in its state_dict, and a load_state_dict that clears them first."""

    def __init__(self):
        self.seen, self.weights, self.loads = {}, np.zeros(2), 0

    def state_dict(self):
        return {"seen": self.seen, "weights": self.weights}

    def load_state_dict(self, state):
        self.seen.clear()
        self.seen.update(state["seen"])
        self.weights = state["weights"]
        self.loads += 1


def test_an_object_that_hands_out_its_own_containers_is_loaded_right():
    saved, target = Counted(), Counted()
    saved.seen, saved.weights = {"a": [1]}, np.arange(2.0)
    target.seen = {"b": [2]}
    stored = store({"o": [saved]})

    load(stored, {"o": [target]})

    assert (target.seen, target.weights.tolist(), target.loads) == ({"a": [1]}, [0, 1], 1)


def test_an_object_whose_state_is_read_only_gets_new_arrays():
    class Frozen:
        def __init__(self, value):
            self.value = np.full(3, value)

        def state_dict(self):
            view = self.value.view()
            view.flags.writeable = False
            return {"v": view, "j": jnp.asarray(self.value)}

        def load_state_dict(self, state):
            assert isinstance(state["j"], type(jnp.zeros(1)))
            self.value = state["v"]

    target = Frozen(1.0)

    stored = store({"o": {"v": np.full(3, 2.0), "j": jnp.full(3, 2.0)}})
    load(stored, {"o": target})

    assert target.value.tolist() == [2, 2, 2]


def test_every_difference_is_listed_at_once_and_nothing_is_touched():
    stored = store(
        {
            "model": {"a": np.ones(3), "b": np.ones(3), "c": np.ones(3), "d": np.ones(3), "only_saved": np.ones(1)},
            "gone": {"x": 1},
            "rng": np.random.Generator(np.random.PCG64(1)),
        }
    )
    read_only = np.zeros(3)
    read_only.flags.writeable = False
    state = {
        "model": {
            "a": np.zeros(4),
            "b": np.zeros(3, np.float32),
            "c": read_only,
            "d": np.zeros(3),
            "mine": np.zeros(1),
        },
        "fresh": {},
        "rng": np.random.Generator(np.random.Philox(1)),
    }

    problems = problems_of(stored, state)

    assert len(problems) == 8
    text = "\n".join(problems)
    for part in (
        "gone: extra",
        "fresh: missing",
        "model.a: wrong shape: the program has [4], the checkpoint [3]",
        "model.b: wrong dtype: the program has float32, the checkpoint float64",
        "model.c: read-only",
        "model.only_saved: extra",
        "model.mine: missing",
        "rng: class mismatch: the program's generator is Philox, the checkpoint's PCG64",
    ):
        assert part in text


@pytest.mark.parametrize("lengths", [(3, 1), (1, 3)], ids=["has grown", "goes back"])
@pytest.mark.parametrize("kind", [list, collections.deque])
def test_a_list_of_arrays_of_another_length_is_refused_with_a_hint_that_helps(kind, lengths):
    saved, own = (kind(np.full(2, float(index)) for index in range(length)) for length in lengths)
    stored = store({"s": saved})
    with pytest.raises(StateMismatchError, match="has to be empty when it is restored"):
        load(stored, {"s": own})

    own.clear()
    load(stored, {"s": own})

    assert [item.tolist() for item in own] == [item.tolist() for item in saved]


@pytest.mark.parametrize(
    ("saved", "program", "expected"),
    [
        ({"w": None}, {"w": np.zeros(2)}, "s.w: missing"),
        ({"w": {"x": 1}}, {"w": np.zeros(2)}, "s.w: missing"),
        ([np.zeros(2)] * 2, [np.zeros(2)], "s[1]: extra"),
        ([np.zeros(2)], [np.zeros(2), np.ones(2)], "s[1]: missing"),
        ({"d": Config(1, np.zeros(1))}, {"d": Frozen(3)}, "class mismatch"),
        ({"d": Mode.A}, {"d": enum.Enum("Other", "A B").A}, "class mismatch"),
        ({"g": 3}, {"g": random.Random(1)}, "s.g: missing"),
        ({"q": collections.deque([1, 2])}, {"q": collections.deque(maxlen=1)}, "at most 1"),
        ({"o": np.array([1, None], object)}, {"o": np.array([1], object)}, "wrong shape"),
        ({"m": torch.nn.Linear(1, 1)}, {"m": 3}, "s.m"),
        ({"m": 3}, {"m": torch.nn.Linear(1, 1)}, "missing"),
        ({"t": torch.zeros(2)}, {"t": torch.zeros(2).to_sparse()}, "sparse"),
        ({"t": torch.zeros(3, 4)}, {"t": torch.zeros(3, 1).expand(3, 4)}, "broadcast"),
    ],
    ids=lambda value: str(value)[:25],
)
def test_each_kind_of_difference_is_found(saved, program, expected):
    (problem, *_) = problems_of(store({"s": saved}), {"s": program})

    assert expected in problem


def test_plain_values_are_not_compared():
    stored = store({"s": {"a": 1, "b": "x", "c": [1, 2]}})
    state = {"s": {"a": "other", "c": {"k": 1}, "z": 0}}

    load(stored, state)

    assert state["s"] == {"a": 1, "b": "x", "c": [1, 2]}


def test_arrays_tied_in_the_program_but_separate_in_the_checkpoint_are_a_problem():
    stored = store({"a": np.zeros(3), "b": np.ones(3)})
    shared = np.zeros(6)

    (problem,) = problems_of(stored, {"a": shared[:3], "b": shared[1:4]})

    assert "tied to a in the program, separate in the checkpoint" in problem


def test_arrays_tied_in_the_checkpoint_load_into_separate_ones():
    saved = np.arange(6.0)
    stored = store({"a": saved, "b": saved, "c": saved[2:4], "d": saved[::-2]})
    state = {"a": np.zeros((6, 2))[:, 0], "b": np.zeros(6), "c": np.zeros(2), "d": np.zeros(3)}

    load(stored, state)

    assert [value.tolist() for value in state.values()] == [
        saved.tolist(),
        saved.tolist(),
        saved[2:4].tolist(),
        saved[::-2].tolist(),
    ]


def test_views_in_both_are_loaded_once():
    saved, target = np.arange(6.0), np.zeros(6)
    stored = store({"part": saved[2:4], "whole": saved})

    plan = load(stored, {"part": target[2:4], "whole": target})

    assert target.tolist() == saved.tolist()
    assert len(plan.destinations) == 1
    assert np.shares_memory(plan.destinations[0].carrier, target)


def test_overlapping_windows_are_loaded_through_a_buffer():
    saved, target = np.arange(10.0), np.zeros(10)
    stored = store({"left": saved[:6], "right": saved[4:]})

    load(stored, {"left": target[:6], "right": target[4:]})

    assert target.tolist() == saved.tolist()


def test_not_strict_loads_what_fits_and_says_what_was_left():
    stored = store({"m": {"a": np.ones(2), "b": np.ones(3), "extra": np.ones(1)}, "gone": {}})
    state = {"m": {"a": np.zeros(2), "b": np.zeros(4), "mine": np.full(1, 5.0)}, "new": [1]}

    plan = load(stored, state, strict=False)

    assert state["m"]["a"].tolist() == [1, 1]
    assert state["m"]["b"].tolist() == [0, 0, 0, 0]
    assert state["m"]["mine"].tolist() == [5]
    assert "extra" not in state["m"]
    assert sorted(line.split(":")[0] for line in plan.skipped) == ["gone", "m.b", "m.extra", "m.mine", "new"]


def test_not_strict_keeps_the_programs_value_where_the_checkpoint_has_another_kind():
    stored = store({"s": {"w": None, "g": 3, "p": Point(1, 2), "n": 1}})
    array, generator = np.ones(2), random.Random(1)
    state = {"s": {"w": array, "g": generator, "p": Config(0.5, array), "n": 0}}
    config = state["s"]["p"]

    plan = load(stored, state, strict=False)

    assert state["s"] == {"w": array, "g": generator, "p": config, "n": 1}
    assert len(plan.skipped) == 3


def test_pickled_parts_need_the_opt_in_even_when_not_strict():
    stored = store({"d": {"u": collections.UserDict(a=1)}}, allow_pickle=True)
    state = {"d": {}}

    (problem,) = problems_of(stored, state, strict=False)
    load(stored, state, allow_pickle=True)

    assert problem.startswith("d.u: a pickled collections.UserDict")
    assert state["d"]["u"] == {"a": 1}


def test_a_failing_load_state_dict_says_which_object_and_that_the_state_is_partly_loaded():
    class Failing:
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            raise KeyError("no")

    stored = store({"o": Failing()})

    with pytest.raises(StateMismatchError, match=r"o: load_state_dict of .*Failing failed: KeyError.*partly loaded"):
        load(stored, {"o": Failing()})


@pytest.mark.parametrize("zeros", [np.zeros, torch.zeros])
def test_an_object_that_clears_itself_before_it_loads_gets_its_values_all_the_same(zeros):
    class Meter:
        def __init__(self):
            self.total = zeros(3)

        def state_dict(self):
            return {"total": self.total}

        def load_state_dict(self, state):
            self.total[:] = 0
            self.total += state["total"]

    saved, meter = Meter(), Meter()
    saved.total += 5

    load(store({"meter": saved}), {"meter": meter})

    assert meter.total.tolist() == [5.0, 5.0, 5.0]


def test_accelerator_like_tensors_are_loaded_through_a_buffer():
    saved = torch.tensor([1 + 2j, 3 + 4j])
    stored = store({"c": saved})
    target = torch.zeros(2, dtype=torch.complex64)

    load(stored, {"c": target.conj()})

    assert torch.equal(target, saved.conj().resolve_conj())


@pytest.mark.parametrize(
    "value", [3, "text", (1, 2), None, frozenset(), Frozen(1), jnp.zeros(2), np.float32(1)], ids=str
)
def test_what_could_never_be_restored_in_place_is_refused_from_the_start(value):
    with pytest.raises(UsageError) as caught:
        check_restorable({"x": value})

    assert "x" in caught.value.message
    assert "dict" in caught.value.hint


def test_a_read_only_array_is_refused_from_the_start():
    array = np.zeros(2)
    array.flags.writeable = False

    with pytest.raises(UsageError, match="read-only"):
        check_restorable({"x": array})


def test_what_can_be_restored_is_accepted():
    check_restorable(
        {
            "a": np.zeros(1),
            "b": torch.zeros(1),
            "c": {},
            "d": [],
            "e": Config(1, np.zeros(1)),
            "f": torch.nn.Linear(1, 1),
            "g": np.random.default_rng(),
            "h": random.Random(1),
            "i": collections.deque(),
        }
    )


def test_a_value_of_another_kind_takes_the_place_of_a_container():
    saved = {"a": slice(1), "b": frozenset({1}), "c": b"x", "d": [1], "e": {1: 2}}
    state = {"s": {"a": {1}, "b": {2}, "c": bytearray(b"y"), "d": {"k": 1}, "e": [1]}}

    load(store({"s": saved}), state)

    assert state["s"] == saved


def test_a_single_difference_is_one():
    with pytest.raises(StateMismatchError, match=r"\(1 difference\), nothing was loaded"):
        load(store({"a": np.zeros(3)}), {"a": np.zeros(4)})
