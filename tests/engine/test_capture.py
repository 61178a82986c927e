"""A captured image is byte for byte the shard that persist writes."""

import mmap

import numpy as np
import pytest
import torch

from holdfast import native
from holdfast.core.limits import CHUNK_BYTES
from holdfast.engine.blocks import BlockPool
from holdfast.engine.capture import capture, runs_of
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


@pytest.mark.parametrize("workers", [1, 2, 3, 64])
@pytest.mark.parametrize("count", [0, 1, 2, 31, 32, 33, 1250])
def test_runs_cover_every_chunk_once_in_order_and_are_short_at_the_end(count, workers):
    runs = runs_of(count, workers)

    assert [number for run in runs for number in run] == list(range(count))
    assert all(1 <= len(run) <= 32 for run in runs)
    assert all(len(run) == 1 for run in runs[-workers:])


def test_chunks_that_are_moved_by_one_call_have_the_checksums_of_those_that_are_moved_one_by_one(monkeypatch):
    # Strided in the middle, and a last chunk of a few bytes: some runs cannot be moved at once.
    state = {"a": _random(9 * CHUNK_BYTES // 4), "b": _random(900, 700).T, "c": _random(17 * CHUNK_BYTES // 4 + 3)}
    encoded = encode_state(state)
    layout = lay_out_leaves(encoded)
    called, gather_chunks = [], native.gather_chunks

    def counted(target, parts, chunk_bytes):
        sums = gather_chunks(target, parts, chunk_bytes)
        called.append(None if sums is None else len(sums))
        return sums

    monkeypatch.setattr(native, "gather_chunks", counted)
    at_once, one_by_one = (_dirty_image(layout.size_bytes) for _ in range(2))
    found = capture(layout, encoded.carriers, at_once, workers=1)
    monkeypatch.setattr(native, "gather_chunks", lambda *_: None)
    expected = capture(layout, encoded.carriers, one_by_one, workers=1)

    assert at_once == one_by_one
    assert found == expected
    if native.is_built():
        assert max(filter(None, called)) > 1
