"""Memory that is missing, too small, damaged, or holds something else than the disk."""

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import holdfast
from holdfast import Checkpointer
from holdfast.tiers import arena, finding
from holdfast.tiers.room import Room, memory_room
from tests.background.rig import Program, agents_of, arenas, run_program, steps, until

LEAVE_IN_MEMORY = """
w = np.full(1000, 0.0)
ckpt = Checkpointer(RUN, {"w": w}, keep=holdfast.KEEP_ALL)
ckpt.restore()
for step in DURABLE:
    w[:] = step
    ckpt.save(step=step).wait(60)
for agent in agents_of(os.getpid()):
    os.kill(agent, signal.SIGSTOP)
for step in STAGED:
    w[:] = step
    ckpt.save(step=step)
for agent in agents_of(os.getpid()):
    os.kill(agent, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""


def leave_in_memory(run: Path, root: Path, *, durable: list[int], staged: list[int]) -> None:
    """A training that made these steps durable, these only staged, and was killed with its agent."""
    with Program(f"DURABLE, STAGED = {durable}, {staged}\n" + LEAVE_IN_MEMORY, run, root) as program:
        assert program.end()[0] == -signal.SIGKILL
    assert steps(run) == durable


def damage(slot: Path) -> None:
    """Change a byte in the middle of the image."""
    with slot.open("r+b") as file:
        file.seek(4096 + 6000)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def restored(run: Path, **options: object) -> tuple[int, str, float]:
    weights = np.zeros(1000)
    with Checkpointer(run, {"w": weights}, background="process", keep=holdfast.KEEP_ALL, **options) as ckpt:
        found = ckpt.restore()
        return found.step, found.where, float(weights[0])


@pytest.fixture
def small_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A memory file system with 8 MB."""
    place = tmp_path / "shm"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)], check=False)
    if mounted.returncode != 0:
        pytest.skip("a tmpfs cannot be mounted here")
    monkeypatch.setattr(arena, "DEFAULT_ROOT", place)
    monkeypatch.setattr(finding, "DEFAULT_ROOT", place)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=False)


def test_a_memory_file_system_that_is_too_small_is_gone_without(run, small_memory):
    weights = np.arange(2 << 20, dtype=np.float64)
    with Checkpointer(run, {"w": weights}, background="process") as ckpt:
        for step in range(4):
            weights += 1
            ckpt.save(step=step)
        ckpt.wait(60)
        assert ckpt._stager.background.arena.kind == "memfd"
    assert steps(run) == [1, 2, 3]
    assert holdfast.load(run)["w"].tobytes() == weights.tobytes()
    assert arenas(small_memory) == []


def test_a_state_that_outgrows_the_memory_file_system_is_still_saved(run, small_memory):
    with Checkpointer(run, background="process", keep=holdfast.KEEP_ALL) as ckpt:
        for step, count in enumerate([1000, 300_000, 1_000_000, 3_000_000, 1000]):
            ckpt.save(step=step, tree={"w": np.full(count, step)})
        ckpt.wait(60)
        for step, count in enumerate([1000, 300_000, 1_000_000, 3_000_000, 1000]):
            found = ckpt.load(step)["w"]
            assert (found.size, found[0], found[-1]) == (count, step, step)
    assert arenas(small_memory) == []


def test_a_memory_file_system_that_others_fill_is_gone_without(run, small_memory):
    subprocess.run(["fallocate", "-l", "7900K", str(small_memory / "filler")], check=True)
    with Checkpointer(run, {"w": np.zeros(100_000)}, background="process") as ckpt:
        for step in range(3):
            ckpt.save(step=step)
    assert steps(run) == [0, 1, 2]


def test_without_a_memory_file_system_saves_are_durable_all_the_same(run, tmp_path, monkeypatch):
    monkeypatch.setattr(arena, "DEFAULT_ROOT", tmp_path / "missing")
    monkeypatch.setattr(finding, "DEFAULT_ROOT", tmp_path / "missing")
    with Checkpointer(run, {"w": np.zeros(1000)}, background="process") as ckpt:
        ckpt.save(step=1).wait(60)
        assert ckpt._stager.background.arena.kind == "memfd"
    assert restored(run)[:2] == (1, "disk")


