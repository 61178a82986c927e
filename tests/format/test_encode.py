import collections
import dataclasses
import enum
from typing import NamedTuple

import ml_dtypes
import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load as safetensors_load

from holdfast.core.errors import StateError
from holdfast.core.limits import MAX_DEPTH
from holdfast.format.dtypes import safetensors_type
from holdfast.format.encode import encode_state


def names_of(state):
    return [leaf.name for leaf in encode_state(state).leaves]


def test_leaves_have_the_natural_names_of_a_state_dict():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()

    names = names_of({"model": model, "optimizer": optimizer})

    assert names[:2] == ["model.0.weight", "model.0.bias"]
    assert "optimizer.state[3].exp_avg" in names


def test_odd_keys_are_quoted_so_that_no_two_paths_look_alike():
    array = np.zeros(1)

    names = names_of(
        {"d": {"": array.copy(), "a[0]": array.copy(), 'q"': array.copy(), "\n": array.copy(), (1, 2): array.copy()}}
    )

    assert names == ['d[""]', 'd["a[0]"]', 'd["q\\""]', 'd["\\n"]', "d[(1, 2)]"]


@pytest.mark.parametrize("key", [".", ".a", "a.", "a..b"])
def test_a_key_whose_dots_part_no_steps_is_quoted(key):
    assert names_of({"d": {key: np.zeros(1)}}) == [f'd["{key}"]']
    assert names_of({"d": {"a.b": np.zeros(1)}}) == ["d.a.b"]


def test_a_key_that_safetensors_reserves_is_quoted():
    assert names_of({"__metadata__": np.zeros(1)}) == ['["__metadata__"]']


def test_two_leaves_of_the_same_name_are_refused_naming_both():
    state = {"a.b": np.zeros(1), "a": {"b": np.ones(1)}}

    with pytest.raises(StateError, match=r"'a\.b'") as caught:
        encode_state(state)

    assert "state['a.b']" in str(caught.value)
    assert "state['a']['b']" in str(caught.value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(24).reshape(2, 3, 4).T,
        np.arange(10)[::-2],
        np.array(1.5),
        np.zeros((0, 3)),
        np.array([1 + 2j]),
        np.arange(4).astype(ml_dtypes.bfloat16),
        np.array(["ab", "c"]),
        torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).T,
        torch.zeros(3, dtype=torch.float8_e5m2),
        torch.ones(2, dtype=torch.complex64).conj(),
    ],
    ids=lambda array: f"{type(array).__module__} {array.dtype}",
)
def test_the_real_safetensors_library_reads_what_the_leaf_says(array):
    encoded = encode_state({"w": array})
    (leaf,) = encoded.leaves
    tag, extra = safetensors_type(leaf.dtype)
    content = np.ascontiguousarray(encoded.carriers[0]).tobytes()

    header = msgspec.json.encode(
        {"w": {"dtype": tag, "shape": (*leaf.shape, *extra), "data_offsets": (0, len(content))}}
    )
    loaded = safetensors_load(len(header).to_bytes(8, "little") + header + content)["w"]

    assert tuple(loaded.shape) == (*leaf.shape, *extra)
    assert bytes(loaded.reshape(-1).view(torch.uint8).tolist()) == content


def test_a_carrier_is_the_programs_own_memory_whatever_the_strides():
    for array in (np.zeros((4, 6), np.float32)[::2, ::-3], torch.zeros(4, 6, dtype=torch.bfloat16).T[1:, ::2]):
        (carrier,) = encode_state({"w": array}).carriers

        carrier[...] = 0x3F80  # 1.0 in bfloat16; a tiny float32

        assert bool((array != 0).all())


