"""What `ls`, `show` and `doctor` say of checkpoints that are in the memory of this machine."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.cli import memory
from holdfast.engine.memory_checkup import examine_memory
from holdfast.tiers.arena import Arena
from holdfast.tiers.directory import DEFAULT_ROOT
from holdfast.tiers.finding import find_arenas
from tests.cli.conftest import Answer

_DEADLINE_S = 60
_TRAINING = """
import sys, time
import numpy as np
import holdfast

ckpt = holdfast.Checkpointer(sys.argv[1], {"w": np.arange(1000.0)}, random=False)
ckpt.save(step=10, metrics={"loss": 0.5}).wait()
ckpt.save(step=20, metrics={"loss": 0.25}).wait()
print("saved", flush=True)
time.sleep(600)
"""


class Killed(NamedTuple):
    """A run whose training was killed, and what is left of it in memory."""

    path: Path
    run_id: str


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Killed]:
    """Both of its checkpoints are durable, and in memory."""
    if not os.access(DEFAULT_ROOT, os.W_OK):
        pytest.skip("this machine has no shared memory")
    monkeypatch.chdir(tmp_path)
    environment = {name: value for name, value in os.environ.items() if name != "HOLDFAST_BACKGROUND"}
    command = [sys.executable, "-c", _TRAINING, "run"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as training:
        assert training.stdout is not None
        assert training.stdout.readline() == "saved\n"
        training.send_signal(signal.SIGKILL)
        training.wait(_DEADLINE_S)
    run_id = json.loads((tmp_path / "run/holdfast.json").read_text())["run"]
    yield Killed(tmp_path / "run", run_id)
    for arena in find_arenas(run_id):
        arena.remove()


def lose_on_disk(run: Path, step: int) -> str:
    """As if the training had been killed before the agent could write it; the id."""
    (folder,) = run.glob(f"{step:09d}-*")
    shutil.rmtree(folder)
    lines = (run / "journal.jsonl").read_text().splitlines(keepends=True)
    (run / "journal.jsonl").write_text("".join(line for line in lines if folder.name not in line))
    return folder.name


def test_the_listing_looks_where_arenas_are() -> None:
    assert Path(memory.SHARED_MEMORY) == DEFAULT_ROOT


def test_a_listing_says_where_each_checkpoint_lives(killed: Killed, holdfast_command: Callable[..., Answer]) -> None:
    shutil.rmtree(next(killed.path.glob("000000010-*")))

    answer, document = holdfast_command("ls", "run"), holdfast_command("ls", "run", "--json")

    assert "memory, disk  committed, latest" in answer.out
    (found,) = json.loads(document.out)["checkpoints"]  # the one that was removed on purpose does not come back
    assert (found["step"], found["where"]) == (20, ["memory", "disk"])


def test_one_in_memory_only_is_listed_as_staged_and_is_what_a_restore_takes(
    killed: Killed, holdfast_command: Callable[..., Answer]
) -> None:
    lose_on_disk(killed.path, 20)

    answer, document = holdfast_command("ls", "run"), holdfast_command("ls", "run", "--json")

    assert "memory, disk  committed\n" in answer.out
    assert "memory        staged, latest\n" in answer.out
    assert "1 in the memory of this machine only" in answer.out
    listed = json.loads(document.out)
    assert [found["where"] for found in listed["checkpoints"]] == [["memory", "disk"], ["memory"]]
    assert listed["total_bytes"] == listed["checkpoints"][0]["size_bytes"]  # what it takes on the disk


def test_without_anything_in_memory_all_is_on_the_disk(run: Path, holdfast_command: Callable[..., Answer]) -> None:
    answer = json.loads(holdfast_command("ls", "run", "--json").out)

    assert {tuple(found["where"]) for found in answer["checkpoints"]} == {("disk",)}


def test_show_reads_one_that_is_in_memory_only_and_says_so(
    killed: Killed, holdfast_command: Callable[..., Answer]
) -> None:
    lost = lose_on_disk(killed.path, 20)

    newest, older = holdfast_command("show", "run"), holdfast_command("show", "run", "10")

    assert lost in newest.out
    assert "where       in the memory of this machine only: not durable" in newest.out
    assert "w  float64[1000]" in newest.out
    assert "where       on the disk, and in the memory of this machine" in older.out


def test_the_doctor_tells_of_the_arena_of_a_dead_training_and_how_to_remove_it(
    killed: Killed, holdfast_command: Callable[..., Answer]
) -> None:
    answer = holdfast_command("doctor", "run", "--speed", "0")

    (arena,) = find_arenas(killed.run_id)
    line = next(line for line in answer.out.splitlines() if str(killed.path) in line and "arena" in line)
    assert line.startswith("ok    arena ")
    assert line.endswith(f"(attempt 1, pid {arena.owner.pid}, ended)")
    assert f"the next start restores from it and gives it back; to drop it: rm -r {arena.path}" in answer.out


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "memory"
    place.mkdir()
    return place


def test_the_doctor_tells_a_live_arena_from_one_whose_run_is_gone(root: Path, tmp_path: Path) -> None:
    arena = Arena.create(run_id="run", run=str(tmp_path / "gone"), attempt=3, root=root)
    try:
        alive, *_ = examine_memory("run", root)
        owner = root / f"holdfast-{os.geteuid()}" / arena.path.name / "owner.json" if arena.path else Path()
        owner.write_text(json.dumps({**json.loads(owner.read_text()), "boot_id": "before"}))
        *_, dead = examine_memory(None, root)
    finally:
        arena.release()

    assert (alive.status, alive.advice) == ("ok", "")
    assert alive.found.endswith(f"of {tmp_path}/gone (attempt 3, pid {os.getpid()}, alive)")
    assert dead.status == "warn"
    assert dead.advice == f"that run is not there any more: rm -r {owner.parent}"


def test_the_doctor_promises_no_restore_from_an_arena_that_holds_no_snapshot(root: Path, tmp_path: Path) -> None:
    arena = Arena.create(run_id="run", run=str(tmp_path), attempt=3, root=root)
    try:
        owner = root / f"holdfast-{os.geteuid()}" / arena.path.name / "owner.json" if arena.path else Path()
        owner.write_text(json.dumps({**json.loads(owner.read_text()), "boot_id": "before"}))
        *_, empty = examine_memory(None, root)
    finally:
        arena.release()

    said = "the next start of that run gives it back: it holds no snapshot; to drop it: rm -r"
    assert empty.advice == f"{said} {owner.parent}"


def test_the_doctor_of_a_run_tells_of_its_own_arenas_first_and_of_others_in_short(root: Path, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    runs = {"a": "gone", "b": "b", "c": "gone too", "d": "b"}
    arenas = [Arena.create(run_id=one, run=str(tmp_path / runs[one]), attempt=1, root=root) for one in runs]
    try:
        for arena in arenas[::2]:  # a and c
            owner = root / f"holdfast-{os.geteuid()}" / arena.path.name / "owner.json" if arena.path else Path()
            owner.write_text(json.dumps({**json.loads(owner.read_text()), "boot_id": "before"}))
        found = list(examine_memory("d", root))
        left = [str(arena.path) for arena in arenas[::2]]
    finally:
        for arena in arenas:
            arena.release()

    assert [one.what for one in found] == ["arena", "memory", "other arenas", "other arenas"]
    assert f"of {tmp_path}/b (attempt 1" in found[0].found
    assert (found[2].status, found[3].status) == ("ok", "warn")
    assert "in 2 of runs that are gone" in found[3].found
    assert found[3].advice.count("rm -r") == 1
    assert all(path in found[3].advice for path in left)


def test_the_doctor_says_where_there_is_no_shared_memory(root: Path) -> None:
    (finding,) = examine_memory(None, root / "nowhere")

    assert finding.status == "warn"
    assert "No such file or directory" in finding.found