def test_without_any_memory_saves_are_made_in_the_foreground_and_that_is_said_once(run, root, caplog):
    with Checkpointer(run, {"w": np.zeros(1000)}, background="process", memory_bytes=0) as ckpt:
        for step in range(3):
            assert ckpt.save(step=step).durable
        assert ckpt.status().durable_step == 2
    (record,) = caplog.records
    assert "a save returns when it is written" in record.message
    assert "memory_bytes" in record.message
    assert "one more takes" in record.message
    assert steps(run) == [0, 1, 2]


def test_with_memory_for_one_snapshot_a_save_waits_for_the_one_before(run, root, caplog):
    with Checkpointer(run, {"w": np.zeros(100_000)}, background="process", memory_bytes=1_000_000) as ckpt:
        for step in range(5):
            assert ckpt.save(step=step).error is None
    assert len(caplog.records) == 1
    assert steps(run) == [2, 3, 4]


def test_a_small_address_space_is_an_error_or_a_slower_save_and_never_a_wrong_one(run, root):
    out = run_program(
        """
import resource
w = np.arange(4 << 20, dtype=np.float64)
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20), -1))
ckpt = Checkpointer(RUN, {"w": w}, workers=2)
limit = int(open("/proc/self/statm").read().split()[0]) * 4096 + (16 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, -1))
made = 0
for step in range(4):
    try:
        pending = ckpt.save(step=step)
        pending.wait(60)
        made += 1
    except (MemoryError, holdfast.HoldfastError) as error:
        say("refused", type(error).__name__)
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
ckpt.save(step=9).wait(60)
ckpt.close()
say("made", made)
""",
        run,
        root,
    )
    assert "made" in out
    assert steps(run)[-1] == 9
    found = holdfast.load(run)["w"]
    assert found.tobytes() == np.arange(4 << 20, dtype=np.float64).tobytes()


def test_without_free_descriptors_saves_fail_and_work_again_when_there_are_some(run, root):
    out = run_program(
        """
w = np.zeros(1000)
ckpt = Checkpointer(RUN, {"w": w})
ckpt.save(step=0).wait(60)
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
for step in (1, 2, 3):
    pending = ckpt.save(step=step)
    try:
        pending.wait(60)
    except holdfast.HoldfastError as error:
        say("failed")
for descriptor in taken:
    os.close(descriptor)
ckpt.save(step=4).wait(60)
ckpt.close()
say("closed")
""",
        run,
        root,
    )
    assert out.split()[-1] == "closed"
    assert steps(run)[-1] == 4


def test_without_descriptors_from_the_start_it_saves_in_the_foreground_or_says_why(run, root):
    out = run_program(
        """
import resource
w = np.zeros(1000)
count = len(os.listdir("/proc/self/fd")) - 1
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
for room in range(4, 24):
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + room, hard))
    try:
        with Checkpointer(RUN / str(room), {"w": w}) as ckpt:
            ckpt.save(step=1).wait(60)
        say(room, "durable")
    except holdfast.HoldfastError as error:
        say(room, "refused")
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
until(lambda: len(os.listdir("/proc/self/fd")) - 1 <= count)  # the thread that hears signals closes its own
say("nothing left")
""",
        run,
        root,
    )
    lines = out.splitlines()
    assert lines[-2].endswith("durable")
    assert lines[-1] == "nothing left"


def test_the_newer_one_is_in_memory(run, root):
    leave_in_memory(run, root, durable=[1], staged=[2])
    assert restored(run) == (2, "memory", 2)
    assert steps(run) == [1, 2]
    assert arenas(root) == []


def test_memory_of_an_attempt_before_is_given_back_also_where_the_new_one_has_none(run, root):
    leave_in_memory(run, root, durable=[1], staged=[2])
    with Checkpointer(run, {"w": np.zeros(1000)}, background="process", memory_bytes=0) as ckpt:
        ckpt.restore()
        held = len(arenas(root))
        assert ckpt.save(step=3).durable
        assert len(arenas(root)) == held - 1


