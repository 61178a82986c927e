"""Arenas: where they lie, how many slots they have, what happens where there is no room, and after a fork."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.core.errors import NoSpaceError, StorageError, UsageError
from holdfast.core.limits import PAGE_BYTES
from holdfast.tiers.arena import Arena
from holdfast.tiers.control import CONTROL_BYTES
from tests.descriptors import open_descriptors
from tests.tiers.conftest import MakeArena

MIB = 1 << 20


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def run_child(code: str, *arguments: object) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=120).stdout


def test_an_arena_has_two_slots_in_files_for_nobody_else(make_arena: MakeArena, root: Path) -> None:
    arena = make_arena()
    before = os.umask(0)
    try:
        assert arena.fit(3 * MIB) == 2
    finally:
        os.umask(before)

    base = root / f"holdfast-{os.geteuid()}"
    assert arena.path is not None
    assert arena.path.parent == base
    assert (arena.kind, arena.shortage, arena.obstacle) == ("file", "", "")
    assert mode_of(base) == mode_of(arena.path) == 0o700
    assert sorted(path.name for path in arena.path.iterdir()) == ["owner.json", "slot-0", "slot-1"]
    for path in arena.path.iterdir():
        assert mode_of(path) == 0o600
    assert not any(os.get_inheritable(slot.descriptor) for slot in arena.slots)


def test_every_byte_is_allocated_before_it_is_used(make_arena: MakeArena) -> None:
    arena = make_arena()

    arena.fit(3 * MIB)

    for slot in arena.slots:
        assert os.fstat(slot.descriptor).st_blocks * 512 == 3 * MIB + CONTROL_BYTES


def test_generations_increase_over_all_slots_and_when_slots_grow(make_arena: MakeArena) -> None:
    arena = make_arena()
    arena.fit(PAGE_BYTES)
    found = [arena.slots[index].finish(1, b"") for index in (0, 1, 0)]
    arena.fit(9 * PAGE_BYTES)
    found += [arena.slots[index].finish(1, b"") for index in (1, 0)]

    assert found == [1, 2, 3, 4, 5]


def test_slots_grow_and_never_shrink(make_arena: MakeArena) -> None:
    arena = make_arena()
    arena.fit(3 * MIB)
    slots = list(arena.slots)

    assert arena.fit(MIB) == 2
    assert [slot.capacity_bytes for slot in arena.slots] == [3 * MIB] * 2
    assert arena.fit(5 * MIB + 1) == 2
    assert [slot.capacity_bytes for slot in arena.slots] == [5 * MIB + PAGE_BYTES] * 2
    assert arena.slots == slots


def test_a_second_slot_that_is_not_wanted_is_kept_while_it_is_large_enough(make_arena: MakeArena) -> None:
    arena = make_arena()
    arena.fit(MIB)

    assert arena.fit(MIB, slots=1) == 2
    assert arena.fit(2 * MIB, slots=1) == 1
    assert arena.path is not None
    assert not (arena.path / "slot-1").exists()


@pytest.mark.parametrize(
    ("limit_bytes", "slots"), [(2 * (MIB + CONTROL_BYTES), 2), (2 * MIB, 1), (MIB + CONTROL_BYTES, 1), (MIB, 0)]
)
def test_a_limit_decides_how_many_slots_there_are(make_arena: MakeArena, limit_bytes: int, slots: int) -> None:
    arena = make_arena(limit_bytes=limit_bytes)

    assert arena.fit(MIB) == slots == len(arena.slots)
    assert arena.size_bytes <= limit_bytes
    assert ("memory_bytes" in arena.shortage) == (slots < 2)


def test_a_second_slot_gives_way_when_the_first_must_grow(make_arena: MakeArena) -> None:
    arena = make_arena(limit_bytes=4 * MIB)
    assert arena.fit(MIB) == 2

    assert arena.fit(3 * MIB) == 1

    assert arena.slots[0].capacity_bytes == 3 * MIB
    assert arena.shortage.startswith("1 of 2 slots of 3.0 MiB")


def test_more_than_the_machine_has_is_not_tried(make_arena: MakeArena) -> None:
    arena = make_arena()
    arena.fit(MIB)

    assert arena.fit(1 << 50) == 0

    assert arena.slots == []
    assert "MiB" in arena.shortage
    assert arena.path is not None
    assert os.listdir(arena.path) == ["owner.json"]
    assert arena.fit(MIB) == 2
    assert arena.shortage == ""


def test_release_leaves_nothing(root: Path) -> None:
    before = open_descriptors()
    arena = Arena.create(run_id="run", run="/runs/a", attempt=1, root=root)
    arena.fit(MIB)
    view = arena.slots[0].image(MIB)
    arena.slots[0].finish(MIB, b"m")

    arena.release()
    arena.release()

    assert list((root / f"holdfast-{os.geteuid()}").iterdir()) == []
    view[0] = 1
    view.release()
    del view
    assert open_descriptors() == before
    with pytest.raises(StorageError, match="released"):
        arena.fit(MIB)
    with pytest.raises(StorageError, match="released"):
        arena.fit_in_background(MIB)


def test_fit_waits_for_what_runs_in_the_background(make_arena: MakeArena) -> None:
    arena = make_arena()

    arena.fit_in_background(64 * MIB)

    assert arena.fit(64 * MIB) == 2
    assert [slot.capacity_bytes for slot in arena.slots] == [64 * MIB] * 2


def test_release_ends_what_runs_in_the_background(make_arena: MakeArena, root: Path) -> None:
    before = open_descriptors()
    arena = make_arena()
    arena.fit_in_background(1 << 30, slots=1)

    arena.release()

    assert list((root / f"holdfast-{os.geteuid()}").iterdir()) == []
    assert open_descriptors() == before


def test_two_arenas_in_one_process_do_not_know_each_other(make_arena: MakeArena) -> None:
    first, second = make_arena(), make_arena()
    first.fit(MIB)
    second.fit(MIB)
    first.slots[0].image(1)[:] = b"1"
    first.slots[0].finish(1, b"first")
    second.slots[0].image(1)[:] = b"2"
    second.slots[0].finish(1, b"second")

    first.release()

    content = second.slots[0].content()
    assert content is not None
    assert content.manifest == b"second"
    assert bytes(second.slots[0].image(1)) == b"2"


def test_names_that_could_leave_the_directory_are_refused(root: Path) -> None:
    with pytest.raises(UsageError):
        Arena.create(run_id="../x", run="/runs/a", attempt=1, root=root)
    assert list(root.iterdir()) == []


# Where no directory can be had


def test_without_shared_memory_slots_are_memfds(make_arena: MakeArena, tmp_path: Path) -> None:
    arena = make_arena(root=tmp_path / "absent")

    assert arena.fit(MIB) == 2
    assert (arena.kind, arena.path) == ("memfd", None)
    assert "absent" in arena.obstacle
    arena.slots[1].finish(5, b"m")
    assert arena.slots[1].content() is not None
    assert arena.fit(2 * MIB) == 2
    assert arena.slots[1].content() is not None


@pytest.mark.parametrize("bad", ["link", "file", "group bits", "foreign"])
def test_what_is_not_ours_in_our_place_is_left_alone(
    make_arena: MakeArena, root: Path, tmp_path: Path, bad: str
) -> None:
    place = root / f"holdfast-{os.geteuid()}"
    if bad == "link":
        place.symlink_to(tmp_path)
    elif bad == "file":
        place.write_text("mine")
    else:
        place.mkdir(mode=0o700)
    if bad == "group bits":
        place.chmod(0o750)
    if bad == "foreign":
        if os.geteuid() != 0:
            pytest.skip("only root can give a directory away")
        os.chown(place, 12345, 12345)

    arena = make_arena()

    assert arena.fit(MIB) == 2
    assert arena.kind == "memfd"
    assert place.name in arena.obstacle
    assert list(tmp_path.iterdir()) == []
    assert place.is_file() or list(place.iterdir()) == []


def test_where_the_mount_is_too_small_slots_are_memfds(make_arena: MakeArena, small_mount: Path) -> None:
    arena = make_arena(root=small_mount)

    assert arena.fit(20 * MIB) == 2

    assert arena.kind == "memfd"
    assert [slot.kind for slot in arena.slots] == ["memfd", "memfd"]
    arena.slots[0].image(20 * MIB)[-1] = 1
    assert arena.path is not None
    assert os.listdir(arena.path) == ["owner.json"]


def test_where_the_mount_takes_no_more_files_slots_are_memfds(make_arena: MakeArena, small_mount: Path) -> None:
    arena = make_arena(root=small_mount)
    # As many as there are: the mount's root, the user's directory, the arena's, its owner.
    subprocess.run(["mount", "-o", "remount,nr_inodes=4", str(small_mount)], check=True)

    assert arena.fit(MIB) == 2

    assert [slot.kind for slot in arena.slots] == ["memfd", "memfd"]


def test_one_slot_in_a_file_and_one_in_a_memfd_where_the_mount_has_room_for_one(
    make_arena: MakeArena, small_mount: Path
) -> None:
    arena = make_arena(root=small_mount)

    assert arena.fit(5 * MIB) == 2
    assert [slot.kind for slot in arena.slots] == ["file", "memfd"]
    assert arena.kind == "memfd"

    assert arena.fit(10 * MIB) == 2
    assert [slot.kind for slot in arena.slots] == ["memfd", "memfd"]
    arena.slots[0].image(10 * MIB)[-1] = 1


def test_a_full_mount_is_an_error_of_finish_and_no_signal(make_arena: MakeArena, small_mount: Path) -> None:
    arena = make_arena(root=small_mount)
    arena.fit(3 * MIB)
    arena.slots[0].finish(3 * MIB, b"old")
    _fill(small_mount / "others")

    with pytest.raises(NoSpaceError, match="writing the manifest"):
        arena.slots[0].finish(3 * MIB, bytes(MIB))

    assert arena.slots[0].content() is None
    assert arena.slots[0].finish(MIB, bytes(MIB)) == 3  # behind a smaller image there is room already


def test_a_mount_that_fills_up_while_a_slot_grows_costs_nothing_but_the_file(
    make_arena: MakeArena, small_mount: Path
) -> None:
    arena = make_arena(root=small_mount)
    arena.fit(MIB, slots=1)
    before = os.fstat(arena.slots[0].descriptor).st_size
    _fill(small_mount / "others")

    with pytest.raises(OSError, match="No space"):
        arena.slots[0].grow(40 * MIB)

    assert os.fstat(arena.slots[0].descriptor).st_size == before
    assert arena.slots[0].capacity_bytes == MIB
    arena.slots[0].image(MIB)[-1] = 1


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(PAGE_BYTES))
        except OSError:
            pass


# Limits of the process


_NO_DESCRIPTORS = """
import os, resource, sys
from pathlib import Path
from holdfast.core.errors import StorageError
from holdfast.tiers.arena import Arena
root = Path(sys.argv[1])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
before = os.listdir("/proc/self/fd")
made = 0
for limit in range(len(before) - 1, 40):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        arena = Arena.create(run_id="run", run="/runs/a", attempt=1, root=root)
    except StorageError as error:
        assert error.errno == 24, error
    else:
        try:
            made += arena.fit(8192)
        except StorageError as error:
            assert error.errno == 24, error
        arena.release()
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    assert os.listdir("/proc/self/fd") == before, (limit, before, os.listdir("/proc/self/fd"))
    left = [str(path) for path in root.glob("*/*")]
    if left:
        print("left", limit, left)
