"""Programs that stand in for those of the system: real executables, on a path of their own."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Puts a Python script on the path under the name of a program. It may say what it likes."""
    place = tmp_path / "bin"
    place.mkdir()
    monkeypatch.setenv("PATH", str(place), prepend=":")

    def write(name: str, script: str) -> Path:
        path = place / name
        path.write_text(f"#!{sys.executable} -S\n{script}\n")
        path.chmod(0o755)
        return path

    return write
