import collections
import dataclasses
import datetime as dt
import enum
import math
import pathlib
import random
import struct
import sys
import zoneinfo
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

from holdfast.core.errors import FormatError, NoCheckpointError, StateError, StateMismatchError
from holdfast.core.limits import MAX_DEPTH
from holdfast.format.decode import build
from holdfast.format.registry import Record, register
from tests.format.test_dtypes import ADDED, NATIVE, OTHER, STRUCTURED, TORCH
from tests.format.trips import bits, fill, round_trip, store


class Mode(enum.Enum):
    TRAIN = "train"
    EVAL = (1, 2)


class Level(enum.IntEnum):
    LOW = 1


class Name(enum.StrEnum):
    A = "a"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: object = None


@dataclasses.dataclass
class Config:
    lr: float
    layers: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: int
    b: np.ndarray


BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
PLAIN = [
    None,
    True,
    0,
    -(2**53),
    2**53 + 1,
    -(2**64),
    3**20_000,
    1.0,
    -0.0,
    0.1,
    5e-324,
    1.7976931348623157e308,
    1e22,
    math.inf,
    -math.inf,
    2j,
    complex(-0.0, math.inf),
    "",
    "text",
    "\0\n\u2028 \U0001f980",
    "lone \ud800 surrogate \udfff",
    b"",
    bytes(range(256)),
    b"long" * 5000,
    bytearray(b"mutable"),
    bytearray(b"long" * 5000),
    (),
    (1, (2, [3])),
    [],
    [[], {}, ()],
    {},
    {"a": 1, "": 2, "kind": "dict", "\ud800": 3},
    {1: "int", "1": "str", None: 0, 2.5: 1, False: 2, b"b": 3, (1, ("a", 2**70)): 4, frozenset({1}): 5},
    {math.inf: 1, "z": 2, "a": 3},
    set(),
    {1, "a", None, (1, 2), 2**100, b"x"},
    frozenset({frozenset({1}), "x"}),
    collections.deque([1, 2, [3]]),
    collections.deque([1, 2], maxlen=2),
    collections.deque([1], maxlen=sys.maxsize),
    collections.OrderedDict([("b", 1), ("a", 2)]),
    collections.defaultdict(list, {"a": [1]}),
    collections.defaultdict(None, {"a": 1}),
    collections.Counter("abca"),
    range(3),
    range(10, -(2**70), -3),
    slice(1, None, -2),
    ...,
    dt.date(1, 1, 1),
    dt.datetime(2026, 11, 15, 18, 42, 1, 999_999),
    dt.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN),
    dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=-3, microseconds=5), "here")),
    dt.time(1, 2, 3, fold=1),
    dt.time(1, 2, tzinfo=dt.timezone(dt.timedelta(minutes=90))),
    dt.timedelta(days=-3, microseconds=1),
    dt.UTC,
    BERLIN,
    pathlib.Path("/tmp/x"),
    pathlib.PurePosixPath("a/b"),
    pathlib.PureWindowsPath("C:\\x"),
    pathlib.Path("non-utf8-\udcff"),
    np.float32(1.5),
    np.int64(-1),
    np.bool_(True),
    np.complex64(1 + 2j),
    np.longdouble("0.1"),
    np.datetime64("2026-11-15T00:00:00.123"),
    np.timedelta64(5, "D"),
    np.str_("text"),
    np.str_(""),
    np.bytes_(b"by"),
    ml_dtypes.bfloat16(1.5),
    np.dtype("float32"),
    np.dtype("O"),
    np.dtype(ml_dtypes.float8_e4m3fn),
    np.dtype([("a", ">i4"), ("b", "U3", (2,))]),
    torch.float8_e5m2,
    torch.quint8,
    torch.device("cpu"),
    torch.device("cuda:3"),
    torch.Size([1, 2]),
    torch.Size([-1, 3, 2**63 - 1]),
    torch.Size(range(70)),
    [1, {"a": (2, {"b": {3}})}],
]


