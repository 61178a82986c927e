"""The states behind the golden files: what every reader of format 1 must get out of them, for ever."""

import collections
import dataclasses
import datetime as dt
import enum
import math
import pathlib
import random
from typing import NamedTuple

import numpy as np
import torch

import holdfast


class Point(NamedTuple):
    x: int
    y: float


@dataclasses.dataclass
class Settings:
    rate: float
    layers: list[int]


class Colour(enum.Enum):
    RED = 1
    BLUE = "blue"


def register_classes() -> None:
    for kind in (Point, Settings, Colour):
        holdfast.register(kind)


def example() -> dict[str, object]:
    """The worked example of docs/format.md."""
    return {"w": np.arange(3, dtype=np.float32), "progress": {"step": 3, "loss": [0.5, math.nan]}}


def plain() -> dict[str, object]:
    """Every kind of plain value."""
    return {
        "scalars": {
            "none": None,
            "flags": [True, False],
            "ints": [0, -1, 2**53, -(2**53) - 1, 10**40],
            "floats": [0.0, -0.0, 1.5, 5e-324, math.inf, -math.inf, math.nan],
            "complex": complex(-0.0, math.inf),
            "text": "naïve – \U0001f30a",
            "surrogate": "\ud800",
            "bytes": b"\x00\xff",
            "long bytes": bytes(range(256)) * 20,
            "bytearray": bytearray(b"abc"),
        },
        "containers": {
            "tuple": (1, (2, ())),
            "set": {1, 2, 3},
            "frozenset": frozenset({"a", "b"}),
            "deque": collections.deque([1, 2], maxlen=5),
            "ordered": collections.OrderedDict([("b", 1), ("a", 2)]),
            "default": collections.defaultdict(list, {"k": [1]}),
            "keys": {1: "int", (1, "a"): "tuple", None: "none", 2.5: "float", b"k": "bytes", True is False: "bool"},
        },
        "classes": {"point": Point(1, 2.5), "settings": Settings(0.1, [1, 2]), "colours": [Colour.RED, Colour.BLUE]},
        "times": {
            "datetime": dt.datetime(2026, 11, 15, 18, 42, 1, 250, tzinfo=dt.UTC),
            "naive": dt.datetime(2026, 3, 29, 2, 30, fold=1),
            "date": dt.date(2026, 11, 15),
            "delta": dt.timedelta(days=-1, microseconds=1),
        },
        "paths": {"posix": pathlib.PurePosixPath("/a/b"), "windows": pathlib.PureWindowsPath("C:/a")},
    }


def arrays() -> dict[str, object]:
    """numpy arrays of every kind, scalars, dtypes and generators."""
    base = np.arange(24, dtype=np.int16)
    structured = np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "<i4"), ("b", "<f8")])
    return {
        "dtypes": {
            name: np.arange(3).astype(name)
            for name in (
                "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64 complex64 complex128"
            ).split()
        },
        "odd": {
            "big endian": np.arange(3, dtype=">f4"),
            "text": np.array(["ab", "c"]),
            "bytes": np.array([b"ab", b"c"]),
            "time": np.array(["2026-11-15"], dtype="datetime64[D]"),
            "structured": structured,
            "objects": np.array([1, "a", None], dtype=object),
        },
        "shapes": {
            "scalar": np.array(7.0),
            "empty": np.zeros((0, 3)),
            "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
            "strided": np.arange(10)[::3],
            "reversed": np.arange(4)[::-1],
        },
        "shared": {"whole": base, "same": base, "part": base[4:10:2], "turned": base.reshape(4, 6).T},
        "numpy": {"scalar": np.float32(1.5), "dtype": np.dtype("<f4")},
        "generators": {
            "pcg": np.random.default_rng(7),
            "mt": np.random.RandomState(7),
            "python": random.Random(7),
        },
    }


def tensors() -> dict[str, object]:
    """torch tensors of every dtype, layouts, tied weights, and what torch keeps beside tensors."""
    kinds = (
        "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64 complex64 complex128"
        " float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz"
    )
    weight = torch.arange(6.0).reshape(2, 3)
    return {
        "dtypes": {name: torch.arange(3).to(getattr(torch, name)) for name in kinds.split()},
        "tied": {"embedding": weight, "head": weight, "turned": weight.T, "row": weight[1]},
        "layouts": {
            "channels last": torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
            "empty": torch.zeros(0, 2),
            "scalar": torch.tensor(7, dtype=torch.int32),
            "strided": torch.arange(10)[::3],
        },
        "others": {"dtype": torch.bfloat16, "device": torch.device("cpu"), "size": torch.Size([2, 3])},
    }


STATES = {"example": example, "plain": plain, "arrays": arrays, "tensors": tensors}
