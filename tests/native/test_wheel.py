"""What is installed from a wheel: the native part where there is a compiler, and everything else without one."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from holdfast import native

_ROOT = Path(__file__).parents[2]


def _built(into: Path, **environment: str) -> zipfile.ZipFile:
    pytest.importorskip("hatchling")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(into)],
        cwd=_ROOT,
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        timeout=300,
    )
    return zipfile.ZipFile(next(into.glob("*.whl")))


@pytest.mark.skipif(not native.is_built() and "CI" not in os.environ, reason="no compiler, or another processor")
def test_a_wheel_has_the_native_part_and_is_for_every_python_from_3_11_on(tmp_path: Path) -> None:
    wheel = _built(tmp_path)

    assert "holdfast/native/_streams.abi3.so" in wheel.namelist()
    assert "cp311-abi3-" in str(wheel.filename)


def test_without_a_compiler_a_wheel_is_for_every_platform_and_has_no_native_part(tmp_path: Path) -> None:
    wheel = _built(tmp_path, CC="no-such-compiler")

    assert not [name for name in wheel.namelist() if name.endswith(".so")]
    assert "holdfast/native/__init__.py" in wheel.namelist()
    assert "py3-none-any" in str(wheel.filename)
