"""Shards are plain safetensors files, laid out on page boundaries."""

import struct

import numpy as np
import pytest
import safetensors.numpy

from holdfast.core.errors import FormatError, StateError
from holdfast.format.shard import TensorEntry, lay_out, parse_header, read_header_size


def entry(name: str, array: np.ndarray, tag: str) -> TensorEntry:
    return TensorEntry(name, tag, array.shape, array.nbytes, array.itemsize)


def image(arrays: dict[str, tuple[np.ndarray, str]]) -> bytes:
    layout = lay_out([entry(name, array, tag) for name, (array, tag) in arrays.items()])
    data = bytearray(layout.size_bytes)
    data[: len(layout.header)] = layout.header
    for place, (array, _) in zip(layout.places, arrays.values(), strict=True):
        data[place.begin : place.end] = array.tobytes()
    return bytes(data)


ARRAYS = {
    "flags": (np.array([True, False, True]), "BOOL"),
    "weights": (np.arange(6, dtype=np.float64).reshape(2, 3), "F64"),
    "empty": (np.zeros((0, 4), np.float32), "F32"),
    "scalar": (np.array(7, np.int16), "I16"),
    "ünï": (np.arange(5, dtype=np.uint8), "U8"),
}


def test_the_safetensors_library_reads_what_we_lay_out():
    found = safetensors.numpy.load(image(ARRAYS))

    assert set(found) == set(ARRAYS)
    for name, (array, _) in ARRAYS.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


def test_data_starts_on_a_page_and_every_tensor_is_aligned():
    layout = lay_out([entry(name, array, tag) for name, (array, tag) in ARRAYS.items()])

    assert len(layout.header) % 4096 == 0
    for place, (array, _) in zip(layout.places, ARRAYS.values(), strict=True):
        assert place.begin % array.itemsize == 0


def test_an_empty_state_has_a_shard_too():
    assert safetensors.numpy.load(image({})) == {}


def test_two_leaves_of_one_name_are_refused():
    one = np.zeros(1)

    with pytest.raises(StateError, match="two leaves are named 'a'"):
        lay_out([entry("a", one, "F64"), entry("a", one, "F64")])


def test_our_header_parses_back():
    data = image(ARRAYS)
    size = read_header_size(data[:8], len(data), "here")

    found = parse_header(data[8 : 8 + size], len(data), "here")

    tag, shape, place = found["weights"]
    assert (tag, shape) == ("F64", (2, 3))
    assert data[place.begin : place.end] == ARRAYS["weights"][0].tobytes()


@pytest.mark.parametrize("claimed", [0, 7, 1 << 20, 1 << 63, (1 << 64) - 1, 100_000_001])
def test_a_header_that_does_not_fit_is_refused_before_it_is_read(claimed):
    data = struct.pack("<Q", claimed) + b"{}"

    with pytest.raises(FormatError):
        size = read_header_size(data[:8], len(data), "here")
        parse_header(data[8 : 8 + size], len(data), "here")


@pytest.mark.parametrize(
    "header",
    [
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}',
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,400]}}',
        b'{"a":{"dtype":1,"shape":[1],"data_offsets":[0,4]}}',
        b"[]",
        b"nonsense",
        b"\xff\xff",
        b'{"a":' * 10_000,
    ],
)
def test_a_hostile_header_is_refused(header):
    with pytest.raises(FormatError):
        parse_header(header, 8 + len(header) + 4, "here")
