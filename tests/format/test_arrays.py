import numpy as np
import pytest

from holdfast.format.arrays import bytes_view, copy_range, scatter_range

BASE = np.arange(7 * 6 * 5 * 4, dtype=np.int16).reshape(7, 6, 5, 4)
CARRIERS = {
    "contiguous": BASE,
    "transposed": BASE.T,
    "strided": BASE[::-1, :, ::2],
    "inner reversed": BASE[:, :, 1:3, ::-1],
    "a column": BASE[..., 0],
    "broadcast": np.broadcast_to(BASE[0], (3, 6, 5, 4)),
    "a scalar": BASE[1, 2, 3, 3, ...],
    "void, strided": BASE.view("V2")[::3],
    "sixteen bytes": np.arange(30, dtype=np.complex128).view("V16").reshape(3, 2, 5).transpose(1, 0, 2),
    "empty": BASE[:0],
    "empty inside": BASE[:, :, 3:3, ::-1],
}


def ranges_of(size):
    rng = np.random.default_rng(1)
    edges = [(0, size), (0, 0), (size, size), (0, min(1, size)), (max(size - 1, 0), size)]
    return edges + [tuple(sorted(int(n) for n in rng.integers(0, size + 1, 2))) for _ in range(150)]


@pytest.mark.parametrize("name", CARRIERS)
def test_copy_range_gives_any_range_of_the_c_order_bytes(name):
    carrier = CARRIERS[name]
    whole = np.ascontiguousarray(carrier).tobytes()

    for begin, end in ranges_of(len(whole)):
        out = bytearray(b"\xee" * (end - begin + 3))
        copy_range(carrier, begin, end, memoryview(out))

        assert bytes(out) == whole[begin:end] + b"\xee" * 3


@pytest.mark.parametrize("name", [name for name in CARRIERS if name != "broadcast"])
def test_scatter_range_changes_that_range_and_nothing_else(name):
    whole = np.ascontiguousarray(CARRIERS[name]).tobytes()
    new = np.random.default_rng(2).bytes(len(whole))

    for begin, end in ranges_of(len(whole)):
        carrier = _same_layout(CARRIERS[name])
        scatter_range(carrier, begin, memoryview(new)[begin:end])

        assert np.ascontiguousarray(carrier).tobytes() == whole[:begin] + new[begin:end] + whole[end:]


def test_the_bytes_of_a_contiguous_carrier_are_its_memory():
    carrier = np.zeros((2, 3), np.int32)

    bytes_view(carrier)[4] = 1

    assert carrier[0, 1] == 1


def _same_layout(carrier):
    """A writable copy with the same kind of strides: every second element of an array with the axes turned around."""
    wide = np.zeros(tuple(2 * n for n in reversed(carrier.shape)), carrier.dtype)
    copy = wide[(*(slice(None, None, 2) for _ in carrier.shape), ...)].T
    copy[...] = carrier
    return copy
