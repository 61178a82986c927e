"""The agent's work: whose attempt it writes for, also where the storage refused to say so once."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

import holdfast
from holdfast import Checkpointer
from holdfast.agent.messages import Ahead, Begin, Durable, Failed, Hello, Report, Write
from holdfast.agent.worker import Worker
from holdfast.core.clock import SystemClock
from holdfast.core.errors import HoldfastError, StorageError
from holdfast.core.limits import CHUNK_BYTES
from holdfast.core.names import agent_key
from holdfast.core.values import Checkpoint
from holdfast.engine.ahead import WrittenAhead
from holdfast.engine.capture import capture
from holdfast.engine.identity import identify
from holdfast.engine.laying import lay_out_state
from holdfast.format.encode import encode_state
from holdfast.format.manifest import Body, ShardRecord, encode_manifest
from holdfast.storage.files import Space
from holdfast.storage.posix import PosixStore
from holdfast.tiers.slot import Slot
from tests.descriptors import open_descriptors


class _Refusing(PosixStore):
    """Cannot write the file by which an agent holds the second attempt, once."""

    refused = False

    def publish(self, key: str, data: bytes, **options: bool) -> None:
        if key == agent_key(2) and not self.refused:
            self.refused = True
            raise StorageError("no room for it just now")
        super().publish(key, data, **options)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with Checkpointer(tmp_path / "run", {"w": np.zeros(3)}, background="off") as ckpt:
        ckpt.save(step=1)
    return tmp_path / "run"


def test_an_attempt_that_could_not_be_held_once_is_held_at_the_next_write(run: Path, tmp_path: Path) -> None:
    store = _Refusing(run, create=False)
    hello = Hello(run=str(run), run_id=identify(store), attempt=1, workers=1, keep=holdfast.keep(last=1).to_plain())
    worker = Worker(store, hello, SystemClock())
    reports: list[Report] = []
    (tmp_path / "slot").write_bytes(bytes(1 << 16))
    slot = Slot.attach(os.open(tmp_path / "slot", os.O_RDWR))

    for generation in (1, 2):
        worker.write(slot, Write(0, generation, origin=None, forks=(), attempt=2), reports.append)
    held = store.is_held(agent_key(2))
    slot.close()
    worker.close()

    # The slot is empty, so that nothing is written; what counts is who holds the attempt.
    assert [type(report) for report in reports] == [Failed, Failed]
    assert "no room" in reports[0].message
    assert "no room" not in reports[1].message
    assert held


class _Snapshot:
    """A snapshot as the training makes it: the slot, the state in it, and the orders for it."""

    def __init__(self, place: Path, run_id: str, *, step: int = 2) -> None:
        self.state = np.random.default_rng(step).standard_normal(300_000)
        self._laid = lay_out_state(encode_state({"w": self.state}))
        self._size = self._laid.layout.size_bytes
        self._path = place / f"slot-{step}"
        self._path.touch()
        self.slot = Slot(
            os.open(self._path, os.O_RDWR), where="slot", kind="file", writable=True, next_generation=lambda: step
        )
        self.slot.grow(self._size)
        self.slot.begin()
        self._run_id, self._step = run_id, step
        self.id = f"{step:09d}-e000-20260101T000000Z-a0001"
        self.begin = Begin(0, self.id, self._size, attempt=1)
        self.write = Write(0, step, attempt=1)

    def copy(self) -> None:
        """All of it, and say so."""
        with self.slot.image(self._size) as image:
            self._xxh3 = capture(self._laid.layout, self._laid.encoded.carriers, image, workers=1)
        self.slot.note_filled(self._size)

    def finish(self) -> None:
        """It is complete."""
        checkpoint = Checkpoint(
            id=self.id,
            step=self._step,
            epoch=0,
            attempt=1,
            seq=self._step,
            parent=None,
            origin=None,
            utc_s=0.0,
            size_bytes=self._size,
            leaves=1,
            world=1,
            metrics={},
            note="",
            tags=(),
            pickle=False,
        )
        shard = ShardRecord(
            name="rank-00000.safetensors", size_bytes=self._size, chunk_bytes=CHUNK_BYTES, xxh3=self._xxh3, blake3=[]
        )
        body = Body(
            tree=self._laid.encoded.tree,
            random=None,
            leaves=self._laid.records,
            shards=[shard],
            pickled=[],
            hyperparameters={},
            provenance={},
        )
        self.slot.finish(self._size, encode_manifest(checkpoint, self._run_id, body))

    def is_in(self, run: Path, checkpoint_id: str) -> bool:
        """Whether the checkpoint of that name is this state, bit for bit."""
        return holdfast.load(run, checkpoint_id)["w"].tobytes() == self.state.tobytes()


@pytest.fixture
def worker(run: Path) -> Iterator[Worker]:
    store = PosixStore(run, create=False)
    hello = Hello(run=str(run), run_id=identify(store), attempt=1, workers=2, keep=holdfast.keep(last=9).to_plain())
    made = Worker(store, hello, SystemClock())
    yield made
    made.close()


@pytest.fixture
def snapshot(worker: Worker, tmp_path: Path) -> Iterator[Callable[..., _Snapshot]]:
    made: list[_Snapshot] = []

    def make(**options: int) -> _Snapshot:
        made.append(_Snapshot(tmp_path, worker.run_id, **options))
        return made[-1]

    yield make
    for each in made:
        each.slot.close()


def _goes_on() -> bool:
    return True


def _directories(run: Path, step: int) -> list[str]:
    return sorted(path.name for path in run.iterdir() if path.name.startswith(f"{step:09d}"))


def test_a_snapshot_that_was_written_while_it_was_copied_is_committed_without_writing_it_again(worker, snapshot, run):
    made, reports = snapshot(), []
    made.copy()

    worker.begin(made.slot, made.begin, reports.append, _goes_on)
    begun = os.stat(run / made.id / "rank-00000.safetensors").st_ino
    assert isinstance(reports[-1], Ahead)
    assert reports[-1].done_bytes == made.begin.size_bytes
    with pytest.raises(HoldfastError):
        holdfast.load(run, made.id)  # nothing of it counts (I1)
    made.finish()
    worker.write(made.slot, made.write, reports.append)

    assert reports[-1] == Durable(2, made.id)
    assert os.stat(run / made.id / "rank-00000.safetensors").st_ino == begun
    assert made.is_in(run, made.id)


def test_what_was_read_before_it_was_copied_is_written_again_under_another_name(worker, snapshot, run):
    made, reports = snapshot(), []
    made.slot.note_filled(made.begin.size_bytes)

    worker.begin(made.slot, made.begin, reports.append, _goes_on)
    assert _directories(run, 2) == [made.id]
    made.copy()
    made.finish()
    worker.write(made.slot, made.write, reports.append)

    [durable] = [report for report in reports if isinstance(report, Durable)]
    assert durable.id != made.id
    assert _directories(run, 2) == [durable.id]
    assert made.is_in(run, durable.id)


def test_memory_that_changes_after_it_was_written_ahead_does_not_matter(worker, snapshot, run):
    made, reports = snapshot(), []
    made.copy()
    worker.begin(made.slot, made.begin, reports.append, _goes_on)
    made.finish()
    with made.slot.image(made.begin.size_bytes) as image:
        image[-1] ^= 1

    worker.write(made.slot, made.write, reports.append)

    assert reports[-1] == Durable(2, made.id)
    assert made.is_in(run, made.id)


def test_what_nobody_orders_is_gone_when_the_next_one_begins_or_the_worker_ends(worker, snapshot, run):
    first, second = snapshot(step=2), snapshot(step=3)
    for made in (first, second):
        made.copy()

    worker.begin(first.slot, first.begin, print, _goes_on)
    assert _directories(run, 2) == [first.id]
    worker.begin(second.slot, second.begin, print, _goes_on)
    assert _directories(run, 2) == []
    assert _directories(run, 3) == [second.id]
    worker.close()

    assert _directories(run, 3) == []


def test_what_is_to_be_forgotten_is_gone_with_its_descriptors(worker, snapshot, run):
    made = snapshot()
    made.copy()
    before = open_descriptors()
    worker.begin(made.slot, made.begin, print, _goes_on)
    assert open_descriptors() != before

    worker.forget()

    assert _directories(run, 2) == []
    assert open_descriptors() == before


def test_another_agent_does_not_use_the_name_that_one_before_it_has_begun(worker, snapshot, run):
    """That one may have given it up, and removed it."""
    made, reports = snapshot(), []
    made.copy()
    made.finish()

    worker.write(made.slot, msgspec.structs.replace(made.write, begun=True), reports.append)

    [durable] = [report for report in reports if isinstance(report, Durable)]
    assert durable.id != made.id
    assert made.is_in(run, durable.id)


def test_what_is_written_ahead_needs_no_room_a_second_time(worker, snapshot, run, monkeypatch):
    made, reports = snapshot(), []
    made.copy()
    worker.begin(made.slot, made.begin, reports.append, _goes_on)
    made.finish()
    room = made.begin.size_bytes // 2
    monkeypatch.setattr(worker.store, "space", lambda: Space(free_bytes=room, free_inodes=1000, total_bytes=1 << 40))

    worker.write(made.slot, made.write, reports.append)

    assert reports[-1] == Durable(2, made.id)


def test_what_is_written_ahead_is_gone_where_there_is_no_room_to_commit_it(worker, snapshot, run, monkeypatch):
    made, reports = snapshot(), []
    made.copy()
    before = open_descriptors()
    worker.begin(made.slot, made.begin, reports.append, _goes_on)
    made.finish()
    monkeypatch.setattr(worker.store, "space", lambda: Space(free_bytes=0, free_inodes=0, total_bytes=1 << 40))

    worker.write(made.slot, made.write, reports.append)

    assert isinstance(reports[-1], Failed)
    assert "free are 0 bytes" in reports[-1].message
    assert _directories(run, 2) == []
    assert open_descriptors() == before


def test_a_name_that_was_given_up_is_not_used_again(worker, snapshot, run):
    made, reports = snapshot(), []
    orders = iter([True, False])
    worker.begin(made.slot, made.begin, reports.append, lambda: next(orders))  # another order comes
    assert _directories(run, 2) == []
    made.copy()
    worker.begin(made.slot, made.begin, reports.append, _goes_on)
    assert _directories(run, 2) == []
    made.finish()
    worker.write(made.slot, made.write, reports.append)

    [durable] = [report for report in reports if isinstance(report, Durable)]
    assert durable.id != made.id
    assert made.is_in(run, durable.id)


def test_nothing_is_written_ahead_for_another_attempt_or_where_the_name_is_taken(worker, snapshot, run):
    made = snapshot()
    made.copy()

    worker.begin(made.slot, Begin(0, made.id, made.begin.size_bytes, attempt=2), print, _goes_on)
    assert _directories(run, 2) == []
    (run / made.id).mkdir(mode=0o700)
    (run / made.id / "rank-00000.safetensors").touch(mode=0o600)
    worker.begin(made.slot, made.begin, print, _goes_on)

    assert (run / made.id / "rank-00000.safetensors").stat().st_size == 0


def test_one_that_is_fenced_off_while_it_prunes_does_not_complain(worker, snapshot, run, monkeypatch):
    made, reports = snapshot(), []
    made.copy()
    made.finish()

    def go_back(report: Report) -> None:
        """What a restore() of an older step does, right after this one is durable."""
        reports.append(report)
        if isinstance(report, Durable):
            (run / "attempts" / "000002.json").write_bytes((run / "attempts" / "000001.json").read_bytes())

    monkeypatch.setattr(worker, "_keep", holdfast.keep(last=1))
    worker.write(made.slot, made.write, go_back)

    assert reports[-1] == Durable(2, made.id)
    assert len([path for path in run.iterdir() if path.name.startswith("0000")]) == 2  # it has removed nothing


def test_a_sync_that_fails_has_all_of_it_written_again(worker, snapshot, run, monkeypatch):
    made, reports = snapshot(), []
    made.copy()
    worker.begin(made.slot, made.begin, reports.append, _goes_on)
    made.finish()
    finish, failed = WrittenAhead.finish, []

    def fail(self: WrittenAhead, staged: ShardRecord) -> ShardRecord:
        failed.append(self.checkpoint_id)
        self.writer.fail()  # as the storage does it where it could not sync
        return finish(self, staged)

    monkeypatch.setattr(WrittenAhead, "finish", fail)
    monkeypatch.setattr("holdfast.engine.writing._TRANSIENT", (None,))
    worker.write(made.slot, made.write, reports.append)

    [durable] = [report for report in reports if isinstance(report, Durable)]
    assert failed == [made.id]
    assert durable.id != made.id
    assert _directories(run, 2) == [durable.id]
    assert made.is_in(run, durable.id)
