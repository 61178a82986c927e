"""A real Slurm for the tests of this folder, where it is installed."""

import os
from collections.abc import Iterator

import pytest

from tests.slurm.cluster import Slurm, why_not


def require_slurm() -> None:
    """Skip where there can be no Slurm; where the project's own checks run, that is a failure."""
    reason = why_not()
    if reason and os.environ.get("CI"):
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Slurm]:
    """Started once; tests take `slurm`."""
    require_slurm()
    started = Slurm(nodes=2)
    yield started
    started.stop()


@pytest.fixture
def slurm(cluster: Slurm) -> Iterator[Slurm]:
    """A Slurm without jobs."""
    yield cluster
    cluster.cancel()
