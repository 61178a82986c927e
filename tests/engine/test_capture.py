"""A captured image is byte for byte the shard that persist writes."""

import mmap

import numpy as np
import pytest
import torch

from holdfast.core.limits import CHUNK_BYTES
from holdfast.engine.blocks import BlockPool
from holdfast.engine.capture import capture
from holdfast.engine.laying import lay_out_leaves
from holdfast.engine.overlap import Overlapped
from holdfast.engine.persist import persist
from holdfast.format.encode import encode_state

_GENERATOR = np.random.default_rng(7)


def _random(*shape):
    return _GENERATOR.standard_normal(shape).astype(np.float32)


_STATES = {
    "nothing": {},
    "one": {"a": np.arange(10)},
    "zero-size": {"a": np.zeros((0, 3)), "b": np.ones(5), "c": torch.zeros(0, 7), "d": np.float32(3)},
    "strided": {
        "transposed": _random(700, 900).T,
        "steps": _random(3000, 50)[::3, ::2],
        "backwards": _random(1 << 19)[::-1],
        "broadcast": np.broadcast_to(_random(1000), (400, 1000)),
        "channels": torch.randn(8, 32, 50, 50).to(memory_format=torch.channels_last),
    },
    "bf16": {"w": torch.randn(1000, 777).bfloat16(), "f8": torch.randn(333).to(torch.float8_e4m3fn)},
    "shared": {"a": (base := torch.randn(400, 500)), "b": base[3:], "c": base.view(-1)[7:]},
    "small": {"leaves": [_random(index % 37) for index in range(20_000)]},
    "large": {"a": _random(CHUNK_BYTES), "b": _random(CHUNK_BYTES + 3), "c": [_random(1) for _ in range(5)]},
    "mixed": {"b": np.arange(77, dtype=np.int8), "w": _random(3, 333_333), "c": np.ones(3, np.complex128), "s": "text"},
}


class _Written:
    """A writer that keeps what it is given."""

    def __init__(self, size_bytes):
        self.data = bytearray(size_bytes)

    def write_at(self, data, offset):
        self.data[offset : offset + len(data)] = data

    def finish(self, size_bytes):
        assert size_bytes == len(self.data)

    def abandon(self):
        raise AssertionError("nothing failed")


@pytest.fixture(params=_STATES)
def laid_out(request):
    """A state, and the shard that persist makes of it."""
    encoded = encode_state(_STATES[request.param])
    layout = lay_out_leaves(encoded)
    carriers = encoded.carriers
    written = _Written(layout.size_bytes)
    sums = persist(layout, carriers, written, pool=BlockPool(), workers=2)
    return layout, carriers, bytes(written.data), sums.xxh3


def _dirty_image(size_bytes):
    memory = mmap.mmap(-1, size_bytes)
    memory[:] = b"\xa5" * size_bytes
    return memoryview(memory)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_captured_image_is_the_shard_that_persist_writes(laid_out, workers):
    layout, carriers, shard, xxh3 = laid_out
    image = _dirty_image(layout.size_bytes)

    found = capture(layout, carriers, image, workers=workers)

    assert found == xxh3
    assert image == shard


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("choose", [lambda _: False, lambda _: True, lambda i: i % 2, lambda i: i % 7 == 3])
def test_an_overlapped_image_is_the_same_whatever_is_deferred(laid_out, choose, workers):
    layout, carriers, shard, xxh3 = laid_out
    image = _dirty_image(layout.size_bytes)

    copy = Overlapped(layout, carriers, {i for i in range(len(carriers)) if choose(i)}, image, workers=workers)

    assert copy.wait(60)
    assert copy.done
    assert copy.error is None
    assert copy.xxh3 == xxh3
    assert copy.copied_bytes == layout.size_bytes
    assert image == shard


def test_a_failure_in_one_of_the_threads_is_raised_by_capture():
    encoded = encode_state({"a": _random(5 * CHUNK_BYTES)})
    layout = lay_out_leaves(encoded)

    with pytest.raises(ValueError, match=r"memoryview|broadcast"):
        capture(layout, encoded.carriers, _dirty_image(layout.size_bytes - 9), workers=2)