print(made > 0)
"""


def test_without_file_descriptors_our_error_is_raised_and_nothing_leaks(root: Path) -> None:
    assert run_child(_NO_DESCRIPTORS, root) == "True\n"


_LITTLE_ADDRESS_SPACE = """
import os, resource, sys
from pathlib import Path
from holdfast.tiers.arena import Arena
used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (int(sys.argv[2]) << 20),) * 2)
before = os.listdir("/proc/self/fd")
arena = Arena.create(run_id="run", run="/runs/a", attempt=1, root=Path(sys.argv[1]))
print(arena.fit(64 << 20), "ulimit -v" in arena.shortage, sorted(os.listdir(arena.path)))
arena.release()
assert os.listdir("/proc/self/fd") == before
"""


@pytest.mark.parametrize(("room_mib", "slots"), [(40, 0), (110, 1), (400, 2)])
def test_little_address_space_means_fewer_slots_and_says_so(root: Path, room_mib: int, slots: int) -> None:
    names = ["owner.json", "slot-0", "slot-1"][: slots + 1]

    assert run_child(_LITTLE_ADDRESS_SPACE, root, room_mib) == f"{slots} {slots < 2} {names}\n"


_LITTLE_FILES = """
import resource, sys
from pathlib import Path
from holdfast.tiers.arena import Arena
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
arena = Arena.create(run_id="run", run="/runs/a", attempt=1, root=Path(sys.argv[1]))
print(arena.fit(64 << 20), arena.shortage)
arena.release()
"""


def test_a_limit_on_file_sizes_is_a_shortage_and_no_signal(root: Path) -> None:
    assert run_child(_LITTLE_FILES, root).startswith(
        "0 0 of 2 slots of 64.0 MiB in memory: refused by the system (File"
    )


_WITHOUT_MORE_MEMORY = """
import os, resource, sys
from pathlib import Path
from holdfast.tiers.arena import Arena

