"""Checkpoints that were saved while the loss failed: marked, passed over on request, and the one before them kept."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import holdfast
from holdfast.cli.main import main
from holdfast.core.errors import FencedError, NoCheckpointError
from holdfast.engine.catalog import read_catalog
from holdfast.engine.laying import Laid
from holdfast.engine.marks import SUSPECT, clear_mark, set_mark
from holdfast.engine.saving import Document, save_in_foreground
from holdfast.engine.session import Session
from holdfast.engine.suspicion import mark_suspects
from holdfast.policy.keep import keep
from holdfast.storage.posix import PosixStore
from holdfast.testing import FakeClock


class Training:
    """A run whose only weight is its step."""

    def __init__(self, path: Path, keep: holdfast.Keep = holdfast.KEEP_ALL) -> None:
        self.weights = np.zeros(1)
        self.checkpointer = holdfast.Checkpointer(path, {"w": self.weights}, keep=keep, clock=FakeClock())
        self.session: Session = self.checkpointer._session

    def save(self, *steps: int) -> None:
        for step in steps:
            self.weights[0] = step
            self.checkpointer.save(step=step).wait()

    def suspects(self) -> list[int]:
        return [c.step for c in self.checkpointer.checkpoints() if c.suspect]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def training(path: Path) -> Iterator[Training]:
    made = Training(path)
    yield made
    made.checkpointer.close()


def test_those_from_a_step_on_are_marked_once_and_journaled(training: Training, path: Path) -> None:
    training.save(10, 20, 30, 40)

    marked = mark_suspects(training.session, from_step=25, reason="the loss is nan at step 35")
    again = mark_suspects(training.session, from_step=25, reason="another")

    assert training.suspects() == [30, 40]
    assert again == []
    events = [json.loads(line) for line in (path / "journal.jsonl").read_text().splitlines()]
    (event,) = [event for event in events if event["event"] == "suspect"]
    assert (event["ids"], event["reason"]) == (marked, "the loss is nan at step 35")
    assert training.checkpointer.checkpoints()[-1].suspect == "the loss is nan at step 35"


def test_the_one_that_the_attempt_went_on_from_is_marked_too_and_what_it_left_behind_is_not(path: Path) -> None:
    first = Training(path)
    first.save(10, 20, 30)
    first.checkpointer.close()
    second = Training(path)
    second.checkpointer.restore(20)

    mark_suspects(second.session, from_step=15, reason="nan")

    assert second.suspects() == [20]
    second.checkpointer.close()


def test_restore_and_load_take_the_last_healthy_one(
    training: Training, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training.save(10, 20, 30)
    mark_suspects(training.session, from_step=30, reason="the loss is nan at step 31")

    restored = training.checkpointer.restore(which="healthy")

    assert restored is not None
    assert (restored.step, training.weights.tolist()) == (20, [20])
    assert "step 30 is suspect and passed over: the loss is nan at step 31" in caplog.text
    assert holdfast.load(path, "healthy")["w"].tolist() == [20]  # type: ignore[index]
    training.save(25)
    assert holdfast.load(path, "healthy")["w"].tolist() == [25]  # type: ignore[index]


def test_latest_still_takes_a_suspect_one(training: Training, path: Path) -> None:
    training.save(10, 20)
    mark_suspects(training.session, from_step=20, reason="nan")

    assert holdfast.load(path)["w"].tolist() == [20]  # type: ignore[index]


def test_a_run_without_checkpoints_starts_fresh_and_one_without_healthy_ones_does_not(training: Training) -> None:
    assert training.checkpointer.restore("healthy") is None

    training.save(10)
    mark_suspects(training.session, from_step=0, reason="nan")

    with pytest.raises(NoCheckpointError, match="the only usable checkpoint is suspect: nan"):
        training.checkpointer.restore("healthy")


def test_a_damaged_healthy_one_gives_way_to_an_older_healthy_one(training: Training, path: Path) -> None:
    training.save(10, 20, 30, 40)
    mark_suspects(training.session, from_step=40, reason="nan")
    checkpoints = training.checkpointer.checkpoints()
    set_mark(training.session.store, checkpoints[1].id, SUSPECT, reason="an earlier one", clock=FakeClock())
    shard = path / checkpoints[2].id / "rank-00000.safetensors"
    shard.write_bytes(b"\0" * shard.stat().st_size)

    restored = training.checkpointer.restore("healthy")

    assert restored is not None
    assert restored.step == 10


def test_the_mark_can_be_taken_off(training: Training) -> None:
    training.save(10)
    mark_suspects(training.session, from_step=0, reason="nan")
    _save_suspect(training, 20, holdfast.KEEP_ALL)
    for checkpoint in training.checkpointer.checkpoints():
        clear_mark(training.session.store, checkpoint.id, SUSPECT)

    assert training.suspects() == []


def test_removing_a_checkpoint_removes_its_mark(path: Path) -> None:
    training = Training(path, keep=keep(last=1))
    training.save(10, 20)
    mark_suspects(training.session, from_step=20, reason="nan")
    training.save(30)
    training.checkpointer.prune()

    assert [c.step for c in training.checkpointer.checkpoints()] == [30]
    assert not list((path / "marks").glob("*.suspect.json"))
    training.checkpointer.close()


def test_a_draft_that_is_suspect_is_marked_before_it_exists_so_that_pruning_spares_the_healthy_one(path: Path) -> None:
    training = Training(path, keep=keep(last=1))
    training.save(10)

    _save_suspect(training, 20, keep(last=1))
    _save_suspect(training, 30, keep(last=1))

    assert [(c.step, c.suspect) for c in training.checkpointer.checkpoints()] == [(10, ""), (30, "the loss is nan")]
    training.save(40)
    assert [(c.step, c.suspect) for c in training.checkpointer.checkpoints()] == [(40, "")]
    training.checkpointer.close()


def test_a_suspect_one_that_is_not_committed_leaves_no_mark(training: Training, path: Path) -> None:
    training.save(10)
    (path / "attempts" / "000009.json").write_text("{}")

    with pytest.raises(FencedError):
        _save_suspect(training, 20, keep(last=1))

    assert not list((path / "marks").glob("*.suspect.json"))


def test_a_mark_that_cannot_be_written_is_a_warning(
    training: Training, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training.save(10)
    (path / "marks").rmdir() if (path / "marks").exists() else None
    (path / "marks").write_text("not a directory")

    assert mark_suspects(training.session, from_step=0, reason="nan") == []
    assert "cannot be marked suspect" in caplog.text


def test_a_copy_keeps_the_mark(training: Training, path: Path, tmp_path: Path) -> None:
    training.save(10, 20)
    mark_suspects(training.session, from_step=20, reason="nan")

    assert main(["cp", str(path), str(tmp_path / "copy")]) == 0

    store = PosixStore(tmp_path / "copy", readonly=True)
    copied = read_catalog(store, training.session.run_id).checkpoints
    store.close()
    assert [(c.step, c.suspect) for c in copied] == [(10, ""), (20, "nan")]


def _document(step: int) -> Document:
    return Document(step, None, {}, "", (), {}, {}, suspect="the loss is nan")


def _laid(training: Training) -> Laid:
    ckpt = training.checkpointer
    return ckpt._saver.lay_out()


def _save_suspect(training: Training, step: int, rule: holdfast.Keep) -> None:
    save_in_foreground(training.session, _laid(training), _document(step), rule, lambda checkpoint: None)