def test_the_newer_one_is_on_the_disk(run, root):
    leave_in_memory(run, root, durable=[1], staged=[2])
    saved = [shutil.copytree(path, root / "aside") for path in arenas(root)]
    weights = np.zeros(1000)
    with Checkpointer(run, {"w": weights}, background="process", keep=holdfast.KEEP_ALL) as ckpt:
        ckpt.restore()
        weights[:] = 3
        ckpt.save(step=3)
    shutil.move(saved[0], root / f"holdfast-{os.geteuid()}" / "again-1-00")
    assert restored(run) == (3, "disk", 3)
    assert restored(run) == (3, "disk", 3)
    assert steps(run) == [1, 2, 3]


def test_one_that_is_damaged_in_memory_is_read_from_the_disk(run, root, caplog):
    leave_in_memory(run, root, durable=[1, 2], staged=[])
    for slot in arenas(root)[0].glob("slot-*"):
        damage(slot)
    assert restored(run) == (2, "disk", 2)
    assert "damaged in memory, and read from the disk" in caplog.text


def test_one_that_is_damaged_in_memory_is_read_from_the_disk_also_where_some_of_the_state_stays(run, root):
    leave_in_memory(run, root, durable=[1, 2], staged=[])
    for slot in arenas(root)[0].glob("slot-*"):
        damage(slot)
    weights, more = np.zeros(1000), np.ones(3)
    with Checkpointer(run, {"w": weights, "more": more}, background="process") as ckpt:
        found = ckpt.restore(strict=False)
        assert (found.step, found.where, weights[0]) == (2, "disk", 2)


def test_one_that_only_memory_has_and_is_damaged_gives_way_to_an_older_one(run, root, caplog):
    leave_in_memory(run, root, durable=[1], staged=[2, 3])
    (newest,) = [slot for slot in arenas(root)[0].glob("slot-*") if np.full(9, 3.0).tobytes() in slot.read_bytes()]
    damage(newest)
    assert restored(run) == (2, "memory", 2)
    assert "fell back to the checkpoint of step 2" in caplog.text
    assert steps(run) == [1, 2]


def test_memory_that_is_damaged_throughout_gives_way_to_the_disk(run, root):
    leave_in_memory(run, root, durable=[1], staged=[2, 3])
    for slot in arenas(root)[0].glob("slot-*"):
        damage(slot)
    assert restored(run) == (1, "disk", 1)


def test_memory_that_was_cut_off_gives_way_to_the_disk(run, root):
    leave_in_memory(run, root, durable=[1], staged=[2, 3])
    for slot in arenas(root)[0].glob("slot-*"):
        os.truncate(slot, 5000)
    assert restored(run) == (1, "disk", 1)


def test_one_that_was_removed_does_not_come_back_from_memory(run, root):
    leave_in_memory(run, root, durable=[1, 2], staged=[])
    out = run_program(
        """
from holdfast.cli.main import main
(name,) = [path.name for path in RUN.glob("000000002-*")]
try:
    say(main(["rm", str(RUN), name, "--yes"]))
except SystemExit as end:
    say(end.code)
""",
        run,
        root,
    )
    assert steps(run) == [1], out
    assert restored(run)[:2] in [(1, "disk"), (1, "memory")]


def test_an_adoption_that_has_no_room_leaves_the_snapshot_until_the_next_save(run, root, caplog):
    leave_in_memory(run, root, durable=[1], staged=[2])
    weights = np.zeros(1000)
    with Checkpointer(run, {"w": weights}, background="process", memory_bytes=0) as ckpt:
        assert ckpt.restore().step == 2
        ckpt.wait(60)
    assert "step 2 is in memory only" in caplog.text
    assert restored(run)[:2] == (2, "memory")
    assert steps(run) == [1, 2]


def test_restoring_an_older_one_does_not_bring_the_newer_one_back_from_memory(run, root):
    leave_in_memory(run, root, durable=[1], staged=[2])
    weights = np.zeros(1000)
    with Checkpointer(run, {"w": weights}, background="process", keep=holdfast.KEEP_ALL) as ckpt:
        assert ckpt.restore(which=1).step == 1
        weights[:] = 15
        ckpt.save(step=2).wait(60)
    assert restored(run)[2] == 15
    assert steps(run) == [1, 2]


