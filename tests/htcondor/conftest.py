"""A real HTCondor pool for the tests of this folder, where it is installed."""

import os
from collections.abc import Iterator

import pytest

from tests.htcondor.pool import Pool, why_not


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Started once."""
    reason = why_not()
    if reason and os.environ.get("CI"):
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    started = Pool()
    yield started
    started.stop()
