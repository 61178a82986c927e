"""MemoryFiles behaves as the real file system does, and both fakes cover the whole interface."""

import inspect
import os
import random
from pathlib import Path

import pytest

from holdfast.storage.files import Files, Info
from holdfast.testing.memory_files import MemoryFiles
from holdfast.testing.recording import OpKind, RecordingFiles

_NOT_OPEN = 999_999
_NAMES = ("a", "b", "c", "d")


@pytest.mark.parametrize("fake", [MemoryFiles, RecordingFiles])
def test_no_call_of_the_interface_reaches_the_system_by_inheritance(fake: type[Files]) -> None:
    public = {name for name, _ in inspect.getmembers(Files, inspect.isfunction) if not name.startswith("_")}

    assert public <= set(vars(fake))


@pytest.mark.parametrize("seed", range(20))
def test_random_calls_give_the_same_answers_as_on_the_real_file_system(seed: int, tmp_path: Path) -> None:
    memory = MemoryFiles.from_tree({"root": None})
    players = [(Files(), Files().open_root(str(tmp_path))), (memory, memory.open_root("/root"))]

    answers = [_play(files, root, random.Random(seed)) for files, root in players]

    assert answers[0] == answers[1]
    assert any("OSError" not in answer for answer in answers[0])


def test_a_lock_is_refused_to_another_process_until_its_owner_dies() -> None:
    first = MemoryFiles()
    second = first.another_process()
    for files in (first, second):
        files.close(files.open_append(files.open_root("/"), "lock", 0o600))
    assert first.lock(first.open_append(first.open_root("/"), "lock", 0o600))
    assert not second.lock(second.open_append(second.open_root("/"), "lock", 0o600))

    first.die()

    assert second.lock(second.open_append(second.open_root("/"), "lock", 0o600))


def test_closing_any_descriptor_of_a_file_drops_its_lock() -> None:
    files = MemoryFiles()
    root = files.open_root("/")
    assert files.lock(files.open_append(root, "lock", 0o600))

    files.close(files.open_append(root, "lock", 0o600))

    other = files.another_process()
    assert other.lock(other.open_append(other.open_root("/"), "lock", 0o600))


def test_a_disk_made_from_a_tree_has_that_tree() -> None:
    tree = {"run": None, "run/a": None, "run/a/x": b"1", "run/b": b""}

    assert MemoryFiles.from_tree(tree).tree() == tree


def test_the_recorder_writes_down_what_changes_the_disk_and_nothing_else() -> None:
    files = RecordingFiles(MemoryFiles())
    root = files.open_root("/")

    descriptor = files.create(root, "x", 0o600)
    files.write_at(descriptor, memoryview(b"hello"), 2)
    files.read_at(descriptor, [memoryview(bytearray(3))], 0)
    files.truncate(descriptor, 5)
    files.sync(descriptor)
    files.close(descriptor)
    files.rename(root, "x", "y")
    files.append(files.open_append(root, "y", 0o600), b"!")
    files.mark("ack", 7)
    files.unlink(root, "y")
    files.sync_dir(root)

    kinds = [op.kind for op in files.operations]
    assert kinds == [
        OpKind.CREATE,
        OpKind.WRITE,
        OpKind.TRUNCATE,
        OpKind.SYNC,
        OpKind.RENAME,
        OpKind.WRITE,
        OpKind.MARK,
        OpKind.UNLINK,
        OpKind.SYNC_DIR,
    ]
    assert (files.operations[5].offset, files.operations[5].data) == (5, b"!")


def _play(files: Files, root: int, rng: random.Random) -> list[str]:
    directories = [root]
    opened: list[int] = []
    logs: list[int] = []
    return [_turn(files, directories, opened, logs, rng) for _ in range(300)]


def _turn(files: Files, directories: list[int], opened: list[int], logs: list[int], rng: random.Random) -> str:
    parent, name, other = rng.choice(directories), rng.choice(_NAMES), rng.choice(_NAMES)
    descriptor = rng.choice(opened) if opened else _NOT_OPEN
    log = rng.choice(logs) if logs else _NOT_OPEN
    offset, data = rng.randrange(20), rng.randbytes(rng.randrange(20))
    what = rng.randrange(16)
    try:
        if what == 0:
            files.make_dir(parent, name, 0o700)
        elif what == 1:
            directories.append(files.open_dir(parent, name))
        elif what == 2:
            opened.append(files.create(parent, name, 0o600))
        elif what == 3:
            logs.append(files.open_append(parent, name, 0o600))
        elif what == 4:
            return str(files.write_at(descriptor, memoryview(data), offset))
        elif what == 5:
            return str(files.append(log, data))
        elif what == 6:
            buffers = [memoryview(bytearray(5)), memoryview(bytearray(7))]
            return f"{files.read_at(descriptor, buffers, offset)} {[bytes(buffer) for buffer in buffers]}"
        elif what == 7:
            files.truncate(descriptor, offset)
        elif what == 8:
            files.sync(descriptor)
        elif what == 9:
            files.rename(parent, name, other)
        elif what == 10:
            files.unlink(parent, name)
        elif what == 11:
            files.remove_dir(parent, name)
        elif what == 12:
            return str(sorted(files.list_dir(parent)))
        elif what == 13:
            return _comparable(files.info(descriptor))
        elif what == 14:
            return _comparable(files.info_at(parent, name))
        elif what == 15 and opened:
            files.close(opened.pop(rng.randrange(len(opened))))
    except OSError as error:
        return f"OSError {os.strerror(error.errno or 0)}"
    return "done"


def _comparable(info: Info) -> str:
    size_bytes = info.size_bytes if info.kind == "file" else 0
    return f"{info.kind} {size_bytes} {info.uid} {info.mode:o}"
