"""Real programs for the tests of this folder, where they are installed."""

import os
import subprocess
from pathlib import Path

import pytest

_TRIXIE = Path(__file__).parents[2] / "trixie"
_CHECK_DEADLINE_S = 60


def missing(reason: str) -> None:
    """Skip; where nothing may be missing, fail."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def criu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CRIU that works here, as HOLDFAST_CRIU: through the loader of its own system, so that it sees this one."""
    if os.geteuid() != 0:
        missing("CRIU needs root")
    root = subprocess.run([_TRIXIE, "path"], capture_output=True, text=True, check=True).stdout.strip()
    if not os.path.exists(f"{root}/usr/sbin/criu"):
        missing("there is no CRIU here: tests/components installs it")
    program = tmp_path / "criu"
    program.write_text(
        f"#!/bin/sh\nexec {root}/usr/lib64/ld-linux-x86-64.so.2 --library-path {root}/usr/lib/x86_64-linux-gnu "
        f'{root}/usr/sbin/criu "$@"\n'
    )
    program.chmod(0o755)
    checked = subprocess.run([program, "check"], capture_output=True, text=True, timeout=_CHECK_DEADLINE_S)
    if checked.returncode != 0:
        missing(f"CRIU does not work on this kernel: {checked.stdout}{checked.stderr}")
    monkeypatch.setenv("HOLDFAST_CRIU", str(program))
    return program
