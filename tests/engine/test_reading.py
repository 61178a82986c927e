"""Chunks that lie one after the other in the page cache are read by one call, whatever the arrays are like."""

import gc
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import holdfast
from holdfast import native
from holdfast.engine.reading import _runs

_MB = 1 << 20


def _state(seed: int) -> dict[str, np.ndarray]:
    """Leaves of many chunks and in the middle of one, in any order of memory, and parts of larger arrays."""
    chance = np.random.default_rng(seed)
    whole = chance.standard_normal((1200, 1000))
    return {
        "large": chance.standard_normal(_MB),
        "small": chance.standard_normal(3),
        "more": chance.integers(0, 255, 2 * _MB + 7, np.uint8),
        "fortran": np.asfortranarray(chance.standard_normal((300, 400))),
        "strided": whole[::2, 1:],
        "last": chance.standard_normal(_MB // 4 + 5),
    }


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A run with two checkpoints, which are in the page cache."""
    state = _state(1)
    with holdfast.Checkpointer(tmp_path / "run", state, background="off", on_error="raise") as ckpt:
        ckpt.save(step=1)
        state["small"] += 1
        ckpt.save(step=2)
    for shard in _shards(tmp_path / "run"):
        shard.read_bytes()
    return tmp_path / "run"


def _shards(run: Path) -> list[Path]:
    return sorted(run.glob("*/rank-*.safetensors"))


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many chunks each call of the native part was to read."""
    found: list[int] = []
    scatter = native.scatter_chunks

    def counting(source: memoryview, parts: Sequence[memoryview], chunk_bytes: int) -> list[str] | None:
        found.append(-(-source.nbytes // chunk_bytes))
        return scatter(source, parts, chunk_bytes)

    monkeypatch.setattr(native, "scatter_chunks", counting)
    return found


def _restored(run: Path) -> tuple[dict[str, np.ndarray], int]:
    state = _state(2)
    with holdfast.Checkpointer(run, state, background="off") as ckpt:
        checkpoint = ckpt.restore()
    assert checkpoint is not None
    return state, checkpoint.step


@pytest.mark.parametrize("is_native", [True, False])
def test_every_leaf_comes_back_whatever_the_memory_is_like(
    saved: Path, monkeypatch: pytest.MonkeyPatch, at_once: list[int], is_native: bool
) -> None:
    if not is_native:
        monkeypatch.setitem(native._loaded, "_streams", None)

    state, step = _restored(saved)

    expected = _state(1)
    expected["small"] += 1
    assert step == 2
    for name, array in state.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    if is_native and native.is_built():
        assert max(at_once) > 1


@pytest.mark.parametrize("chunk", [0, 1, 4, 7, 11, 12, 14, 16])
def test_the_chunk_that_is_damaged_is_named_and_an_older_checkpoint_restored(
    saved: Path, caplog: pytest.LogCaptureFixture, chunk: int
) -> None:
    newest = _shards(saved)[1]
    with newest.open("r+b") as file:
        file.seek(chunk * _MB + 600_000)
        byte = file.read(1)[0]
        file.seek(chunk * _MB + 600_000)
        file.write(bytes([byte ^ 1]))

    state, step = _restored(saved)

    assert step == 1
    assert f"chunk {chunk} differs from its checksum" in caplog.text
    for name, array in state.items():
        np.testing.assert_array_equal(array, _state(1)[name], err_msg=name)


def test_nothing_holds_on_to_the_arrays_when_they_are_restored(saved: Path) -> None:
    state = _state(2)
    gc.disable()
    try:
        with holdfast.Checkpointer(saved, state, background="off") as ckpt:
            before = [sys.getrefcount(array) for array in state.values()]
            ckpt.restore()
            after = [sys.getrefcount(array) for array in state.values()]
    finally:
        gc.enable()

    assert after == before


def test_runs_are_of_neighbours_and_of_the_last_chunk_alone_where_it_is_short() -> None:
    assert _runs([0, 1, 2, 3, 4], 3, 5) == [range(3), range(3, 5)]
    assert _runs([0, 1, 2, 3, 4], 9, 4) == [range(4), range(4, 5)]
    assert _runs([1, 2, 5, 6, 8], 9, 99) == [range(1, 3), range(5, 7), range(8, 9)]
    assert _runs([3, 4], 1, 9) == [range(3, 4), range(4, 5)]
    assert _runs([], 4, 9) == []
