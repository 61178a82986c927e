"""Format 1 stays readable: golden files, bit for bit, and by the real safetensors library."""

import math
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
import safetensors.torch
import torch

import holdfast
from holdfast.format.encode import encode_state
from tests.vectors.states import STATES, Point, Settings, example, register_classes

HERE = Path(__file__).parent / "v1"
FORMAT_PAGE = Path(__file__).parents[2] / "docs" / "format.md"


def stored(name: str, part: str) -> Path:
    (found,) = (HERE / name).glob(f"*/{part}")
    return found


def contents(state: dict[str, object]) -> tuple[bytes, list[bytes]]:
    encoded = encode_state(state)
    return msgspec.json.encode(encoded.tree), [carrier.tobytes() for carrier in encoded.carriers]


def _outlines(state):
    return [(leaf.name, leaf.dtype, leaf.shape) for leaf in encode_state(state).leaves]


def as_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.fixture(autouse=True)
def registered_classes():
    register_classes()


@pytest.mark.parametrize("name", STATES)
def test_a_golden_checkpoint_gives_the_state_it_was_made_from(name):
    expected = STATES[name]()

    found = holdfast.load(HERE / name)

    assert contents(found) == contents(expected)
    assert _outlines(found) == _outlines(expected)


@pytest.mark.parametrize("name", STATES)
def test_a_golden_checkpoint_restores_in_place(name, tmp_path):
    shutil.copytree(HERE / name, tmp_path / "run")
    (tmp_path / "run").chmod(0o700)
    state = STATES[name]()
    for carrier in encode_state(state).carriers:
        if carrier.flags.writeable:
            carrier[...] = np.zeros((), carrier.dtype)

    with holdfast.Checkpointer(tmp_path / "run", state) as ckpt:
        restored = ckpt.restore()

    assert contents(state) == contents(STATES[name]())
    assert (restored.step, restored.epoch, restored.note) == (1200, 3, "golden")
    assert restored.metrics["loss"] == 0.125
    assert math.isnan(restored.metrics["bad"])


@pytest.mark.parametrize("name", STATES)
def test_the_safetensors_library_opens_a_golden_shard(name):
    found = safetensors.torch.load_file(stored(name, "*.safetensors"))

    encoded = encode_state(STATES[name]())
    stored_leaves = dict(zip((leaf.name for leaf in encoded.leaves), encoded.carriers, strict=True))
    assert found.keys() == stored_leaves.keys()
    assert all(as_bytes(found[name]) == carrier.tobytes() for name, carrier in stored_leaves.items())


def test_unregistered_classes_come_back_as_records_that_keep_their_name(monkeypatch):
    monkeypatch.setattr("holdfast.format.registry._by_name", {})

    classes = holdfast.load(HERE / "plain", only="classes")

    assert type(classes["point"]) is holdfast.Record
    assert dict(classes["point"]) == {"x": 1, "y": 2.5}
    assert classes["point"].type_name.endswith("Point")


def test_registered_classes_come_back_as_themselves():
    classes = holdfast.load(HERE / "plain", only="classes")

    assert classes["point"] == Point(1, 2.5)
    assert classes["settings"] == Settings(0.1, [1, 2])


def test_shared_memory_is_shared_again():
    shared = holdfast.load(HERE / "arrays", only="shared")

    shared["whole"][4] = 99

    assert shared["same"] is shared["whole"] or np.shares_memory(shared["same"], shared["whole"])
    assert shared["part"][0] == 99
    assert shared["turned"][4, 0] == 99


def test_the_worked_example_of_the_format_page_is_this_file():
    manifest = stored("example", "manifest.json").read_text()

    assert manifest in FORMAT_PAGE.read_text()
    assert encode_state(example()).leaves[0].name == "w"
