"""A store on a real directory, and a clock that does not run by itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.storage.posix import PosixStore
from holdfast.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PosixStore]:
    opened = PosixStore(str(tmp_path / "run"), create=True)
    yield opened
    opened.close()
