"""Real shared memory to test in, and processes that can be killed."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.tiers.arena import Arena

MakeArena = Callable[..., Arena]
StartChild = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory in shared memory, in the place of /dev/shm itself."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("this machine has no /dev/shm")
    place = Path(tempfile.mkdtemp(prefix="test-holdfast-", dir="/dev/shm"))
    yield place
    shutil.rmtree(place)


@pytest.fixture
def make_arena(root: Path) -> Iterator[MakeArena]:
    made: list[Arena] = []

    def make(run_id: str = "run", attempt: int = 1, **options: object) -> Arena:
        options = {"root": root, **options}
        made.append(Arena.create(run_id=run_id, run="/runs/a", attempt=attempt, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for arena in made:
        arena.release()


@pytest.fixture
def start_child() -> Iterator[StartChild]:
    """Starts `python -c code arguments…`, killed at the end of the test if it is still there."""
    children: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: object) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", code, *map(str, arguments)]
        children.append(subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True))
        return children[-1]

    yield start
    for child in children:
        if child.poll() is None:
            child.kill()
        child.communicate()


@pytest.fixture
def small_mount(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB in memory, as containers have at /dev/shm."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine does not allow mounts")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)
