"""The working directory of a program under proof."""

import os

import numpy as np
import pytest

import holdfast
from holdfast.proving.mirror import mirror


def test_small_files_are_copied_and_code_and_large_files_are_links(tmp_path):
    origin, target = tmp_path / "mine", tmp_path / "work"
    (origin / "logs").mkdir(parents=True)
    (origin / "logs" / "log.txt").write_text("mine\n")
    (origin / "train.py").write_text("pass\n")
    (origin / "data.bin").write_bytes(bytes(2 << 20))

    mirror(str(origin), str(target))
    with (target / "logs" / "log.txt").open("a") as log:
        log.write("theirs\n")
    (target / "logs" / "new.txt").write_text("theirs\n")

    assert (target / "train.py").is_symlink()
    assert (target / "data.bin").is_symlink()
    assert (origin / "logs" / "log.txt").read_text() == "mine\n"
    assert os.listdir(origin / "logs") == ["log.txt"]


def test_runs_and_the_proof_itself_are_left_out(tmp_path):
    with holdfast.Checkpointer(tmp_path / "runs" / "a", {"w": np.zeros(2)}, background="off") as ckpt:
        ckpt.save(step=1)
    proof = tmp_path / "proof"

    mirror(str(tmp_path), str(proof / "now" / "work"), without=os.path.realpath(proof))

    assert os.listdir(proof / "now" / "work") == ["runs"]
    assert os.listdir(proof / "now" / "work" / "runs") == []


def test_a_tree_that_is_too_large_is_linked_from_there_on(tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.proving.mirror._ENTRIES", 3)
    for number in range(6):
        (tmp_path / "mine" / f"d{number}").mkdir(parents=True)

    mirror(str(tmp_path / "mine"), str(tmp_path / "work"))

    assert [(tmp_path / "work" / f"d{number}").is_symlink() for number in range(6)] == [False] * 3 + [True] * 3


def test_a_link_to_itself_hides_nothing_else(tmp_path):
    origin = tmp_path / "mine"
    origin.mkdir()
    (origin / "loop").symlink_to("loop")
    (origin / "gone").symlink_to("nowhere")
    (origin / "train.py").write_text("pass\n")

    mirror(str(origin), str(tmp_path / "work"))

    assert sorted(os.listdir(tmp_path / "work")) == ["gone", "loop", "train.py"]


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="needs a file system in another")
def test_other_file_systems_are_linked_and_not_read(tmp_path):
    """The root of the system has one whose files are without end."""
    mirror("/dev", str(tmp_path / "work"))

    assert (tmp_path / "work" / "shm").is_symlink()
    assert (tmp_path / "work" / "null").is_symlink()


def test_when_its_time_is_over_the_rest_is_linked(tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.proving.mirror._LIMIT_S", -1.0)
    (tmp_path / "mine" / "d").mkdir(parents=True)
    (tmp_path / "mine" / "log.txt").write_text("mine")

    mirror(str(tmp_path / "mine"), str(tmp_path / "work"))

    assert (tmp_path / "work" / "d").is_symlink()
    assert (tmp_path / "work" / "log.txt").is_symlink()
