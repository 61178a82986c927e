"""Verification names exactly what is damaged."""

import os
from pathlib import Path

import numpy as np
import pytest

import holdfast
from holdfast.core.errors import NoCheckpointError
from holdfast.engine.blocks import BlockPool
from holdfast.engine.catalog import read_catalog
from holdfast.engine.identity import identify
from holdfast.engine.loading import Source, read_manifest
from holdfast.engine.verify import leaves_in_chunk, verify_checkpoint
from holdfast.storage.posix import PosixStore

_CHUNK = 1 << 20


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of about three chunks: its source, its value, its directory."""
    arrays = {"a": np.arange(100_000.0), "b": np.arange(200_000.0), "c": np.ones(3)}
    with holdfast.Checkpointer(tmp_path / "run", {"model": arrays}) as ckpt:
        ckpt.save(step=1)
    store = PosixStore(str(tmp_path / "run"), readonly=True)
    run_id = identify(store)
    (checkpoint,) = read_catalog(store, run_id).checkpoints
    yield Source(store, run_id, BlockPool(), 2), checkpoint, tmp_path / "run" / checkpoint.id
    store.close()


def _flip(path: Path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def test_an_intact_checkpoint_has_no_damage_and_all_its_bytes_were_read(saved):
    source, checkpoint, folder = saved
    progress: list[int] = []

    found = verify_checkpoint(source._replace(progress=progress.append), checkpoint)

    assert found.is_intact
    assert found.read_bytes == sum(progress) == (folder / "rank-00000.safetensors").stat().st_size


def test_a_flipped_bit_names_the_chunk_and_the_leaves_in_it(saved):
    source, checkpoint, folder = saved
    _flip(folder / "rank-00000.safetensors", 4096 + 1_500_000)

    found = verify_checkpoint(source, checkpoint)

    (damage,) = found.damage
    assert (damage.file, damage.chunk, damage.leaves) == ("rank-00000.safetensors", 1, ("model.b",))
    assert found.reason == f"rank-00000.safetensors, chunk 1: bytes {_CHUNK}–{2 * _CHUNK} differ from their digest"


def test_every_damaged_chunk_is_named(saved):
    source, checkpoint, folder = saved
    _flip(folder / "rank-00000.safetensors", 5000)
    _flip(folder / "rank-00000.safetensors", 2 * _CHUNK + 5)

    found = verify_checkpoint(source, checkpoint)

    assert [damage.chunk for damage in found.damage] == [0, 2]
    assert found.damage[0].leaves == ("model.a", "model.b")
    assert found.reason.endswith(" and 1 more")


def test_a_truncated_shard_is_said_to_be_too_short(saved):
    source, checkpoint, folder = saved
    os.truncate(folder / "rank-00000.safetensors", 5000)

    (damage,) = verify_checkpoint(source, checkpoint).damage

    assert str(damage).startswith("rank-00000.safetensors: has 5000 bytes, the manifest says")
    # After them the state of torch's generator, where another test has loaded torch.
    assert damage.leaves[:3] == ("model.a", "model.b", "model.c")


def test_a_missing_shard_is_said_to_be_missing(saved):
    source, checkpoint, folder = saved
    (folder / "rank-00000.safetensors").unlink()

    (damage,) = verify_checkpoint(source, checkpoint).damage

    assert str(damage) == "rank-00000.safetensors: is missing"


def test_a_fifo_in_the_place_of_a_shard_is_damage_and_no_hang(saved):
    source, checkpoint, folder = saved
    (folder / "rank-00000.safetensors").unlink()
    os.mkfifo(folder / "rank-00000.safetensors")

    assert not verify_checkpoint(source, checkpoint).is_intact


def test_a_flipped_bit_in_the_manifest_is_damage(saved):
    source, checkpoint, folder = saved
    _flip(folder / "manifest.json", 2000)

    (damage,) = verify_checkpoint(source, checkpoint).damage

    assert damage.file == "manifest.json"
    assert damage.chunk is None


def test_a_checkpoint_that_was_removed_meanwhile_is_not_damaged(saved):
    source, checkpoint, folder = saved
    (folder / "manifest.json").unlink()

    with pytest.raises(NoCheckpointError, match="was removed meanwhile"):
        verify_checkpoint(source, checkpoint)


def test_a_checkpoint_that_is_removed_while_it_is_read_is_not_damaged_either(saved):
    source, checkpoint, folder = saved
    _flip(folder / "rank-00000.safetensors", 2 * _CHUNK + 5)

    def remove(_: int) -> None:
        (folder / "manifest.json").unlink(missing_ok=True)

    with pytest.raises(NoCheckpointError, match="was removed meanwhile"):
        verify_checkpoint(source._replace(progress=remove), checkpoint)


def test_a_leaf_that_only_touches_a_chunks_border_is_not_in_it(saved):
    source, checkpoint, _ = saved
    leaves = read_manifest(source, checkpoint.id).body.leaves
    first = min(leaves, key=lambda leaf: leaf.begin)

    assert leaves_in_chunk(leaves, 0, first.end, first.end + 1) == ("model.b",)
    assert leaves_in_chunk(leaves, 1, 0, first.end) == ()