def test_a_rollback_to_what_only_this_process_has_in_memory_makes_it_durable(run, root, monkeypatch):
    monkeypatch.setattr("holdfast.agent.staging._CLOSE_PATIENCE_S", 0.2)
    weights = np.zeros(1000)
    with Checkpointer(run, {"w": weights}, background="process", keep=holdfast.KEEP_ALL) as ckpt:
        ckpt.save(step=1).wait(60)
        (agent,) = agents_of(os.getpid())
        os.kill(agent, signal.SIGSTOP)
        weights[:] = 2
        pending = ckpt.save(step=2)
        weights[:] = 3
        found = ckpt.restore()
        assert (found.step, found.where, weights[0], pending.settled) == (2, "memory", 2, False)
        os.kill(agent, signal.SIGCONT)
        ckpt.wait(60)
        # The first try belongs to an attempt that this process has left itself: nobody else has taken the run.
        ckpt.save(step=3).wait(60)
    assert steps(run) == [1, 2, 3]
    assert arenas(root) == []


def test_memory_for_snapshots_is_made_ready_at_once_in_a_new_run_and_after_the_restore_in_another(
    run, root, monkeypatch
):
    monkeypatch.setattr("holdfast.agent.restorer._AFTER_RESTORE_S", 0.0)
    state = {"w": np.zeros(4 << 20)}
    with Checkpointer(run, state, background="process") as ckpt:
        until(lambda: len(ckpt._stager.background.arena.slots) == 2)
        ckpt.save(step=1)
    with Checkpointer(run, state, background="process") as ckpt:
        assert ckpt._stager.background.arena._fitting is None
        assert ckpt.restore().step == 1
        until(lambda: len(ckpt._stager.background.arena.slots) == 2)
    with Checkpointer(run, state, background="process", fresh=True) as ckpt:
        until(lambda: len(ckpt._stager.background.arena.slots) == 2)


def test_memory_that_is_made_ready_later_is_there_when_a_save_asks_for_it(run, root, monkeypatch):
    monkeypatch.setattr("holdfast.agent.restorer._AFTER_RESTORE_S", 600.0)
    state = {"w": np.arange(4.0 * (1 << 20))}
    with Checkpointer(run, state, background="process") as ckpt:
        ckpt.save(step=1)
    with Checkpointer(run, state, background="process") as ckpt:
        ckpt.restore()
        ckpt.save(step=2).wait(60)
    with Checkpointer(run, state, background="process") as ckpt:
        assert ckpt.restore().step == 2  # and close() does not wait for the time to pass


def test_a_save_waits_for_memory_that_is_being_made_ready_also_where_there_is_enough(run, root, monkeypatch):
    with Checkpointer(run, {"w": np.zeros(1000)}, background="thread") as ckpt:
        ckpt.save(step=1).wait(60)
        memory = ckpt._stager.background.arena
        fitted = threading.Event()

        def slow_room() -> Room:
            memory._hurry.wait()
            fitted.set()
            return memory_room()

        monkeypatch.setattr(arena, "memory_room", slow_room)
        memory.fit_in_background(1 << 20)

        assert ckpt._stager.background.has_room(8000)

        assert fitted.is_set()
        assert not memory.is_fitting


def test_a_rollback_leaves_memory_that_is_large_enough_as_it_is(run, root):
    with Checkpointer(run, {"w": np.zeros(4 << 20)}, background="process") as ckpt:
        ckpt.save(step=1).wait(60)
        before = ckpt._stager.background.arena._fitting
        ckpt.restore()

        assert ckpt._stager.background.arena._fitting is before


def test_the_agent_stays_light_when_it_has_written_a_large_state(tmp_path):
    """Forty megabytes of its own; the snapshot that it reads is the training's memory."""
    state = np.zeros(100_000_000, np.uint8)
    with Checkpointer(tmp_path / "run", {"w": state}, background="process") as ckpt:
        for step in range(2):
            assert ckpt.save(step=step).wait(60)
        (agent,) = agents_of(os.getpid())
        status = Path(f"/proc/{agent}/status").read_text()

    resident_kb, shared_kb = (int(status.split(f"{name}:")[1].split()[0]) for name in ("VmRSS", "RssShmem"))
    assert shared_kb > 90_000
    assert resident_kb - shared_kb < 40 * 1024
