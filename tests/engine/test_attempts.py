"""One writer at a time: live ones are respected, dead ones taken over, older ones fenced off (I11)."""

import os
import subprocess
import sys

import pytest

from holdfast.core.errors import FencedError, RunBusyError
from holdfast.engine.attempts import begin_attempt, check_fence
from holdfast.engine.holders import latest_holder
from holdfast.storage.posix import PosixStore


def test_attempts_are_numbered_from_one(store, clock):
    assert latest_holder(store) is None

    assert begin_attempt(store, clock) == 1

    holder = latest_holder(store)
    assert holder is not None
    assert (holder.attempt, holder.pid, holder.alive) == (1, os.getpid(), True)


def test_attempts_that_are_lost_are_counted_by_their_checkpoints(store, clock):
    """Or what is saved from now on would be older than what is there, and no restart would find it (I5)."""
    for name in ("000000006-e000-20261116T142315Z-a0007", "000000009-e000-20261116T142316Z-a0002"):
        store.publish(f"{name}/manifest.json", b"{}")
    store.publish("000000001-e000-20261116T142316Z-a999999999/manifest.json", b"{}")  # made up

    assert begin_attempt(store, clock) == 8
    assert begin_attempt(store, clock, takeover=True) == 9


def test_a_second_live_writer_is_refused_and_told_who_holds_the_run(store, clock):
    begin_attempt(store, clock)

    with pytest.raises(RunBusyError, match=f"attempt 1: pid {os.getpid()}"):
        begin_attempt(store, clock)

    check_fence(store, 1)


def test_a_takeover_fences_the_older_attempt(store, clock):
    begin_attempt(store, clock)

    assert begin_attempt(store, clock, takeover=True) == 2

    check_fence(store, 2)
    with pytest.raises(FencedError, match="attempt 1 may no longer write"):
        check_fence(store, 1)


def test_an_attempt_that_is_not_the_newest_any_more_cannot_be_followed(store, clock):
    begin_attempt(store, clock)
    begin_attempt(store, clock, takeover=True)

    with pytest.raises(FencedError, match="attempt 1 may no longer write"):
        begin_attempt(store, clock, takeover=True, follows=1)

    assert begin_attempt(store, clock, takeover=True, follows=2) == 3


def test_a_writer_that_let_go_is_followed_without_a_takeover(store, clock):
    begin_attempt(store, clock)
    store.let_go("attempts/000001.json")

    assert begin_attempt(store, clock) == 2


HOLD_FOREVER = """
import signal, sys
from holdfast.engine.attempts import begin_attempt
from holdfast.storage.posix import PosixStore
from holdfast.testing import FakeClock

begin_attempt(PosixStore(sys.argv[1], create=True), FakeClock())
print("holding", flush=True)
signal.pause()
"""


def test_a_holder_in_another_process_is_respected_until_it_is_killed(tmp_path, clock):
    path = str(tmp_path / "run")
    command = [sys.executable, "-c", HOLD_FOREVER, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "holding\n"
        store = PosixStore(path, create=True)

        with pytest.raises(RunBusyError, match=f"pid {holder.pid}"):
            begin_attempt(store, clock)
        holder.kill()
        holder.wait(60)

    assert begin_attempt(store, clock) == 2
    store.close()


@pytest.mark.parametrize(
    "damage", [b"\x00garbage", b'{"host":"h","pid":1e999,"job":"","since":""}', b'{"pid":NaN}', b"[" * 100_000]
)
def test_a_damaged_attempt_file_still_counts(tmp_path, store, clock, damage):
    begin_attempt(store, clock)
    store.let_go("attempts/000001.json")
    (tmp_path / "run" / "attempts" / "000001.json").write_bytes(damage)

    assert begin_attempt(store, clock) == 2
