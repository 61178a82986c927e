"""The persistence models allow what file systems do and nothing that they rule out."""

import itertools
import random
from collections.abc import Iterable

import pytest

from holdfast.testing.memory_files import MemoryFiles
from holdfast.testing.recording import OpKind, RecordingFiles
from tests.crash.models import ANY_SUBSET, EXT4, MODELS, ORDERED, CrashPoint, Tree


def _recorded() -> tuple[RecordingFiles, int]:
    files = RecordingFiles(MemoryFiles())
    return files, files.open_root("/")


def _write(files: RecordingFiles, root: int, name: str, data: bytes) -> int:
    descriptor = files.create(root, name, 0o600)
    files.write_at(descriptor, memoryview(data), 0)
    return descriptor


def _states(files: RecordingFiles, model: str, limit: int = 2000) -> list[Tree]:
    point = CrashPoint({1: {}}, files.operations, model)
    return [point.tree(choices) for choices in itertools.islice(point.choices(random.Random(1)), limit)]


def _distinct(trees: Iterable[Tree]) -> set[tuple[tuple[str, bytes | None], ...]]:
    return {tuple(sorted(tree.items())) for tree in trees}


@pytest.mark.parametrize("model", MODELS)
def test_the_first_state_is_the_one_as_issued(model: str) -> None:
    files, root = _recorded()
    files.make_dir(root, "d", 0o700)
    descriptor = _write(files, files.open_dir(root, "d"), "x", b"abc")
    files.truncate(descriptor, 2)

    assert _states(files, model)[0] == {"d": None, "d/x": b"ab"}


@pytest.mark.parametrize("model", MODELS)
def test_what_was_synced_in_file_and_directory_is_in_every_state(model: str) -> None:
    files, root = _recorded()
    descriptor = _write(files, root, "x", b"abc")
    files.sync(descriptor)
    files.sync_dir(root)

    assert _distinct(_states(files, model)) == {(("x", b"abc"),)}


@pytest.mark.parametrize(("model", "may_vanish"), [(ORDERED, True), (EXT4, False), (ANY_SUBSET, True)])
def test_a_name_whose_directory_was_not_synced_may_vanish_except_on_ext4(model: str, may_vanish: bool) -> None:
    files, root = _recorded()
    descriptor = _write(files, root, "x", b"abc")
    files.sync(descriptor)

    assert ({} in _states(files, model)) is may_vanish


@pytest.mark.parametrize("model", MODELS)
def test_a_rename_after_the_last_sync_may_be_lost_and_leaves_the_old_name(model: str) -> None:
    files, root = _recorded()
    descriptor = _write(files, root, "x.tmp", b"abc")
    files.sync(descriptor)
    files.rename(root, "x.tmp", "x")

    states = _states(files, model)

    assert {"x": b"abc"} in states
    assert {"x.tmp": b"abc"} in states
    assert not any({"x", "x.tmp"} <= set(state) for state in states)


@pytest.mark.parametrize("model", MODELS)
def test_data_that_was_not_synced_may_be_missing_zeroed_or_torn_behind_a_durable_name(model: str) -> None:
    files, root = _recorded()
    _write(files, root, "x", b"k" * 10_000)
    files.sync_dir(root)

    contents = {state["x"] for state in _states(files, model)}

    assert {b"", b"k" * 10_000, bytes(10_000), b"k" * 512, b"k" * 4096, b"k" * 8192} <= contents
    assert bytes(512) + b"k" * 9488 in contents
    assert (b"k" * 10_000 + bytes(2288) in contents) is (model == EXT4)


def test_only_any_subset_lets_a_later_name_survive_an_earlier_one() -> None:
    files, root = _recorded()
    files.sync(_write(files, root, "x", b""))
    _write(files, root, "y", b"")

    survivors = {model: {tuple(sorted(state)) for state in _states(files, model)} for model in MODELS}

    assert ("y",) in survivors[ANY_SUBSET]
    assert survivors[ORDERED] == {(), ("x",), ("x", "y")}
    assert survivors[EXT4] == {("x",), ("x", "y")}


def test_a_directory_that_did_not_survive_takes_its_synced_files_with_it() -> None:
    files, root = _recorded()
    files.make_dir(root, "d", 0o700)
    inner = files.open_dir(root, "d")
    files.sync(_write(files, inner, "x", b"abc"))
    files.sync_dir(inner)

    assert {} in _states(files, ANY_SUBSET)


def test_all_combinations_of_few_operations_are_reached() -> None:
    files, root = _recorded()
    for name in ("x", "y", "z"):
        files.sync(_write(files, root, name, b""))
    assert sum(op.kind == OpKind.CREATE for op in files.operations) == 3

    assert len(_distinct(_states(files, ANY_SUBSET))) == 8
