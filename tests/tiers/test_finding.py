"""Arenas of others: read after a kill, told apart from live ones, and given back."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.core.errors import StorageError
from holdfast.testing import FakeClock
from holdfast.tiers.finding import FoundArena, find_arenas, reclaim
from holdfast.tiers.slot import Content
from tests.descriptors import open_descriptors
from tests.tiers.conftest import MakeArena, StartChild

HOUR_S = 3600

_TRAIN = """
import sys
from pathlib import Path
from holdfast.tiers.arena import Arena
arena = Arena.create(run_id=sys.argv[2], run="/runs/a", attempt=int(sys.argv[3]), root=Path(sys.argv[1]))
arena.fit(1 << 20)
arena.slots[0].begin()
arena.slots[0].image(1 << 20)[:] = b"x" * (1 << 20)
arena.slots[0].finish(1 << 20, b"manifest 0")
arena.slots[1].begin()
arena.slots[1].image(1 << 20)[: 1 << 19] = b"y" * (1 << 19)
if sys.argv[4] == "complete":
    arena.slots[1].finish(1 << 19, b"manifest 1")
print("ready", flush=True)
sys.stdin.read()
"""


def train(start_child: StartChild, root: Path, *, run_id: str = "run", attempt: int = 1, second: str = "complete"):  # type: ignore[no-untyped-def]
    """A process that has filled its slots, and would go on."""
    child = start_child(_TRAIN, root, run_id, attempt, second)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def contents(arena: FoundArena) -> list[Content | None]:
    slots = arena.slots()
    found = [slot.content() for slot in slots]
    for slot in slots:
        slot.close()
    return found


def age(arena: Path, seconds: float) -> None:
    """Make it look as if it was last used that long ago."""
    for path in (arena, *arena.iterdir()):
        then_s = path.stat().st_mtime - seconds
        os.utime(path, (then_s, then_s))


def rewrite_owner(arena: Path, **fields: object) -> None:
    path = arena / "owner.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def only_arena(root: Path) -> Path:
    (found,) = (root / f"holdfast-{os.geteuid()}").iterdir()
    return found


def test_what_a_killed_training_had_finished_is_there_for_the_next(start_child: StartChild, root: Path) -> None:
    child = train(start_child, root)
    child.send_signal(signal.SIGKILL)
    child.wait()

    (arena,) = find_arenas("run", root)

    assert not arena.alive
    assert (arena.run_id, arena.run, arena.attempt, arena.owner.pid) == ("run", "/runs/a", 1, child.pid)
    assert contents(arena) == [Content(1, 1 << 20, b"manifest 0"), Content(2, 1 << 19, b"manifest 1")]
    first, second = arena.slots()
    assert bytes(first.image(1 << 20)) == b"x" * (1 << 20)
    assert bytes(second.image(1 << 19)) == b"y" * (1 << 19)
    first.close()
    second.close()


def test_a_slot_whose_training_was_killed_while_filling_it_holds_nothing(start_child: StartChild, root: Path) -> None:
    child = train(start_child, root, second="half")
    child.kill()
    child.wait()

    (arena,) = find_arenas("run", root)

    assert contents(arena) == [Content(1, 1 << 20, b"manifest 0"), None]


def test_a_training_lives_until_it_is_killed_also_when_nobody_has_buried_it(
    start_child: StartChild, root: Path
) -> None:
    child = train(start_child, root)
    assert find_arenas("run", root)[0].alive
    child.send_signal(signal.SIGSTOP)
    assert find_arenas("run", root)[0].alive

    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie from here on

    assert not find_arenas("run", root)[0].alive


def test_another_process_with_the_same_number_is_not_the_owner(make_arena: MakeArena, root: Path) -> None:
    arena = make_arena()
    assert arena.path is not None
    assert find_arenas("run", root)[0].alive

    rewrite_owner(arena.path, start_ticks=1)

    assert not find_arenas("run", root)[0].alive


def test_an_arena_of_another_boot_is_dead(make_arena: MakeArena, root: Path) -> None:
    arena = make_arena()
    assert arena.path is not None

    rewrite_owner(arena.path, boot_id="another")

    assert not find_arenas("run", root)[0].alive
    assert reclaim(root, keep_run_id="run") == []
    assert reclaim(root, keep_run_id="another") == [arena.path]


def test_a_training_in_another_container_lives_as_long_as_it_does(start_child: StartChild, root: Path) -> None:
    # The same /dev/shm, other process numbers.
    command = ["unshare", "--pid", "--fork", "--kill-child", "true"]
    if shutil.which("unshare") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this machine does not allow process namespaces of one's own")
    command = [*command[:-1], "--mount-proc", sys.executable, "-c", _TRAIN, str(root), "run", "1", "complete"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"

    (arena,) = find_arenas("run", root)
    assert arena.alive
    age(arena.path, 2 * HOUR_S)
    assert reclaim(root, keep_run_id=None) == []

    child.communicate("")
    rewrite_owner(arena.path, run="/runs/b")  # same file, nobody's lock
    assert not find_arenas("run", root)[0].alive


def test_arenas_are_found_by_run_and_ordered_by_attempt(make_arena: MakeArena, root: Path) -> None:
    for run_id, attempt in (("b", 3), ("a", 10), ("a", 2)):
        make_arena(run_id, attempt)

    assert [arena.attempt for arena in find_arenas("a", root)] == [2, 10]
    assert [arena.attempt for arena in find_arenas(None, root)] == [2, 3, 10]
    assert find_arenas("c", root) == []


@pytest.mark.parametrize("bad", ["absent", "link", "file", "bits"])
def test_where_there_is_nothing_of_ours_nothing_is_found(
    make_arena: MakeArena, root: Path, tmp_path: Path, bad: str
) -> None:
    arena = make_arena()
    assert arena.path is not None
    base = arena.path.parent
    place = tmp_path / base.name
    if bad == "link":
        place.symlink_to(base)
    elif bad == "file":
        place.touch()
    elif bad == "bits":
        place.mkdir()
        place.chmod(0o755)

    assert find_arenas(None, tmp_path) == []
    assert reclaim(tmp_path, keep_run_id=None) == []
    assert find_arenas(None, tmp_path / "absent") == []


def test_looking_takes_no_descriptors(start_child: StartChild, root: Path) -> None:
    train(start_child, root).kill()
    before = open_descriptors()

    for arena in find_arenas(None, root):
        contents(arena)

    assert open_descriptors() == before


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"pid": 1}', "[" * 60_000])
def test_an_owner_that_cannot_be_read_is_nobody_for_an_hour(make_arena: MakeArena, root: Path, text: str) -> None:
    arena = make_arena()
    assert arena.path is not None
    (arena.path / "owner.json").write_text(text)

    assert find_arenas(None, root) == []
    assert reclaim(root, keep_run_id=None) == []

    age(arena.path, 2 * HOUR_S)
    assert reclaim(root, keep_run_id=None) == [arena.path]


def test_strange_things_in_the_place_of_slots_are_left_out(start_child: StartChild, root: Path, tmp_path: Path) -> None:
    train(start_child, root).kill()
    arena = find_arenas("run", root)[0]
    (tmp_path / "secret").write_bytes(bytes(8192))
    (arena.path / "slot-0").unlink()
    (arena.path / "slot-0").symlink_to(tmp_path / "secret")
    (arena.path / "slot-1").unlink()
    os.mkfifo(arena.path / "slot-1")

    assert arena.slots() == []

    arena.remove()
    assert (tmp_path / "secret").exists()


def test_removing_gives_everything_back_once(start_child: StartChild, root: Path) -> None:
    train(start_child, root).kill()
    arena = find_arenas("run", root)[0]
    (slot, other) = arena.slots()
    view = slot.image(1 << 20)

    arena.remove()
    arena.remove()

    assert not arena.path.exists()
    assert arena.slots() == []
    assert find_arenas(None, root) == []
    assert bytes(view[:3]) == b"xxx"
    view.release()
    slot.close()
    other.close()


def test_what_somebody_put_into_an_arena_is_not_removed(start_child: StartChild, root: Path) -> None:
    train(start_child, root).kill()
    arena = find_arenas("run", root)[0]
    (arena.path / "mine").mkdir()
    age(arena.path, 2 * HOUR_S)

    with pytest.raises(StorageError):
        arena.remove()
    assert reclaim(root, keep_run_id=None) == []
    assert os.listdir(arena.path) == ["mine"]


def test_reclaim_takes_dead_arenas_an_hour_after_their_last_snapshot(start_child: StartChild, root: Path) -> None:
    child = train(start_child, root)
    child.kill()
    child.wait()
    arena = only_arena(root)
    last_s = (arena / "owner.json").stat().st_mtime

    assert reclaim(root, keep_run_id="other", clock=FakeClock(last_s + HOUR_S)) == []
    assert reclaim(root, keep_run_id="run", clock=FakeClock(last_s + 9 * HOUR_S)) == []
    assert reclaim(root, keep_run_id="other", clock=FakeClock(last_s + HOUR_S + 1)) == [arena]
    assert not arena.exists()


def test_reclaim_never_takes_what_a_live_training_has(start_child: StartChild, root: Path) -> None:
    train(start_child, root)
    age(only_arena(root), 100 * HOUR_S)

    assert reclaim(root, keep_run_id=None) == []


def test_every_snapshot_makes_an_arena_young_again(make_arena: MakeArena, root: Path) -> None:
    arena = make_arena()
    arena.fit(1)
    assert arena.path is not None
    age(arena.path, 5 * HOUR_S)
    before_s = find_arenas("run", root)[0].touched_s

    arena.slots[0].finish(1, b"")

    assert find_arenas("run", root)[0].touched_s > before_s + 4 * HOUR_S


_CYCLES = """
import os, signal, sys
from pathlib import Path
from holdfast.tiers.arena import Arena

