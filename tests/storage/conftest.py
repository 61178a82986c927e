"""Places to test stores in."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.storage.posix import PosixStore
from holdfast.testing import FakeClock


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Where a run is, or will be."""
    return tmp_path / "run"


@pytest.fixture
def store(run: Path) -> Iterator[PosixStore]:
    opened = PosixStore(run, create=True, clock=FakeClock())
    yield opened
    opened.close()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB and 16 inodes."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    place = tmp_path / "tiny"
    place.mkdir()
    options = "size=256k,nr_inodes=16,mode=0700"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("this machine does not allow mounts")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)
