"""What must not keep a program from being supervised: a full disk, a Python that needs help to start."""

import os
from pathlib import Path

import pytest

from holdfast.supervising.guard import Guard
from holdfast.supervising.watching import Watch


def test_the_guard_starts_with_what_python_needs_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/somewhere/lib")
    monkeypatch.setenv("SLURM_JOB_ID", "17")

    guard = Guard(str(tmp_path))
    try:
        # Empty while the kernel still lays the new program out.
        while not (found := Path(f"/proc/{guard.pid}/environ").read_bytes()):
            assert os.waitpid(guard.pid, os.WNOHANG) == (0, 0)
    finally:
        guard.close()

    assert found == b"LD_LIBRARY_PATH=/somewhere/lib\0"


def test_where_there_is_no_place_for_beats_there_are_none() -> None:
    watch = Watch("/proc/self/no-such-place", 0.0)

    watch.look(1.0)

    assert watch.progress.step is None
    assert not os.path.exists(watch.folder)