def train():
    arena = Arena.create(run_id="run", run="/runs/a", attempt=1, root=Path(sys.argv[1]))
    arena.fit(1 << 18)
    for slot in arena.slots * 2:
        slot.begin()
        slot.image(1 << 18)[:] = bytes(1 << 18)
        slot.finish(1 << 18, b"manifest")
    return arena

def count_lines(frame, event, _):
    global lines
    if "/tiers/" not in frame.f_code.co_filename and "/storage/" not in frame.f_code.co_filename:
        return None
    lines += event == "line"
    if lines == last:
        os.kill(os.getpid(), signal.SIGKILL)
    return count_lines

lines, last = 0, -1
sys.settrace(count_lines)
train().release()
sys.settrace(None)
total, cycles = lines, int(sys.argv[2])
for cycle in range(cycles):
    if os.fork() == 0:
        lines, last = 0, 1 + cycle * total // cycles  # killed at another line each time
        sys.settrace(count_lines)
        train()
        os._exit(1)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.parametrize("cycles", [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_kills_leave_nothing_after_reclaiming(root: Path, cycles: int) -> None:
    command = [sys.executable, "-c", _CYCLES, str(root), str(cycles)]
    output = subprocess.run(command, check=True, timeout=300, stdout=subprocess.PIPE, text=True).stdout
    assert output.count("-9") > 0.9 * cycles  # the last lines are those of the release
    base = root / f"holdfast-{os.geteuid()}"
    left = list(base.iterdir())
    assert len(left) > cycles / 2

    for arena in find_arenas(None, root):
        assert not arena.alive
        assert all(found is None or found.manifest == b"manifest" for found in contents(arena))
    for path in left:
        age(path, 2 * HOUR_S)

    assert sorted(reclaim(root, keep_run_id="other")) == sorted(left)
    assert list(base.iterdir()) == []
