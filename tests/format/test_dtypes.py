import ml_dtypes
import numpy as np
import pytest
import torch

from holdfast.core.errors import FormatError, StateError
from holdfast.format.dtypes import (
    carrier_dtype,
    dtype_name,
    freeze_dtype,
    itemsize,
    numpy_dtype,
    safetensors_type,
    torch_dtype,
    torch_dtype_name,
)
from holdfast.format.encode import encode_state

NATIVE = ["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16"]
OTHER = [">i4", ">f8", "<f16", "<c32", "S7", "U3", ">U3", "V5", "M8[ns]", "m8[25s]", "M8", ">M8[us]"]
STRUCTURED = [
    np.dtype([("a", "<i4"), ("b", "f8", (2, 3)), ("c", [("d", "S3")])]),
    np.dtype({"names": ["x", "y"], "formats": ["u1", "f4"], "offsets": [0, 4], "itemsize": 12}),
    np.dtype([("t", "M8[ms]")], align=True),
]
ADDED = [
    getattr(ml_dtypes, name)
    for name in dir(ml_dtypes)
    if isinstance(getattr(ml_dtypes, name), type) and issubclass(getattr(ml_dtypes, name), np.generic)
]
TORCH = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype) and torch_dtype_name(value)}, key=str
)


@pytest.mark.parametrize("dtype", [*NATIVE, *OTHER, *STRUCTURED, *ADDED], ids=str)
def test_every_numpy_dtype_comes_back_from_its_name(dtype):
    dtype = np.dtype(dtype)

    name = dtype_name(dtype)

    assert numpy_dtype(freeze_dtype(name)) == dtype
    assert itemsize(name) == carrier_dtype(name).itemsize == dtype.itemsize


@pytest.mark.parametrize("dtype", TORCH, ids=str)
def test_every_usable_torch_dtype_comes_back_from_its_name(dtype):
    name = torch_dtype_name(dtype)

    assert torch_dtype(freeze_dtype(name)) is dtype
    assert itemsize(name) == dtype.itemsize


def test_the_torch_dtypes_of_today_are_all_covered():
    assert len(TORCH) >= 21


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bfloat16", ("BF16", ())),
        ("float8_e4m3fn", ("F8_E4M3", ())),
        ("complex64", ("F32", (2,))),
        ("complex128", ("F64", (2,))),
        ("float8_e8m0fnu", ("U8", (1,))),
        ("<U3", ("U8", (12,))),
        (">i4", ("U8", (4,))),
        (("struct", 12, (("x", "uint8", 0),)), ("U8", (12,))),
    ],
)
def test_safetensors_knows_the_type_or_gets_its_bytes(name, expected):
    assert safetensors_type(name) == expected


@pytest.mark.parametrize("dtype", ["O", np.dtype([("a", "O")]), "V0", np.dtypes.StringDType()], ids=str)
def test_types_without_bytes_of_their_own_have_no_name(dtype):
    assert dtype_name(np.dtype(dtype)) is None


HOSTILE = [
    None,
    3,
    "O",
    "|O8",
    "float31",
    "<i3",
    "<U0",
    "os.system",
    "<U999999999999",
    [],
    ["struct", 4],
    ["struct", 4, [["a", "float64", 0]]],
    ["struct", 8, [["a", "float64", -1]]],
    ["struct", 8, [["a", "int8", 0], ["a", "int8", 1]]],
    ["struct", 0, []],
    ["struct", True, []],
    ["sub", "float64", [2**40]],
    ["sub", "float64", [65536, 65536]],
    ["sub", "int8", [-1]],
    ["sub", "int8", [0]],
    [
        "sub",
        [
            "sub",
            ["sub", ["sub", ["sub", ["sub", ["sub", ["sub", ["sub", "int8", [1]], [1]], [1]], [1]], [1]], [1]], [1]],
            [1],
        ],
        [1],
    ],
    "<M8[lightyears]",
]


def nested(depth):
    dtype = np.dtype("f4")
    for _ in range(depth):
        dtype = np.dtype([("inner", dtype)])
    return dtype


@pytest.mark.parametrize("depth", range(1, 12))
def test_a_structure_has_a_name_only_where_the_name_can_be_read(depth):
    name = dtype_name(nested(depth))

    assert (name is not None) == (depth <= 8)
    assert name is None or numpy_dtype(freeze_dtype(name)) == nested(depth)


@pytest.mark.parametrize("value", [np.zeros(2, nested(9)), np.zeros(2, nested(9))[0], nested(9)], ids=type)
def test_a_structure_that_is_nested_too_deep_is_refused_by_its_path(value):
    with pytest.raises(StateError, match="deep: ") as caught:
        encode_state({"deep": value})

    assert "8 deep" in str(caught.value) or "too deep" in str(caught.value)


def test_a_structure_whose_fields_have_titles_is_refused_because_they_would_be_lost():
    titled = np.dtype({"names": ["a", "b"], "formats": ["i4", "f8"], "titles": ["first", "second"]})

    with pytest.raises(StateError, match="x: "):
        encode_state({"x": np.zeros(2, titled)})


@pytest.mark.parametrize("dtype", HOSTILE, ids=lambda value: str(value)[:30])
def test_a_dtype_that_makes_no_sense_is_a_format_error(dtype):
    with pytest.raises(FormatError):
        numpy_dtype(freeze_dtype(dtype))
