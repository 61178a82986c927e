"""Export and import: what comes out is what went in, and nothing in a file is executed."""

import errno
import io
import json
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest

import holdfast
from holdfast.core.errors import (
    BlobExistsError,
    FormatError,
    IntegrityError,
    NoCheckpointError,
    StateError,
    StorageError,
    UsageError,
)
from holdfast.engine.blocks import BlockPool
from holdfast.engine.catalog import read_catalog
from holdfast.engine.exchange import export_checkpoint
from holdfast.engine.identity import identify
from holdfast.engine.importing import read_state_file
from holdfast.engine.loading import Source
from holdfast.storage.posix import PosixStore

_STATE = {
    "w": np.arange(12.0).reshape(3, 4),
    "half": np.arange(3, dtype=np.float16),
    "flags": np.array([True, False]),
    "scalar": np.array(7, np.int64),
    "empty": np.zeros((0, 2), np.float32),
    "complex": np.array([1 + 2j], np.complex64),
    "turned": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
}


@pytest.fixture
def export(tmp_path):
    """Saves a state and exports it; the path of the file and what was left out."""

    def save_and_export(state, name, **options):
        with holdfast.Checkpointer(tmp_path / "run", state, keep=holdfast.KEEP_ALL) as ckpt:
            ckpt.restore()
            ckpt.save(step=ckpt.attempt)
        store = PosixStore(str(tmp_path / "run"), readonly=True)
        source = Source(store, identify(store), BlockPool(), 2)
        newest = read_catalog(store, source.run_id).checkpoints[-1]
        return export_checkpoint(source, newest.id, str(tmp_path / name), **options)

    return save_and_export


def test_a_safetensors_export_opens_with_the_library(export):
    safetensors = pytest.importorskip("safetensors.numpy")

    done = export({"model": dict(_STATE), "n": {"step": 3}}, "all.safetensors")

    found = safetensors.load_file(done.path)
    assert set(found) == {f"model.{name}" for name in _STATE}
    assert (found["model.w"] == _STATE["w"]).all()
    assert (found["model.turned"] == _STATE["turned"]).all()
    assert found["model.complex"].tolist() == [[1.0, 2.0]]
    assert done.left_out == ["n.step"]


def test_an_npz_export_opens_with_numpy_and_keeps_the_dtypes(export):
    done = export({"model": dict(_STATE)}, "all.npz")

    with np.load(done.path, allow_pickle=False) as found:
        for name, array in _STATE.items():
            assert found[f"model.{name}"].dtype == array.dtype
            assert (found[f"model.{name}"] == array).all()


def test_a_part_is_exported_with_the_names_below_it(export):
    done = export({"model": {"layers": [dict(_STATE)]}}, "part.npz", only="model.layers[0]")

    with np.load(done.path) as found:
        assert set(found) == set(_STATE)


def test_a_single_array_keeps_its_last_name(export):
    done = export({"model": dict(_STATE)}, "one.npz", only="model.w")

    with np.load(done.path) as found:
        assert list(found) == ["w"]


def test_an_unknown_part_is_refused_with_the_near_names(export, tmp_path):
    with pytest.raises(NoCheckpointError, match=r"has no 'model\.v'") as caught:
        export({"model": dict(_STATE)}, "none.npz", only="model.v")

    assert "model.w" in caught.value.hint
    assert not (tmp_path / "none.npz").exists()


def test_tied_and_overlapping_arrays_come_under_each_of_their_names(export):
    base = np.arange(10.0)

    done = export({"a": base, "tied": base, "part": base[2:8:2]}, "tied.npz")

    with np.load(done.path) as found:
        assert (found["a"] == base).all()
        assert (found["tied"] == base).all()
        assert (found["part"] == base[2:8:2]).all()


def test_types_that_numpy_lacks_stand_in_an_npz_as_their_bits(export):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([1.0, -2.0], ml_dtypes.bfloat16)

    done = export({"x": array}, "bits.npz")

    with np.load(done.path) as found:
        assert found["x"].view(ml_dtypes.bfloat16).tolist() == [1.0, -2.0]


def test_a_state_without_arrays_goes_only_into_a_pt_file(export):
    with pytest.raises(StateError, match="no arrays"):
        export({"n": {"step": 1}}, "none.safetensors")


def test_an_export_never_overwrites_unless_told_and_leaves_no_rest(export, tmp_path):
    (tmp_path / "x.npz").write_bytes(b"precious")

    with pytest.raises(BlobExistsError, match="exists already"):
        export({"x": np.ones(3)}, "x.npz")
    assert (tmp_path / "x.npz").read_bytes() == b"precious"

    export({"x": np.ones(3)}, "x.npz", replace=True)
    with np.load(tmp_path / "x.npz") as found:
        assert found["x"].tolist() == [1, 1, 1]
    assert sorted(os.listdir(tmp_path)) == ["run", "x.npz"]


