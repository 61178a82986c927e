"""Traces: written point by point, followed at the pace of another program; digests that are equal for equal bits."""

import numpy as np
import torch

from holdfast.engine.evidence import Point
from holdfast.engine.traces import Reference, Trace, differing, leaf_texts, metric_bits, order_texts, versions
from holdfast.format.encode import encode_state


def texts(**state):
    return leaf_texts(encode_state(state))


def write(path, *points):
    trace = Trace(str(path))
    for point in points:
        trace.write(point)
    return Reference(str(path))


def step(number, leaves, *, run="run", kind="step", gone=()):
    return Point(kind, run=run, step=number, leaves=leaves, gone=gone)


def test_equal_bits_have_equal_texts_and_others_have_not():
    zeros = np.zeros(3)

    assert texts(x=zeros) == texts(x=np.zeros(3))
    assert texts(x=zeros) != texts(x=-zeros)
    assert texts(x=zeros) != texts(x=zeros.astype(np.float32))
    assert texts(x=zeros) != texts(x=zeros.reshape(3, 1))
    assert texts(x=torch.ones(4)[::2]) == texts(x=torch.ones(2))
    assert texts(n=1) != texts(n=1.0)
    assert texts(text="long " * 100) != texts(text="long " * 101)


def test_the_order_of_keys_is_a_text_of_its_own():
    first, second = ({"d": {"a": 1, "b": 2}}, {"d": {"b": 2, "a": 1}})

    assert texts(**first) == texts(**second)
    assert order_texts(encode_state(first)) != order_texts(encode_state(second))


def test_metrics_keep_all_their_bits():
    found = metric_bits({"a": 0.1, "b": np.float32(0.1), "c": torch.tensor(2.0), "big": 2**60 + 1, "text": "no"})

    assert found["a"] == (0.1).hex()
    assert found["b"] != found["a"]
    assert found["c"] == (2.0).hex()
    assert found["big"] != metric_bits({"big": 2**60})["big"]
    assert "text" not in found


def test_a_reference_is_followed_step_by_step_with_all_leaves(tmp_path):
    reference = write(
        tmp_path / "trace",
        step(1, {"w": "b3:1", "n": "=1"}),
        step(2, {"w": "b3:2"}),
        step(2, {"v": "=0"}, run="other"),
        step(3, {"w": "b3:3"}, gone=("n",)),
    )

    assert [leaves for _, leaves in reference.at(step(2, {}))] == [{"w": "b3:2", "n": "=1"}]
    assert [leaves for _, leaves in reference.at(step(3, {}))] == [{"w": "b3:3"}]
    assert [leaves for _, leaves in reference.at(step(2, {}, run="other"))] == [{"v": "=0"}]
    assert reference.at(step(9, {})) == []
    assert [leaves for _, leaves in reference.at(step(2, {}, kind="restored"))] == [{"w": "b3:2", "n": "=1"}]


def test_a_torn_last_line_counts_for_nothing(tmp_path):
    reference = write(tmp_path / "trace", step(1, {"w": "b3:1"}), step(2, {"w": "b3:2"}))
    data = (tmp_path / "trace").read_bytes()
    (tmp_path / "trace").write_bytes(data[:-9])

    assert len(reference.at(step(1, {}))) == 1
    assert reference.at(step(2, {})) == []


def test_what_differs_is_listed_but_for_what_is_ignored():
    known, found = {"a": "=1", "b": "=2", "c": "=3"}, {"a": "=1", "b": "=5", "d": "=4"}

    assert sorted(differing(known, found)) == ["b", "c", "d"]
    assert differing(known, found, ("b", "c")) == ["d"]


def test_versions_name_python_and_what_is_loaded():
    assert {"python", "numpy", "torch"} <= {name.lower() for name in versions()}
