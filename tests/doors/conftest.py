"""A real XRootD server for the tests of this folder, where it is installed."""

import os
from collections.abc import Iterator

import pytest

from tests.doors.xrootd_server import XRootD, why_not


def _missing(reason: str) -> None:
    """A test that is skipped proves nothing: where all should run, that is a failure."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def server() -> Iterator[XRootD]:
    """Started once; tests take `xrootd`."""
    if reason := why_not():
        _missing(reason)
    started = XRootD()
    yield started
    started.stop()


@pytest.fixture
def xrootd(server: XRootD) -> Iterator[XRootD]:
    """A server that runs, without files."""
    yield server
    for file in server.data.iterdir():
        file.unlink()


@pytest.fixture
def own_xrootd() -> Iterator[XRootD]:
    """One that a test may kill."""
    if reason := why_not():
        _missing(reason)
    started = XRootD()
    yield started
    started.stop()


@pytest.fixture
def full_xrootd() -> Iterator[XRootD]:
    """One with a disk of 1 MiB."""
    if reason := why_not():
        _missing(reason)
    try:
        started = XRootD(size_bytes=1 << 20)
    except OSError as error:
        _missing(str(error))
        raise
    yield started
    started.stop()