def test_a_damaged_checkpoint_is_not_exported(export, tmp_path):
    export({"x": np.ones(3)}, "good.npz")
    shard = next((tmp_path / "run").glob("0*/rank-00000.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    store = PosixStore(str(tmp_path / "run"), readonly=True)
    source = Source(store, identify(store), BlockPool(), 2)
    (checkpoint,) = read_catalog(store, source.run_id).checkpoints

    with pytest.raises(IntegrityError):
        export_checkpoint(source, checkpoint.id, str(tmp_path / "bad.npz"))

    assert not (tmp_path / "bad.npz").exists()
    assert not list(tmp_path.glob(".*"))


def test_a_pt_export_loads_as_weights_only_with_ties_and_values(export):
    torch = pytest.importorskip("torch")
    weight = torch.arange(6.0).reshape(2, 3)
    state = {"model": {"a": weight, "tied": weight, "n": np.float32(0.5), "array": np.arange(3)}, "opt": {"lr": 0.1}}

    done = export(state, "all.pt")

    found = torch.load(done.path, weights_only=True)
    assert found["model"]["a"].data_ptr() == found["model"]["tied"].data_ptr()
    assert (found["model"]["a"] == weight).all()
    assert found["model"]["array"].tolist() == [0, 1, 2]
    assert found["opt"]["lr"] == 0.1
    assert found["model"]["n"] == 0.5


def test_a_pt_export_leaves_out_what_would_keep_all_of_it_from_being_loaded(export):
    torch = pytest.importorskip("torch")

    done = export(
        {"model": {"w": torch.ones(2), "long": np.longdouble(1), "when": np.datetime64("2026-11-18")}}, "x.pt"
    )

    assert done.left_out == ["model.long", "model.when"]
    assert torch.load(done.path, weights_only=True)["model"]["w"].tolist() == [1, 1]


@pytest.mark.parametrize("suffix", ["safetensors", "npz", "pt"])
def test_what_is_exported_is_imported_again(export, suffix):
    if suffix == "pt":
        pytest.importorskip("torch")
    state = {name: array for name, array in _STATE.items() if name != "complex"}

    done = export({"model": state}, f"again.{suffix}", only="model")

    found = read_state_file(done.path)
    for name, array in state.items():
        assert np.array_equal(np.asarray(found[name]), array), name


def test_a_safetensors_file_of_the_library_is_read_with_bfloat16(tmp_path):
    torch = pytest.importorskip("torch")
    library = pytest.importorskip("safetensors.torch")
    library.save_file({"x": torch.tensor([1.5, -2.0], dtype=torch.bfloat16)}, tmp_path / "x.safetensors")

    found = read_state_file(str(tmp_path / "x.safetensors"))

    assert found["x"].astype(np.float32).tolist() == [1.5, -2.0]


def _safetensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        struct.pack("<Q", 1 << 62) + b"{}",
        _safetensors(b"not json"),
        _safetensors({"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8]}}, bytes(8)),
        _safetensors({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 800]}}, bytes(8)),
        _safetensors({"x": {"dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 8]}}, bytes(8)),
        _safetensors({"x": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
        _safetensors({"x": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}, bytes(8)),
    ],
)
def test_a_malformed_safetensors_file_is_refused(tmp_path, content):
    (tmp_path / "x.safetensors").write_bytes(content)

    with pytest.raises(FormatError):
        read_state_file(str(tmp_path / "x.safetensors"))


class _Bomb:
    def __reduce__(self):
        return (os.system, ("touch exploded",))


def test_an_npz_of_objects_is_refused_and_not_unpickled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", x=np.array([_Bomb()], dtype=object))

    with pytest.raises(FormatError, match=r"not an \.npz file of plain arrays"):
        read_state_file("x.npz")

    assert not (tmp_path / "exploded").exists()


def test_a_pt_file_with_objects_is_refused_and_not_unpickled(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    torch.save({"x": _Bomb()}, "x.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(_Bomb()))

    for name in ("x.pt", "plain.pt"):
        with pytest.raises(FormatError, match="only unsafe unpickling could load; nothing was executed"):
            read_state_file(name)

    assert not (tmp_path / "exploded").exists()


def test_an_npz_that_claims_more_than_it_can_hold_is_refused_before_reading(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\0" * 50_000_000)
    data = bytearray((tmp_path / "x.npz").read_bytes())
    # The declared size in the central directory, raised to 4 GB.
    place = data.rindex(b"PK\x01\x02") + 24
    data[place : place + 4] = struct.pack("<I", 0xFFFF_FFF0)
    (tmp_path / "x.npz").write_bytes(data)

    with pytest.raises(FormatError, match="claims"):
        read_state_file(str(tmp_path / "x.npz"))


def _npz(path, method=zipfile.ZIP_DEFLATED, content=None):
    """The bytes of an .npz file with one array that does not compress well."""
    if content is None:
        held = io.BytesIO()
        np.save(held, np.random.default_rng(0).integers(0, 50, 20_000))
        content = held.getvalue()
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("x.npy", content)
    return bytearray(path.read_bytes())


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_npz_whose_compressed_bytes_are_damaged_is_refused(tmp_path, method):
    path = tmp_path / "x.npz"
    whole = _npz(path, method)

    for place in range(80, 2000, 40):
        data = bytearray(whole)
        data[place : place + 40] = b"\xff" * 40
        path.write_bytes(data)
        with pytest.raises(FormatError, match=r"damaged, or not an \.npz file of plain arrays"):
            read_state_file(str(path))


def test_an_npz_whose_member_would_begin_before_the_file_is_refused(tmp_path):
    path = tmp_path / "x.npz"
    data = _npz(path)
    # The directory is said to begin later than it does; so all that it names is looked for as much earlier.
    data[data.rindex(b"PK\x05\x06") + 16 + 2] += 1
    path.write_bytes(data)

    with pytest.raises(FormatError, match="damaged, or not an"):
        read_state_file(str(path))


@pytest.mark.parametrize(
    ("local", "central", "value", "said"),
    [(6, 8, 1, "encrypted"), (8, 10, 99, "compression")],
    ids=["encrypted", "unknown compression"],
)
def test_an_npz_of_members_that_python_cannot_unpack_is_refused(tmp_path, local, central, value, said):
    path = tmp_path / "x.npz"
    data = _npz(path)
    data[local] = data[data.rindex(b"PK\x01\x02") + central] = value
    path.write_bytes(data)

    with pytest.raises(FormatError, match=said):
        read_state_file(str(path))


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ("(10000000000000,)", "larger than the memory, or its header is damaged"),
        (f"({10**30},)", "damaged, or not an"),
        ("(3,", "damaged, or not an"),
        ("3, []: 4", "damaged, or not an"),
    ],
    ids=["more than the memory", "more than can be counted", "without an end", "without sense"],
)
def test_an_npz_with_a_header_that_cannot_be_followed_is_refused(tmp_path, shape, said):
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(80)
    _npz(tmp_path / "x.npz", content=content)

    with pytest.raises(FormatError, match=said):
        read_state_file(str(tmp_path / "x.npz"))


def test_a_disk_that_fails_while_an_npz_is_read_does_not_make_it_a_damaged_file(tmp_path, monkeypatch):
    _npz(tmp_path / "x.npz")

    def fail(*_, **__):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(np.lib.format, "read_array", fail)
    with pytest.raises(StorageError, match="EIO"):
        read_state_file(str(tmp_path / "x.npz"))


def test_a_file_of_no_known_kind_is_refused(tmp_path):
    with pytest.raises(UsageError, match="does not say which format"):
        read_state_file(str(tmp_path / "x.bin"))
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(UsageError, match="is not a file"):
        read_state_file(str(tmp_path / "folder.npz"))


def test_an_npz_gives_each_array_its_own_bytes_whatever_the_names_are(tmp_path):
    """np.load gives `x` for `x.npy` where there are both."""
    path = tmp_path / "names.npz"
    np.savez(path, **{"x": np.ones(3), "x.npy": np.full(3, 2.0)})

    found = read_state_file(str(path))

    assert {name: array.tolist() for name, array in found.items()} == {"x": [1.0] * 3, "x.npy": [2.0] * 3}


def test_an_npz_with_two_arrays_of_one_name_is_refused(tmp_path):
    path = tmp_path / "twice.npz"
    np.savez(path, x=np.ones(3))
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("x.npy", archive.read("x.npy"))

    with pytest.raises(FormatError, match="two arrays of the name 'x'"):
        read_state_file(str(path))


def test_a_safetensors_file_with_more_elements_than_can_be_counted_is_refused(tmp_path):
    header = json.dumps({"x": {"dtype": "F32", "shape": [0, 2**70], "data_offsets": [0, 0]}}).encode()
    path = tmp_path / "many.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)

    with pytest.raises(FormatError, match="cannot have the shape"):
        read_state_file(str(path))
