"""The rig forks, and a process in which JAX runs threads must not: it gets a process of its own."""

import sys

import pytest


@pytest.fixture(autouse=True)
def own_process() -> None:
    if "jax" in sys.modules:
        pytest.skip("forks, and JAX is loaded here: run `pytest tests/crash` by itself, as the Makefile does")