arena = Arena.create(run_id="run", run="/runs/a", attempt=1, root=Path(sys.argv[1]))
arena.fit(1 << 20)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (9 << 20, hard))
print(arena.fit(16 << 20), sorted(os.listdir(arena.path)))
print(arena.fit(1 << 20), arena.kind)
"""


def test_slots_that_neither_a_file_nor_a_memfd_takes_leave_no_file_behind(small_mount: Path) -> None:
    assert run_child(_WITHOUT_MORE_MEMORY, small_mount).splitlines() == ["0 ['owner.json']", "2 file"]


def test_a_timer_that_interrupts_all_the_time_does_not_keep_an_arena_from_growing(make_arena: MakeArena) -> None:
    ticks = []
    before = signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    try:
        assert make_arena().fit(200 * MIB) == 2
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert ticks


# Forks


_FORK = """
import os, sys
from pathlib import Path
from holdfast.core.errors import StorageError
from holdfast.tiers.arena import Arena
arena = Arena.create(run_id="run", run="/runs/a", attempt=1, root=Path(sys.argv[1]))
arena.fit(8192)
view = arena.slots[0].image(3)
view[:] = b"abc"
arena.slots[0].finish(3, b"m")
arena.fit_in_background(1 << 28)
if sys.argv[2] == "growing":
    while arena.slots[0]._growing is None and arena.slots[0].capacity_bytes < 1 << 28:
        pass
