"""A real Slurm for the tests of this folder, where it is installed."""

from collections.abc import Iterator

import pytest

from tests.slurm.cluster import Slurm, why_not


@pytest.fixture(scope="session")
def cluster() -> Iterator[Slurm]:
    """Started once; tests take `slurm`."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    started = Slurm(nodes=2)
    yield started
    started.stop()


@pytest.fixture
def slurm(cluster: Slurm) -> Iterator[Slurm]:
    """A Slurm without jobs."""
    yield cluster
    cluster.cancel()
