"""The outline of a tree, without building it."""

import datetime as dt
import math
from pathlib import PurePosixPath

import numpy as np
import pytest

from holdfast.engine.outline import outline, path_steps, value_text
from holdfast.format.encode import encode_state


def _texts(state):
    return {entry.path: value_text(entry.node) for entry in outline(encode_state(state).tree) if entry.leaf is None}


def test_arrays_and_values_come_with_their_paths():
    state = {"model": {"w": np.ones(2), "layers": [np.ones(3), {"b": np.ones(1)}]}, "n": {"step": 3, (1, 2): "x"}}

    encoded = encode_state(state)
    entries = {entry.path: entry for entry in outline(encoded.tree)}

    assert set(entries) == {"model.w", "model.layers[0]", "model.layers[1].b", "n.step", "n[(1, 2)]"}
    assert [encoded.leaves[entries[name].leaf].name for name in ("model.w", "model.layers[1].b")] == [
        "model.w",
        "model.layers[1].b",
    ]


def test_values_are_told_in_a_few_words():
    state = {
        "a": {
            "inf": math.inf,
            "big": 10**40,
            "path": PurePosixPath("/x"),
            "time": dt.timedelta(seconds=3),
            "bytes": b"abc",
            "many": list(range(1000)),
            "none": None,
            "empty": {},
            "rng": np.random.default_rng(1),
            "long": "x" * 500,
        }
    }

    found = _texts(state)

    assert found["a.inf"] == "inf"
    assert found["a.path"] == "PurePosixPath('/x')"
    assert found["a.bytes"] == "bytes of 3 bytes"
    assert found["a.many"] == "list of 1000: 0, 1, 2, 3, 4, …"
    assert found["a.empty"] == "empty dict"
    assert found["a.rng"] == "state of a numpy_generator"
    assert len(found["a.long"]) == 60


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ("model.layers.0.weight", ["model", "layers", "0", "weight"]),
        ("optimizer.state[3].exp_avg", ["optimizer", "state", "[3]", "exp_avg"]),
        ('x["odd [key]"].y', ["x", '["odd [key]"]', "y"]),
        ("x[(1, 2)][0]", ["x", "[(1, 2)]", "[0]"]),
        ('["a\\"]b"]', ['["a\\"]b"]']),
        ("", []),
        ("broken[", ["broken", "["]),
    ],
)
def test_a_path_is_cut_into_its_steps(path, steps):
    assert path_steps(path) == steps