elif sys.argv[2] == "waited":
    arena.fit(1 << 28)
child = os.fork()
if child == 0:
    assert arena.slots == []
    assert bytes(view) == b"abc"
    view.release()
    del view
    arena.release()
    try:
        arena.fit(1)
    except StorageError:
        # What the thread had open that the child does not have, such as /proc/meminfo, is of no matter.
        names = [path for path in Path("/proc/self/fd").iterdir() if path.exists()]
        left = [path for path in names if sys.argv[1] in os.readlink(path)]
        maps = Path("/proc/self/maps").read_text().count("slot-")
        os._exit(10 * len(left) + maps)
    os._exit(99)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(status, arena.fit(1 << 28), arena.slots[0].content().manifest, len(list(arena.path.iterdir())))
arena.release()
"""


@pytest.mark.parametrize("moment", ["at once", "growing", "waited"])
def test_a_forked_child_has_nothing_of_the_arena_and_cannot_remove_it(root: Path, moment: str) -> None:
    assert run_child(_FORK, root, moment) == "0 2 b'm' 3\n"


def test_forget_leaves_the_files(make_arena: MakeArena) -> None:
    arena = make_arena()
    arena.fit(MIB)
    path = arena.path
    assert path is not None

    arena.forget()

    assert len(list(path.iterdir())) == 3


def test_nothing_heavy_is_imported() -> None:
    code = """
import sys
import holdfast.tiers.arena, holdfast.tiers.finding, holdfast.tiers.arena_store
print([name for name in ("numpy", "torch", "rich", "ctypes", "logging") if name in sys.modules])
"""
    assert run_child(code) == "[]\n"
