"""Prefetch: warms the page cache, harms nothing, and imports nothing that takes long."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import holdfast
from holdfast.engine import prefetch as module
from holdfast.engine.prefetch import prefetch
from holdfast.storage.posix import PosixStore
from holdfast.tiers.finding import find_arenas
from holdfast.tiers.room import Room

_DEADLINE_S = 60
_SIZE = 24 << 20


def make_run(path: Path) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    """Two checkpoints, none of them in the page cache; the weights of the newest."""
    weights = np.random.default_rng(5).integers(0, 256, _SIZE, dtype=np.uint8)
    with holdfast.Checkpointer(path, {"w": weights}) as ckpt:
        ckpt.save(step=1)
        weights += 1
        ckpt.save(step=2)
    for shard in path.glob("*/*.safetensors"):
        descriptor = os.open(shard, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    return weights


def is_cached(run: Path, step: int) -> bool:
    (shard,) = run.glob(f"{step:09d}-*/*.safetensors")
    store = PosixStore(run, readonly=True)
    reader = store.open(f"{shard.parent.name}/{shard.name}")
    try:
        return reader.is_cached()
    finally:
        reader.close()
        store.close()


def read(run: Path) -> module.Prefetch:
    """A prefetch that has ended."""
    reading = prefetch(run)
    assert reading.wait(_DEADLINE_S)
    assert reading.done
    return reading


def test_the_newest_checkpoint_comes_to_the_page_cache_and_is_restored_bit_for_bit(tmp_path: Path) -> None:
    weights = make_run(tmp_path / "run")
    if is_cached(tmp_path / "run", 2):
        pytest.skip("this file system keeps everything in memory")

    reading = read(tmp_path / "run")

    assert reading.outcome == "step 2 is in the page cache"
    assert reading.done_bytes == reading.total_bytes > _SIZE
    assert is_cached(tmp_path / "run", 2)
    assert not is_cached(tmp_path / "run", 1)
    found = np.zeros_like(weights)
    with holdfast.Checkpointer(tmp_path / "run", {"w": found}) as ckpt:
        ckpt.restore()
    assert found.tobytes() == weights.tobytes()


@pytest.mark.parametrize("damage", ["missing", "empty", "not a run", "no manifests", "truncated", "a fifo"])
def test_a_run_that_cannot_be_read_is_harmless(tmp_path: Path, damage: str) -> None:
    run = tmp_path / "run"
    if damage in ("empty", "not a run"):
        run.mkdir()
        (run / "other").write_text("something") if damage == "not a run" else None
    elif damage != "missing":
        make_run(run)
    for shard in run.glob("*/*.safetensors"):
        if damage == "no manifests":
            (shard.parent / "manifest.json").write_bytes(b"\0" * 100)
        elif damage == "truncated":
            os.truncate(shard, 100)
        elif damage == "a fifo":
            shard.unlink()
            os.mkfifo(shard)

    reading = read(run)

    assert reading.done_bytes < _SIZE
    assert reading.outcome


def test_what_is_not_a_path_is_an_error_of_the_caller() -> None:
    for wrong in (None, 3, b"run", ""):
        with pytest.raises(holdfast.UsageError, match="is not a path"):
            prefetch(wrong)  # type: ignore[arg-type]


def test_nothing_is_read_where_it_would_take_more_than_half_of_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "run")
    monkeypatch.setattr(module, "memory_room", lambda: Room(2 * _SIZE - 1, "the memory of a small machine"))

    reading = read(tmp_path / "run")

    assert reading.done_bytes == 0
    assert "more than half of the memory of a small machine" in reading.outcome


def test_a_prefetch_that_is_cancelled_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "run")
    readings: list[module.Prefetch] = []
    begin = module.Prefetch._work

    def remember(reading: module.Prefetch) -> None:
        readings.append(reading)
        begin(reading)

    def cancel() -> Room:  # when it is about to read: nothing depends on time
        readings[0].cancel()
        return Room(1 << 40, "nothing")

    monkeypatch.setattr(module.Prefetch, "_work", remember)
    monkeypatch.setattr(module, "memory_room", cancel)

    reading = read(tmp_path / "run")

    assert (reading.done_bytes, reading.outcome) == (0, "cancelled")


def test_what_is_in_memory_already_is_not_read(tmp_path: Path) -> None:
    state = {"w": np.arange(1000.0)}
    ckpt = holdfast.Checkpointer(tmp_path / "run", state, background="thread")
    try:
        ckpt.save(step=7).wait()
        if not find_arenas(ckpt._session.run_id):
            pytest.skip("this machine has no shared memory")

        reading = read(tmp_path / "run")
    finally:
        ckpt.close()

    assert (reading.done_bytes, reading.outcome) == (0, "step 7 is in memory: nothing has to be read")


def test_a_prefetch_imports_no_framework(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    program = (
        "import sys, holdfast; holdfast.prefetch(sys.argv[1]).wait();"
        "print({'numpy', 'torch', 'jax', 'msgspec', 'rich'} & set(sys.modules))"
    )

    command = [sys.executable, "-c", program, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_a_program_ends_while_a_prefetch_goes_on(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    program = "import sys, holdfast; holdfast.prefetch(sys.argv[1])"

    command = [sys.executable, "-c", program, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_DEADLINE_S)

    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_that_is_removed_meanwhile_is_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "run")

    def remove() -> Room:
        shutil.rmtree(tmp_path / "run")
        return Room(1 << 40, "nothing")

    monkeypatch.setattr(module, "memory_room", remove)

    assert read(tmp_path / "run").outcome.startswith("stopped: ")