def alike(one, other):
    """Equal in value, type and order, all the way down; nan is nan if its bits are."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, complex):
        return alike(one.real, other.real) and alike(one.imag, other.imag)
    if isinstance(one, dict):
        same = len(one) == len(other) and all(
            alike(a, b) for pair in zip(one.items(), other.items(), strict=True) for a, b in zip(*pair, strict=True)
        )
        return same and getattr(one, "default_factory", 0) == getattr(other, "default_factory", 0)
    if isinstance(one, list | tuple | collections.deque):
        lengths = len(one) == len(other) and getattr(one, "maxlen", 0) == getattr(other, "maxlen", 0)
        return lengths and all(alike(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, dt.datetime | dt.time):
        zones = str(one.tzinfo) == str(other.tzinfo) and type(one.tzinfo) is type(other.tzinfo)
        return zones and one.replace(tzinfo=None) == other.replace(tzinfo=None) and one.fold == other.fold
    if isinstance(one, np.generic):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    return bool(one == other)


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: type(value).__name__)
def test_every_plain_value_comes_back_as_it_was(value):
    assert alike(round_trip(value), value)


@pytest.mark.parametrize("data", [bytes(range(256)) * 20, bytearray(range(256)) * 20], ids=["bytes", "bytearray"])
@pytest.mark.parametrize(
    "view",
    [
        lambda data: [np.frombuffer(data, "f4"), data],
        lambda data: [data, np.frombuffer(data, "f4")],
        lambda data: [data, np.frombuffer(data, "u1"), data],
        lambda data: [np.frombuffer(data, "u1")[10:], np.frombuffer(data, "f4")[:-4], data],
        lambda data: [np.frombuffer(data, "u1")[::-2], data],
    ],
)
def test_bytes_whose_memory_is_seen_by_arrays_come_back_as_they_were(data, view):
    values = view(data)

    loaded = round_trip(values)

    for before, after in zip(values, loaded, strict=True):
        assert type(before) is type(after)
        assert bytes(before) == bytes(after)


def test_the_same_bytes_twice_are_stored_once():
    data = bytes(5000)

    assert len(store({"a": data, "b": data}).leaves) == 1


@pytest.mark.parametrize("pattern", [0x7FF8000000000000, 0x7FF8DEADBEEF0001, 0xFFF0000000000001, 0x7FF0000000000001])
def test_every_nan_keeps_its_bits(pattern):
    (value,) = struct.unpack(">d", pattern.to_bytes(8, "big"))

    assert struct.pack(">d", round_trip([value])[0]) == struct.pack(">d", value)


SHAPES = [(), (0,), (3,), (2, 0, 3), (2, 3, 4)]


@pytest.mark.parametrize("dtype", [*NATIVE, *OTHER, *STRUCTURED, *ADDED], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_numpy_arrays_of_every_dtype_and_shape_keep_every_bit(dtype, shape):
    dtype = np.dtype(dtype)
    count = math.prod(shape) * dtype.itemsize
    array = np.frombuffer(np.random.default_rng(3).bytes(count), np.uint8).copy()
    if dtype.kind in "bU":  # not every pattern is a truth value or a character
        array &= 1
    array = array.view(dtype).reshape(shape) if count else np.zeros(shape, dtype)

    loaded = round_trip(array)

    assert (loaded.dtype, loaded.shape) == (dtype, shape)
    assert bits(loaded) == bits(array)
    assert loaded.flags.writeable


@pytest.mark.parametrize("dtype", TORCH, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tensors_of_every_dtype_and_shape_keep_every_bit(dtype, shape):
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (math.prod(shape) * dtype.itemsize,), dtype=torch.uint8)
    tensor = raw.view(dtype).reshape(shape)

    loaded = round_trip(tensor)

    assert (loaded.dtype, loaded.shape) == (dtype, tensor.shape)
    assert bytes(loaded.reshape(-1).view(torch.uint8).tolist()) == bytes(raw.tolist())


LAYOUTS = {
    "C": np.arange(24.0).reshape(2, 3, 4),
    "Fortran": np.asfortranarray(np.arange(24.0).reshape(2, 3, 4)),
    "axes turned": np.arange(24.0).reshape(2, 3, 4).transpose(1, 2, 0),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_order_of_memory_comes_back(name):
    array = LAYOUTS[name]

    loaded = round_trip(array)

    assert loaded.strides == array.strides
    assert np.array_equal(loaded, array)


def test_channels_last_comes_back():
    tensor = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)

    loaded = round_trip(tensor)

    assert loaded.stride() == tensor.stride()
    assert torch.equal(loaded, tensor)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(10)[::-3],
        np.arange(24).reshape(4, 6)[::2, 1::2],
        np.lib.stride_tricks.sliding_window_view(np.arange(9), 3),
    ],
    ids=["negative", "strided", "windows"],
)
def test_strided_arrays_keep_their_values(array):
    assert np.array_equal(round_trip(array), array)


def test_a_read_only_and_a_memory_mapped_array_are_plain_arrays_again(tmp_path):
    frozen = np.arange(3.0)
    frozen.flags.writeable = False
    mapped = np.memmap(tmp_path / "m", np.int16, "w+", shape=(4,))
    mapped[:] = 7

    loaded, loaded_mapped = round_trip([frozen, mapped])

    assert np.array_equal(loaded, frozen)
    assert type(loaded_mapped) is np.ndarray
    assert np.array_equal(loaded_mapped, mapped)


def test_tensors_keep_that_they_need_a_gradient_and_are_parameters():
    tensor, parameter = round_trip([torch.ones(2, requires_grad=True), torch.nn.Parameter(torch.ones(2), False)])

    assert tensor.requires_grad
    assert type(parameter) is torch.nn.Parameter
    assert not parameter.requires_grad


def test_conjugated_and_negated_views_are_resolved():
    tensor = torch.tensor([1 + 2j, 3 - 4j])

    conjugate, negated = round_trip([tensor.conj(), tensor.conj().imag])

    assert torch.equal(conjugate, tensor.conj().resolve_conj())
    assert torch.equal(negated, torch.tensor([-2.0, 4.0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_view_that_is_negated_when_it_is_read_is_resolved_also_where_numpy_lacks_the_type(dtype):
    tensor = torch.tensor([1.0, -2.0]).to(dtype)

    (negated,) = round_trip([torch._neg_view(tensor)])

    assert negated.dtype == dtype
    assert negated.float().tolist() == [-1.0, 2.0]


def test_object_arrays_of_plain_values_come_back():
    array = np.empty((2, 2), object)
    array[:] = [[1, "a"], [None, 2.5]]
    array[1, 1] = [np.arange(3)]

    loaded = round_trip(array)

    assert loaded.shape == (2, 2)
    assert loaded[0].tolist() == [1, "a"]
    assert np.array_equal(loaded[1, 1][0], np.arange(3))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float8_e4m3fn", "bool", "complex64", "int4"])
def test_jax_arrays_come_back_as_jax_arrays(dtype):
    array = jnp.arange(6).reshape(2, 3).astype(dtype)

    loaded = round_trip({"w": array})["w"]

    assert isinstance(loaded, jax.Array)
    assert loaded.dtype == array.dtype
    assert bits(loaded) == bits(array)


def test_random_keys_of_jax_go_on_where_they_were():
    key = jax.random.key(7)

    loaded = round_trip(key)

    assert jax.random.key_impl(loaded) == jax.random.key_impl(key)
    assert jax.random.bits(loaded) == jax.random.bits(key)


@pytest.mark.parametrize("name", ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"])
def test_numpy_generators_go_on_where_they_were(name):
    generator = np.random.Generator(getattr(np.random, name)(5))
    generator.random(3, np.float32)
    generator.spawn(2)

    loaded = round_trip(generator)

    assert loaded.random(3, np.float32).tolist() == generator.random(3, np.float32).tolist()
    assert loaded.normal(size=5).tolist() == generator.normal(size=5).tolist()
    assert loaded.spawn(1)[0].random() == generator.spawn(1)[0].random()


@pytest.mark.parametrize(
    "seed",
    [5, [], (1, 2**70), range(3), [[1, 2], 3], ["0x1f", "12"], np.arange(4).reshape(2, 2), np.int64(4)],
    ids=repr,
)
def test_a_numpy_generator_of_any_seed_goes_on_and_spawns_as_before(seed):
    generator = np.random.default_rng(seed)
    generator.random(3)

    loaded = round_trip(generator)

    assert loaded.random() == generator.random()
    assert loaded.spawn(1)[0].random() == generator.spawn(1)[0].random()


@pytest.mark.parametrize(
    "seed",
    [{"entropy": range(20_000)}, {"entropy": 1 << 20_000}, {"entropy": 1, "spawn_key": range(20_000)}],
    ids=["many numbers", "a large number", "a long key"],
)
def test_a_numpy_generator_with_a_large_seed_goes_on_and_spawns_as_before(seed):
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(**seed)))

    loaded = round_trip(generator)

    assert loaded.random() == generator.random()
    assert loaded.spawn(1)[0].random() == generator.spawn(1)[0].random()


@pytest.mark.parametrize(
    "seed",
    [{"entropy": range(1_000_001)}, {"entropy": 1 << 65_536}, {"entropy": 1, "pool_size": 1025}],
    ids=["too many numbers", "too large a number", "too large a pool"],
)
def test_a_numpy_generator_whose_seed_could_not_be_read_again_is_refused_when_it_is_saved(seed):
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(**seed)))

    with pytest.raises(StateError, match="a seed"):
        round_trip(generator)


def test_legacy_and_python_generators_go_on_where_they_were():
    legacy, python = np.random.RandomState(3), random.Random(4)
    legacy.normal()
    python.gauss(0, 1)

    loaded_legacy, loaded_python = round_trip([legacy, python])

    assert loaded_legacy.normal(size=4).tolist() == legacy.normal(size=4).tolist()
    assert loaded_python.gauss(0, 1) == python.gauss(0, 1)
    assert loaded_python.random() == python.random()


def test_torch_generators_go_on_where_they_were():
    generator = torch.Generator().manual_seed(3)
    torch.rand(5, generator=generator)

    loaded = round_trip(generator)

    assert torch.equal(torch.rand(5, generator=loaded), torch.rand(5, generator=generator))


USER_OBJECTS = [
    Mode.TRAIN,
    Mode.EVAL,
    Level.LOW,
    Name.A,
    Access.READ,
    Access.READ | Access.WRITE,
    Access(0),
    Point(1, [2]),
    Config(0.1, [1, 2]),
]


@pytest.mark.parametrize("value", USER_OBJECTS, ids=str)
def test_user_classes_are_rebuilt_from_the_class_at_the_same_place(value):
    loaded = round_trip([value], like=[value])[0]

    assert type(loaded) is type(value)
    assert loaded == value


def test_a_frozen_dataclass_with_slots_is_rebuilt_too():
    loaded = round_trip(Frozen(1, np.arange(3)), like=Frozen(0, np.zeros(1)))

    assert type(loaded) is Frozen
    assert loaded.b.tolist() == [0, 1, 2]


def test_the_constructor_of_a_dataclass_does_not_run():
    @dataclasses.dataclass
    class Loud:
        x: int

        def __post_init__(self):
            calls.append(self.x)

    calls = []
    value = Loud(1)

    round_trip(value, like=value)

    assert calls == [1]


def test_unknown_classes_load_as_records_that_keep_the_name():
    loaded = round_trip([Config(0.1), Point(1, 2), Mode.TRAIN, {Mode.EVAL: 1}])

    assert loaded[0] == Record(f"{__name__}.Config", "dataclass", [("lr", 0.1), ("layers", [])])
    assert loaded[1]["x"] == 1
    assert (loaded[2].type_name, loaded[2]["member"]) == (f"{__name__}.Mode", "TRAIN")
    assert next(iter(loaded[3]))["member"] == "EVAL"


def test_records_are_saved_as_what_they_stand_for():
    values = [Config(0.1), Point(1, 2), Mode.TRAIN, Access.READ | Access.WRITE]

    again = round_trip(round_trip(values), like=values)

    assert again == values


def test_registered_classes_are_rebuilt_anywhere():
    @dataclasses.dataclass
    class Known:
        x: int

    register(Known, name="my.Known")

    assert round_trip([Known(3)]) == [Known(3)]


def test_register_works_as_a_decorator_with_and_without_a_name():
    @register
    class One(enum.Enum):
        A = 1

    @register(name="my.Two")
    class Two(enum.Enum):
        A = 1

    assert round_trip({One.A: Two.A}) == {One.A: Two.A}


def test_enum_keys_take_the_class_from_the_programs_keys():
    assert round_trip({Mode.TRAIN: 1, Mode.EVAL: 2}, like={Mode.EVAL: 0}) == {Mode.TRAIN: 1, Mode.EVAL: 2}


def test_a_class_whose_fields_changed_is_a_problem_that_says_so():
    @dataclasses.dataclass
    class Config:
        lr: float
        depth: int

    stored = store({"c": Config(1.0, 2)})
    del Config.__dataclass_fields__["depth"]

    with pytest.raises(StateMismatchError, match="depth"):
        build(stored.tree, stored.leaves, like={"c": Config(1.0, 2)})


def test_the_metadata_of_a_modules_state_dict_comes_back():
    state = torch.nn.BatchNorm1d(2).state_dict()

    assert round_trip(state)._metadata == state._metadata


def test_numpy_form_needs_no_torch():
    loaded = round_trip(
        {"t": torch.ones(2, dtype=torch.bfloat16), "d": torch.float32, "s": torch.Size([2]), "j": jnp.ones(2)},
        arrays="numpy",
    )

    assert loaded["t"].dtype == ml_dtypes.bfloat16
    assert isinstance(loaded["j"], np.ndarray)
    assert loaded["d"] == Record("torch.dtype", "torch_dtype", [("name", "float32")])
    assert loaded["s"] == (2,)


def test_pickled_parts_load_only_with_the_opt_in():
    stored = store({"a": {"f": collections.UserDict(x=1)}}, allow_pickle=True)

    with pytest.raises(StateMismatchError, match=r"a\.f") as caught:
        build(stored.tree, stored.leaves)

    assert "pickle=True" in caught.value.hint
    assert round_trip(collections.UserDict(x=1), allow_pickle=True) == {"x": 1}


def only(state, path):
    stored = store(state)
    plan = build(stored.tree, stored.leaves, only=path)
    fill(plan, stored)
    return plan.value(), [stored.leaves[d.leaf].name for d in plan.destinations]


STATE = {"model": torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)), "o": {"s": [1, {3: np.ones(2)}]}}


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("model.0.weight", ["model.0.weight"]),
        ("model.1", ["model.1.weight", "model.1.bias"]),
        ("o.s[1][3]", ["o.s[1][3]"]),
        ("o.s", ["o.s[1][3]"]),
    ],
)
def test_one_part_can_be_loaded_without_reading_the_rest(path, names):
    _, read = only(STATE, path)

    assert read == names


def test_a_name_that_begins_like_another_is_not_taken_for_it():
    value, _ = only({"a": {"x": 1}, "ab": 2, "a.c": 3}, "ab")

    assert value == 2


def test_a_prefix_of_dotted_keys_gives_what_follows_it():
    value, _ = only(STATE, "model.1")

    assert set(value) == {"weight", "bias"}


@pytest.mark.parametrize("path", ["model.wait", "models", "o.s[7]", "model.0.weigh", "", "o.s[1][3].x"])
def test_an_unknown_part_is_refused_with_what_is_there(path):
    if path == "":
        assert set(only(STATE, "")[0]) == {"model", "o"}
        return
    with pytest.raises(NoCheckpointError, match="has no"):
        only(STATE, path)


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


def test_the_deepest_state_that_can_be_saved_can_be_loaded():
    assert round_trip(nested(MAX_DEPTH - 1)) == nested(MAX_DEPTH - 1)


def test_nothing_named_in_the_data_is_imported_or_run():
    stored = store({"c": Config(0.1, []), "p": Point(1), "m": {Mode.TRAIN: Level.LOW}})
    text = str(stored.tree).replace(__name__, "antigravity")
    tree = eval(text, {"nan": math.nan})  # our own text
    seen = []
    watching = [True]
    sys.addaudithook(lambda event, args: seen.append((event, args[:1])) if watching else None)

    build(tree, stored.leaves).value()
    watching.clear()

    bad = [
        entry for entry in seen if entry[0] in ("import", "exec", "compile", "pickle.find_class", "open", "os.system")
    ]
    assert bad == []
    assert "antigravity" not in sys.modules


def array_node(**fields):
    return {"kind": "array", "leaf": 0, **fields}


HOSTILE = [
    {"kind": "nonsense"},
    {"kind": None},
    {"kind": ["dict"]},
    {},
    {"kind": "dict"},
    {"kind": "dict", "items": []},
    {"kind": "dict", "pairs": [[1]]},
    {"kind": "dict", "pairs": [[[1], 2]]},
    {"kind": "dict", "pairs": [[{"kind": "array", "leaf": 0}, 2]]},
    {"kind": "dict", "pairs": [[1, 2], [1, 3]]},
    {"kind": "set", "of": [[1]]},
    {"kind": "tuple", "of": 3},
    {"kind": "deque", "of": [1, 2], "maxlen": 1},
    {"kind": "deque", "of": [], "maxlen": 2**80},
    {"kind": "default_dict", "items": {}, "factory": "eval"},
    {"kind": "int", "hex": "12"},
    {"kind": "int", "hex": "0x"},
    {"kind": "int", "hex": 5},
    {"kind": "float", "bits": "7ff"},
    {"kind": "complex", "real": 1, "imag": 0.0},
    {"kind": "bytes", "base64": "*"},
    {"kind": "bytes", "leaf": 0},
    {"kind": "bytes", "leaf": 2, "view": {}},
    {"kind": "array", "leaf": 0, "part": 3},
    {"kind": "array", "leaf": 0, "part": {"of": None, "offset": 0, "strides": [24, 8]}},
    {"kind": "array", "leaf": 0, "part": {"of": 0, "offset": -1, "strides": [24, 8]}},
    {"kind": "array", "leaf": 0, "part": {"of": 0, "offset": 0, "strides": [24]}},
    {"kind": "array", "leaf": 0, "part": {"of": 0, "offset": 0, "strides": [24, 2**70]}},
    {"kind": "str", "base64": "/w=="},
    {"kind": "range", "of": [1, 2, 0]},
    {"kind": "slice", "of": [1]},
    {"kind": "path", "class": "Popen", "text": "x"},
    {"kind": "date", "iso": "tomorrow"},
    {"kind": "datetime", "iso": "2026-01-01", "tz": 3},
    {"kind": "datetime", "iso": "2026-01-01", "fold": 7},
    {"kind": "timedelta", "of": [2**70, 0, 0]},
    {"kind": "timezone", "offset": {"of": [99, 0, 0]}},
    {"kind": "zoneinfo", "key": "../../etc/passwd"},
    {"kind": "zoneinfo", "key": "Not/There"},
    {"kind": "numpy_scalar", "dtype": "float32", "base64": ""},
    {"kind": "numpy_scalar", "dtype": "|O", "base64": "AAAAAAAAAAA="},
    {"kind": "torch_dtype", "name": "load"},
    {"kind": "torch_dtype", "name": "__class__"},
    {"kind": "torch_device", "name": "nowhere:1"},
    {"kind": "torch_size", "of": [2**63]},
    {"kind": "enum", "type": 3, "member": "A"},
    {"kind": "enum", "type": "a.B", "member": 3},
    {"kind": "dataclass", "type": "a.B", "fields": []},
    {"kind": "object_array", "shape": [2**35, 2**35], "of": []},
    {"kind": "object_array", "shape": [-1], "of": []},
    {"kind": "python_random", "version": 3, "words": "AAAA", "gauss": None},
    {"kind": "numpy_generator", "state": {"bit_generator": "eval"}},
    {"kind": "torch_generator", "device": "cpu", "base64": "AAAA"},
    {"kind": "pickle", "type": "os.system", "leaf": 99},
    array_node(leaf=-1),
    array_node(leaf=3),
    array_node(leaf=True),
    array_node(leaf=10**30),
    array_node(order=[0]),
    array_node(order=[0, 0]),
    array_node(order=[1, 2]),
    array_node(view={}),
    array_node(view={"dtype": "float64", "shape": [2], "offset": 44, "strides": [8]}),
    array_node(view={"dtype": "float64", "shape": [7], "offset": 0, "strides": [8]}),
    array_node(view={"dtype": "float64", "shape": [2], "offset": 0, "strides": [-8]}),
    array_node(view={"dtype": "float64", "shape": [2**59], "offset": 0, "strides": [0]}),
    array_node(view={"dtype": "O", "shape": [1], "offset": 0, "strides": [8]}),
    array_node(view={"dtype": "float64", "shape": [1], "offset": -8, "strides": [8]}),
    array_node(view={"dtype": "float64", "shape": [1, 2], "offset": 0, "strides": [8]}),
    {"kind": "tensor", "leaf": 1},
    {"kind": "tensor", "leaf": 0, "grad": 1},
    {"kind": "tensor", "leaf": 2, "grad": True},
    {"kind": "jax_key", "impl": "evil", "data": {"kind": "jax", "leaf": 0}},
    nested(MAX_DEPTH + 10),
    {"kind": "state", "state": {"kind": "state", "state": {"kind": "?"}}},
]
LEAVES = [("a", "float64", (2, 3)), ("b", "<U3", (1,)), ("c", "uint8", (3,))]


@pytest.mark.parametrize("node", HOSTILE, ids=lambda node: f"{node!r:.60}")
def test_a_malformed_node_is_a_format_error(node):
    from holdfast.format.arrays import LeafInfo

    leaves = [LeafInfo(*leaf) for leaf in LEAVES]

    with pytest.raises(FormatError):
        build({"kind": "dict", "items": {"v": node}}, leaves, allow_pickle=True).value()


@pytest.mark.parametrize(
    "change", [{"pos": 625}, {"pos": -1}, {"key": [2**32] * 624}, {"key": [0]}, {"key": ["a"] * 624}]
)
def test_a_generator_state_that_would_read_foreign_memory_is_refused(change):
    stored = store({"g": np.random.RandomState(0)})
    stored.tree["items"]["g"]["state"]["state"].update(change)

    with pytest.raises(FormatError):
        build(stored.tree, [])


@pytest.mark.parametrize(
    "leaf", [("a", "float64", (-1,)), ("a", "float64", (2**40, 2**40)), ("a", "x", ()), ("a", "int8", (True,))]
)
def test_a_malformed_leaf_is_a_format_error_before_anything_is_allocated(leaf):
    from holdfast.format.arrays import LeafInfo

    with pytest.raises(FormatError):
        LeafInfo(*leaf)