class Color(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    HIGH = 3


class Point(NamedTuple):
    x: int


class MyDict(dict):
    pass


class MyInt(int):
    pass


@dataclasses.dataclass
class Loose:
    x: int = 1


def test_enum_members_and_named_tuples_are_not_flattened_to_what_they_derive_from():
    tree = encode_state({"v": [Level.HIGH, Color.RED, Point(1)]}).tree

    assert [node["kind"] for node in tree["items"]["v"]] == ["enum", "enum", "namedtuple"]


def loose():
    value = Loose()
    value.y = 2
    return value


def ordered_with_attribute():
    value = collections.OrderedDict()
    value.note = 1
    return value


REFUSED = {
    "function": len,
    "lambda": lambda: None,
    "class": Color,
    "object": object(),
    "subclass of dict": MyDict(a=1),
    "subclass of int": MyInt(3),
    "dataclass with more than its fields": loose(),
    "ordered dict with attributes": ordered_with_attribute(),
    "default dict of a lambda": collections.defaultdict(lambda: 1),
    "masked array": np.ma.masked_array([1, 2], [True, False]),
    "matrix": np.zeros((2, 2)).view(np.matrix),
    "record array": np.zeros(2, [("a", "i4")]).view(np.recarray),
    "objects in a structure": np.zeros(2, [("a", "O")]),
    "function in an object array": np.array([print, 1], object),
    "numpy strings of any length": np.array(["a"], np.dtypes.StringDType()),
    "sparse tensor": torch.eye(3).to_sparse(),
    "sparse tensor of a type that numpy lacks": torch.eye(3, dtype=torch.bfloat16).to_sparse(),
    "tensor in a layout of its own": torch.eye(3).to_mkldnn(),
    "meta tensor": torch.zeros(3, device="meta"),
    "lazy parameter": torch.nn.LazyLinear(3).weight,
    "unknown tensor class": torch.zeros(2).as_subclass(type("Sub", (torch.Tensor,), {})),
    "tensor as a key": {torch.zeros(1): 1},
    "function as a key": {len: 1},
    "generator expression": (i for i in ()),
    "open file": open,
    "memory view": memoryview(b"x"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_represented_is_refused_with_its_path_and_a_way_out(name):
    with pytest.raises(StateError) as caught:
        encode_state({"outer": {"inner": [REFUSED[name]]}})

    assert "outer.inner[0]" in str(caught.value)
    assert "pickle=True" in caught.value.hint


def test_all_refusals_come_in_one_error_with_a_limit():
    with pytest.raises(StateError) as caught:
        encode_state({"bad": [object() for _ in range(50)], "also": {"bad": len}})

    assert str(caught.value).count("]: object") == 20
    assert "and 31 more" in str(caught.value)


def test_a_cycle_is_refused_with_both_places():
    value = {"x": []}
    value["x"].append({"back": value})

    with pytest.raises(StateError, match=r"s\.x\[0\]\.back.*at s$|contains itself, at s"):
        encode_state({"s": value})


def test_an_object_whose_state_holds_itself_is_refused():
    class Own:
        def state_dict(self):
            return {"me": self}

        def load_state_dict(self, state):
            raise AssertionError

    with pytest.raises(StateError, match="contains itself"):
        encode_state({"s": Own()})


def test_the_same_container_twice_is_no_cycle():
    shared = [1, 2]

    tree = encode_state({"s": [shared, shared]}).tree

    assert tree["items"]["s"] == [[1, 2], [1, 2]]


def test_too_deep_a_nesting_is_refused_and_not_a_recursion_error():
    value = []
    for _ in range(MAX_DEPTH + 5):
        value = [value]

    with pytest.raises(StateError, match="deeper than"):
        encode_state({"s": value})


def test_pickle_is_an_opt_in_and_the_paths_are_reported():
    encoded = encode_state({"s": {"f": MyDict(a=1), "g": 3}}, allow_pickle=True)

    assert encoded.pickled == ["s.f"]
    assert [leaf.dtype for leaf in encoded.leaves] == ["uint8"]


def test_what_cannot_even_be_pickled_is_refused_in_spite_of_the_opt_in():
    with pytest.raises(StateError, match="cannot be pickled"):
        encode_state({"s": lambda: None}, allow_pickle=True)


def test_long_bytes_go_into_a_leaf_and_short_ones_into_the_tree():
    encoded = encode_state({"short": b"x" * 4096, "long": b"y" * 4097})

    assert [leaf.name for leaf in encoded.leaves] == ["long"]


def test_sets_are_encoded_in_an_order_that_does_not_depend_on_hashing():
    tree = encode_state({"s": {"b", "a", "c", 2, None}}).tree

    assert tree["items"]["s"]["of"] == ["a", "b", "c", 2, None]


def test_random_state_is_encoded_beside_the_state_and_shares_the_leaves():
    encoded = encode_state({"random": np.zeros(2)}, random={"torch": torch.get_rng_state()})

    assert [leaf.name for leaf in encoded.leaves] == ["random", "<random>.torch"]
