"""What differs between two checkpoints."""

import math

import numpy as np
import pytest

import holdfast
from holdfast.core.errors import IntegrityError
from holdfast.engine import leafwise
from holdfast.engine.blocks import BlockPool
from holdfast.engine.catalog import read_catalog
from holdfast.engine.difference import compare, compare_arrays
from holdfast.engine.identity import identify
from holdfast.engine.loading import Source
from holdfast.storage.posix import PosixStore


@pytest.fixture
def difference(tmp_path):
    """Saves two states and compares them."""

    def between(before, after, *, progress=None, **options):
        with holdfast.Checkpointer(tmp_path / "run", random=False, keep=holdfast.KEEP_ALL) as ckpt:
            ckpt.save(step=1, tree=before)
            ckpt.save(step=2, tree=after)
        store = PosixStore(str(tmp_path / "run"), readonly=True)
        source = Source(store, identify(store), BlockPool(), 2, progress)
        old, new = read_catalog(store, source.run_id).checkpoints
        return compare(source, old.id, source, new.id, **options)

    return between


def test_equal_states_differ_in_nothing(difference):
    tree = {"w": np.arange(6.0), "empty": np.zeros((0, 3)), "name": "x", "nan": np.array([math.nan])}

    found = difference(tree, tree)

    assert found.is_empty
    assert (found.equal_arrays, found.equal_values) == (3, 1)


def test_changed_numbers_are_counted_and_measured(difference):
    before = np.zeros((2, 4), np.float32)
    after = before.copy()
    after[1, 2], after[0, 0] = 3.0, -4.0

    (change,) = difference({"w": before}, {"w": after}).arrays

    assert (change.name, change.what, change.changed, change.elements) == ("tree.w", "changed", 2, 8)
    assert change.numbers == (4.0, 1.0, 5.0, 0.0, 0, 0)
    assert change.after == "float32[2, 4]"


def test_added_removed_and_unlike_arrays_are_told_apart(difference):
    before = {"gone": np.ones(2), "shape": np.ones(2), "dtype": np.ones(2), "same": np.ones(2)}
    after = {"new": np.ones(2), "shape": np.ones(3), "dtype": np.ones(2, np.float32), "same": np.ones(2)}

    found = difference(before, after)

    assert {change.name: change.what for change in found.arrays} == {
        "tree.gone": "removed",
        "tree.shape": "shape",
        "tree.dtype": "dtype",
        "tree.new": "added",
    }
    assert found.equal_arrays == 1


def test_plain_values_are_compared_too(difference):
    before = {"step": 1, "lr": 0.1, "names": ["a", "b"], "gone": None, "best": math.inf}
    after = {"step": 2, "lr": 0.1, "names": ["a", "c"], "new": True, "best": math.inf}

    found = difference(before, after)

    assert [(change.path, change.what, change.before, change.after) for change in found.values] == [
        ("tree.step", "changed", "1", "2"),
        ("tree.names", "changed", "list of 2: 'a', 'b'", "list of 2: 'a', 'c'"),
        ("tree.gone", "removed", "None", ""),
        ("tree.new", "added", "", "True"),
    ]


def test_only_a_part_is_compared_when_asked(difference):
    before = {"model": {"w": np.ones(2)}, "models": np.ones(2), "n": 1}
    after = {"model": {"w": np.zeros(2)}, "models": np.zeros(2), "n": 2}

    found = difference(before, after, only="tree.model")

    assert [change.name for change in found.arrays] == ["tree.model.w"]
    assert found.values == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "complex64", "int64", "uint8", "bool", "float16"])
def test_every_kind_of_number_is_measured(difference, dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    before, after = np.zeros(4).astype(kind), np.array([0, 1, 0, 1]).astype(kind)

    (change,) = difference({"x": before}, {"x": after}).arrays

    assert change.changed == 2
    assert change.numbers.max_abs == 1.0


def test_texts_and_structures_are_compared_without_numbers(difference):
    before = {"s": np.array(["a", "bb"]), "r": np.zeros(2, [("x", "i4"), ("y", "f8")])}
    after = {"s": np.array(["a", "cc"]), "r": np.ones(2, [("x", "i4"), ("y", "f8")])}

    found = {change.name: change for change in difference(before, after).arrays}

    assert found["tree.s"].changed == 1
    assert found["tree.r"].changed == 2
    assert found["tree.s"].numbers is None


def test_what_is_not_a_number_is_counted_and_does_not_spoil_the_rest():
    before = np.array([1.0, math.nan, math.inf, 2.0])
    after = np.array([1.0, math.nan, math.inf, 2.5])

    unlike, numbers = compare_arrays(before, after)

    assert unlike == 1
    assert numbers.max_abs == 0.5
    assert (numbers.nans_before, numbers.nans_after) == (1, 1)


def test_the_sign_of_zero_is_a_difference_of_bits_and_not_of_numbers():
    unlike, numbers = compare_arrays(np.array([0.0]), np.array([-0.0]))

    assert unlike == 1
    assert numbers.max_abs == 0.0


def test_many_leaves_are_read_in_batches_and_large_ones_alone(difference, monkeypatch):
    monkeypatch.setattr(leafwise, "BATCH_BYTES", 100)
    monkeypatch.setattr(leafwise.batches, "__kwdefaults__", {"limit_bytes": 100})
    before = {f"w{i}": np.full(10 if i % 7 else 1000, float(i)) for i in range(50)}
    after = {name: array + 1 for name, array in before.items()}

    found = difference(before, after)

    assert len(found.arrays) == 50
    assert all(change.numbers.max_abs == 1.0 for change in found.arrays)


def test_equal_chunks_are_not_read_again(difference):
    read_bytes: list[int] = []
    before = {f"w{i}": np.arange(131_072.0) for i in range(8)}

    found = difference(before, before | {"w7": np.zeros(131_072)}, progress=read_bytes.append)

    assert [change.name for change in found.arrays] == ["tree.w7"]
    assert 0 < sum(read_bytes) < 8 << 20  # of twice as much: w7, and w6, which shares a chunk with it


def test_damage_is_an_error_and_not_a_difference(difference, tmp_path):
    assert not difference({"w": np.zeros(1000)}, {"w": np.ones(1000)}).is_empty
    shard = next((tmp_path / "run").glob("000000002-*/rank-00000.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    store = PosixStore(str(tmp_path / "run"), readonly=True)
    source = Source(store, identify(store), BlockPool(), 2)
    old, new = read_catalog(store, source.run_id).checkpoints

    with pytest.raises(IntegrityError):
        compare(source, old.id, source, new.id)
