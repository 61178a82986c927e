"""Every store behaves as the conformance suite says."""

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.storage.memory import MemoryStore
from holdfast.storage.posix import PosixStore
from holdfast.storage.store import Store
from holdfast.testing import STORE_CHECKS, FakeClock, MemoryFiles, StoreCheck, check_store

OpenStore = Callable[[], Store]


def _posix(path: Path, *, direct: bool) -> OpenStore:
    return lambda: PosixStore(path, create=True, direct=direct)


def _memory() -> OpenStore:
    return MemoryStore().another


def _posix_in_memory() -> OpenStore:
    files = MemoryFiles()
    return lambda: PosixStore("/run", create=True, files=files, clock=FakeClock())


@pytest.fixture(params=["posix", "posix buffered", "posix in shared memory", "posix on a fake disk", "memory"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    match request.param:
        case "memory":
            yield _memory()
        case "posix on a fake disk":
            yield _posix_in_memory()
        case "posix in shared memory":
            if not os.access("/dev/shm", os.W_OK):
                pytest.skip("/dev/shm is not writable")
            path = tempfile.mkdtemp(dir="/dev/shm")
            yield _posix(Path(path) / "run", direct=True)
            shutil.rmtree(path)
        case _:
            yield _posix(tmp_path / "run", direct=request.param == "posix")


@pytest.mark.parametrize("check", STORE_CHECKS, ids=str)
def test_a_store_keeps_the_protocol(check: StoreCheck, open_store: OpenStore) -> None:
    check(open_store)


def test_the_suite_runs_as_one_call(tmp_path: Path) -> None:
    numbers = itertools.count()

    check_store(lambda: _posix(tmp_path / f"run-{next(numbers)}", direct=True))

    assert next(numbers) == len(STORE_CHECKS) > 30


def test_the_suite_names_the_behaviour_that_a_broken_store_lacks() -> None:
    class Overwriting(MemoryStore):
        def publish(self, key: str, data: bytes, *, make_group: bool = True) -> None:
            self.remove(key)
            super().publish(key, data, make_group=make_group)

    with pytest.raises(AssertionError, match=r"publishing_a_taken_name.*nothing was raised"):
        check_store(lambda: Overwriting().another)
