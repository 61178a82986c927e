"""How much memory there is, by the files of the system."""

from pathlib import Path

import pytest

from holdfast.tiers.room import Room, memory_room

MIB = 1 << 20


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    place = tmp_path / "proc"
    (place / "self").mkdir(parents=True)
    (place / "meminfo").write_text("MemTotal: 4096 kB\nMemAvailable:    2048 kB\n")
    return place


def group(place: Path, **files: object) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (place / name.replace("memory_", "memory.", 1).replace("cgroup_", "cgroup.")).write_text(f"{text}\n")
    return place


def test_without_control_groups_the_machine_decides(proc: Path, tmp_path: Path) -> None:
    assert memory_room(proc, tmp_path / "none") == Room(2 * MIB, "the memory of this machine (MemAvailable)")


def test_where_nothing_can_be_read_there_is_no_limit(tmp_path: Path) -> None:
    assert memory_room(tmp_path, tmp_path).free_bytes == 1 << 62


def test_version_2_counts_what_can_be_reclaimed_as_free(proc: Path, tmp_path: Path) -> None:
    (proc / "self/cgroup").write_text("0::/job/step\n")
    top = group(tmp_path / "cg", cgroup_controllers="memory")
    stat = "anon 10\nfile 900000\nshmem 800000\ninactive_file 70000\nactive_file 30000"
    group(top / "job/step", memory_max=1_000_000, memory_current=900_000, memory_stat=stat)

    room = memory_room(proc, top)

    assert room.free_bytes == 200_000
    assert "job/step" in room.limited_by


def test_the_tightest_group_above_counts(proc: Path, tmp_path: Path) -> None:
    (proc / "self/cgroup").write_text("0::/job/step\n")
    top = group(tmp_path / "cg", cgroup_controllers="memory")
    group(top / "job/step", memory_max="max", memory_current=5)
    group(top / "job", memory_max=500_000, memory_current=499_000)

    assert memory_room(proc, top).free_bytes == 1000


def test_version_1_in_a_container_where_only_its_own_group_is_shown(proc: Path, tmp_path: Path) -> None:
    (proc / "self/cgroup").write_text("5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/docker/abc\n")
    group(
        tmp_path / "cg/memory",
        memory_limit_in_bytes=1_000_000,
        memory_usage_in_bytes=600_000,
        memory_stat="total_inactive_file 100000\ntotal_active_file 0",
    )

    assert memory_room(proc, tmp_path / "cg").free_bytes == 500_000


def test_a_group_that_is_over_its_limit_leaves_nothing(proc: Path, tmp_path: Path) -> None:
    (proc / "self/cgroup").write_text("0::/\n")
    top = group(tmp_path / "cg", cgroup_controllers="memory", memory_max=1000, memory_current=5000)

    assert memory_room(proc, top).free_bytes == 0


def test_this_machine_has_some() -> None:
    assert 0 < memory_room().free_bytes < 1 << 60
