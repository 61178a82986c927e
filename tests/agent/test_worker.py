"""The agent's work: whose attempt it writes for, also where the storage refused to say so once."""

import os
from pathlib import Path

import numpy as np
import pytest

import holdfast
from holdfast import Checkpointer
from holdfast.agent.messages import Failed, Hello, Report, Write
from holdfast.agent.worker import Worker
from holdfast.core.clock import SystemClock
from holdfast.core.errors import StorageError
from holdfast.core.names import agent_key
from holdfast.engine.identity import identify
from holdfast.storage.posix import PosixStore
from holdfast.tiers.slot import Slot


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
