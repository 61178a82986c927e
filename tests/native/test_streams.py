"""The native part moves the same bytes and finds the same checksums as the libraries do, and survives bad sources."""

import mmap
import os
import random
import signal
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest
import xxhash

from holdfast import native
from holdfast.format.moving import gather

_LINE = 64

if not native.is_built() and "CI" not in os.environ:
    pytest.skip("the native part is not built: no compiler, or another processor", allow_module_level=True)


def _streams():
    from holdfast.native import _streams

    return _streams


def _cut(data: bytes, cuts: int, chance: random.Random) -> list[memoryview]:
    edges = [0, *sorted(chance.randint(0, len(data)) for _ in range(cuts)), len(data)]
    return [memoryview(data)[begin:end] for begin, end in pairwise(edges)]


def _sizes() -> list[int]:
    chance = random.Random(4)
    return [
        *range(241, 1400),
        *(chance.randint(1400, 1 << 17) for _ in range(99)),
        (1 << 20) - 1,
        1 << 20,
        (1 << 20) + 1,
    ]


def test_the_native_part_is_built_where_the_tests_are_run() -> None:
    assert native.is_built()


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("cuts", [0, 1, 5, 60])
def test_parts_of_any_size_are_gathered_with_the_checksum_of_the_library(cuts: int, kept: bool) -> None:
    chance = random.Random(cuts)
    for size in _sizes():
        data, begin = chance.randbytes(size), chance.choice([0, 0, 1, 7, 32])
        memory = bytearray(_LINE + size + _LINE)
        target = memoryview(memory)[begin : begin + size]

        found = _streams().gather(target, _cut(data, cuts, chance), kept)

        assert found == xxhash.xxh3_128_hexdigest(data), size
        assert target == data
        assert not any(memory[:begin])
        assert not any(memory[begin + size :])


@pytest.mark.parametrize("chunk_bytes", [241, 256, 1000, 4096])
@pytest.mark.parametrize("cuts", [0, 1, 5, 60])
def test_several_chunks_are_gathered_at_once_each_with_its_own_checksum(cuts: int, chunk_bytes: int) -> None:
    chance = random.Random(cuts)
    lasts = [0, *range(241, chunk_bytes, max(1, chunk_bytes // 100))]
    for count, last in [(0, 0), *((count, last) for count in (1, 2, 7) for last in lasts)]:
        size = count * chunk_bytes + last
        data, begin = chance.randbytes(size), chance.choice([0, 0, 1, 7, 32])
        memory = bytearray(_LINE + size + _LINE)
        target = memoryview(memory)[begin : begin + size]

        found = _streams().gather_chunks(target, _cut(data, cuts, chance), chunk_bytes)

        chunks = [data[at : at + chunk_bytes] for at in range(0, size, chunk_bytes)]
        assert found == [xxhash.xxh3_128_hexdigest(chunk) for chunk in chunks], size
        assert target == data
        assert not any(memory[:begin])
        assert not any(memory[begin + size :])


def test_parts_without_bytes_lie_between_chunks_at_their_ends_and_after_all_of_them() -> None:
    data, nothing = random.Random(5).randbytes(3000), memoryview(b"")
    parts = [nothing, *(part for at in range(0, 3000, 500) for part in (memoryview(data)[at : at + 500], nothing))]
    target = memoryview(bytearray(3000))

    found = _streams().gather_chunks(target, parts, 1000)

    assert target == data
    assert found == [xxhash.xxh3_128_hexdigest(data[at : at + 1000]) for at in range(0, 3000, 1000)]


@pytest.mark.parametrize("cuts", [0, 1, 5, 60])
def test_a_source_is_scattered_to_places_of_any_alignment_and_nothing_around_them_is_touched(cuts: int) -> None:
    chance = random.Random(cuts)
    for size in _sizes():
        data = chance.randbytes(size)
        lengths = [part.nbytes for part in _cut(data, cuts, chance)]
        begins = [chance.randrange(_LINE) for _ in lengths]
        memories = [bytearray(begin + length + _LINE) for begin, length in zip(begins, lengths, strict=True)]
        places = [
            memoryview(memory)[begin : begin + length]
            for memory, begin, length in zip(memories, begins, lengths, strict=True)
        ]

        found = _streams().scatter(data, places, size)

        assert found == [xxhash.xxh3_128_hexdigest(data)], size
        assert b"".join(places) == data
        for memory, begin, length in zip(memories, begins, lengths, strict=True):
            assert not any(memory[:begin])
            assert not any(memory[begin + length :])


@pytest.mark.parametrize("cuts", [0, 1, 5, 60])
def test_chunks_of_a_source_are_scattered_by_one_call_wherever_the_parts_are_cut(cuts: int) -> None:
    chance = random.Random(cuts)
    for chunk, count, last in [(241, 3, 241), (4096, 5, 4096), (4096, 2, 300), (5000, 4, 4999), (70_000, 1, 70_000)]:
        data = chance.randbytes(chunk * (count - 1) + last)
        places = [memoryview(bytearray(part.nbytes)) for part in _cut(data, cuts, chance)]

        found = _streams().scatter(data, places, chunk)

        chunks = [data[begin : begin + chunk] for begin in range(0, len(data), chunk)]
        assert found == [xxhash.xxh3_128_hexdigest(each) for each in chunks]
        assert b"".join(places) == data


def test_what_does_not_fit_is_refused_before_anything_is_moved() -> None:
    target = memoryview(bytearray(1000))

    with pytest.raises(ValueError, match="999 bytes, the chunk has 1000"):
        _streams().gather(target, [bytes(999)])
    with pytest.raises(ValueError, match="1001 bytes, the chunk has 1000"):
        _streams().scatter(b"x" * 1000, [target, bytearray(1)], 1000)
    with pytest.raises(ValueError, match="too short"):
        _streams().gather(target[:240], [bytes(240)])
    with pytest.raises((TypeError, BufferError)):
        _streams().gather(bytes(1000), [bytes(1000)])
    with pytest.raises((TypeError, BufferError)):
        _streams().scatter(bytes(1000), [bytes(1000)], 1000)
    for chunk in (-1, 0, 240, 999, 800):  # it, or what is left for the last one
        with pytest.raises(ValueError, match="too short"):
            _streams().scatter(b"x" * 1000, [target], chunk)
    with pytest.raises(ValueError, match="too short"):
        _streams().scatter(b"", [], 1000)
    assert not any(target)


def test_chunks_that_do_not_fit_are_refused_before_anything_is_moved() -> None:
    memory = bytearray(2400)
    target = memoryview(memory)
    released = memoryview(b"x" * 2400)
    released.release()

    for size in (2399, 2401):
        with pytest.raises(ValueError, match=f"{size} bytes, the chunk has 2400"):
            _streams().gather_chunks(target, [b"x" * 1200, b"x" * (size - 1200)], 1200)
    for chunk_bytes in (-(1 << 63), -1, 0, 240, 1199, 2161, 2399):  # 2161 leaves 239 for the last one
        with pytest.raises(ValueError, match="too short"):
            _streams().gather_chunks(target, [b"x" * 2400], chunk_bytes)
    with pytest.raises((TypeError, BufferError)):
        _streams().gather_chunks(bytes(2400), [b"x" * 2400], 1200)
    with pytest.raises((TypeError, BufferError)):
        _streams().gather_chunks(target, [b"x" * 1200, memoryview(b"x" * 2400)[::2]], 1200)
    with pytest.raises(TypeError):
        _streams().gather_chunks(target, [b"x" * 1200, None], 1200)
    with pytest.raises(ValueError, match="released"):
        _streams().gather_chunks(target, [released], 1200)
    assert not any(target)
    target.release()
    memory.append(1)  # nothing holds its memory any more


def test_one_chunk_of_the_size_of_the_target_is_enough_and_more_is_no_error() -> None:
    data = random.Random(6).randbytes(1000)
    target = memoryview(bytearray(1000))

    for chunk_bytes in (1000, 1001, (1 << 63) - 1):
        assert _streams().gather_chunks(target, [data], chunk_bytes) == [xxhash.xxh3_128_hexdigest(data)]


def test_chunks_of_which_one_is_too_short_are_left_to_the_caller() -> None:
    size = (1 << 20) + 1000

    assert native.gather_chunks(memoryview(bytearray(size)), [memoryview(bytes(size))], 1 << 20) is None


def test_without_the_native_part_the_same_bytes_get_the_same_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    data = random.Random(1).randbytes(300_000)
    parts = [memoryview(data)[:77], memoryview(data)[77:150_000], memoryview(data)[150_000:]]
    natively, otherwise = bytearray(len(data)), bytearray(len(data))

    one = gather(memoryview(natively), parts)
    monkeypatch.setitem(native._loaded, "_streams", None)
    other = gather(memoryview(otherwise), parts)

    assert natively == otherwise == data
    assert one == other


def _mapped(path: Path, size: int) -> mmap.mmap:
    path.write_bytes(random.Random(2).randbytes(size))
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)


def test_a_mapped_file_that_was_cut_short_is_not_read_and_ends_nothing(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGBUS)
    memory = _mapped(tmp_path / "file", 1 << 20)
    os.truncate(tmp_path / "file", 100_000)

    assert native.scatter(memoryview(memory), [memoryview(bytearray(1 << 20))]) is None
    assert native.scatter(memoryview(memory)[:90_000], [memoryview(bytearray(90_000))]) is not None
    assert signal.getsignal(signal.SIGBUS) is before


def test_of_chunks_that_are_not_all_there_no_checksum_is_told(tmp_path: Path) -> None:
    memory = _mapped(tmp_path / "file", 1 << 20)
    os.truncate(tmp_path / "file", 900_000)
    place = memoryview(bytearray(1 << 20))

    assert native.scatter_chunks(memoryview(memory), [place], 1 << 17) is None
    assert len(native.scatter_chunks(memoryview(memory)[: 6 << 17], [place[: 6 << 17]], 1 << 17) or ()) == 6


def test_faults_in_several_threads_at_once_are_each_told_to_their_own(tmp_path: Path) -> None:
    size = 1 << 20
    memories = [_mapped(tmp_path / str(number), size) for number in range(4)]
    for cut in (0, 2):
        os.truncate(tmp_path / str(cut), 70_000)
    found: list[set[bool]] = [set() for _ in memories]

    def read(number: int) -> None:
        place = memoryview(bytearray(size))
        for _ in range(200):
            found[number].add(native.scatter(memoryview(memories[number]), [place]) is None)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(len(memories))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [{True}, {False}, {True}, {False}]


_FAULT = """
import mmap, os, sys
from holdfast import native
path = sys.argv[1]
with open(path, "r+b") as file:
    memory = mmap.mmap(file.fileno(), 1 << 20)
os.truncate(path, 70_000)
assert native.scatter(memoryview(memory), [memoryview(bytearray(1 << 20))]) is None
print("survived", flush=True)
memory[500_000]
print("and went on", flush=True)
"""


def test_a_fault_at_any_other_place_still_ends_the_process(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(1 << 20))

    done = subprocess.run(
        [sys.executable, "-c", _FAULT, str(tmp_path / "file")], capture_output=True, text=True, timeout=60
    )

    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "survived\n")


_WHILE_READ = """
import os, signal, sys, threading
from holdfast import native
source, place = memoryview(bytearray(64 << 20)), memoryview(bytearray(64 << 20))

def read(begun):
    begun.set()
    for _ in range(3):
        assert native.scatter(source, [place]) is not None

def meanwhile(act):
    begun = threading.Event()
    reader = threading.Thread(target=read, args=(begun,))
    reader.start()
    begun.wait()
    act()
    reader.join()
"""
_HANDLER = """
heard = []
for _ in range(10):
    signal.signal(signal.SIGBUS, signal.SIG_DFL)
    meanwhile(lambda: signal.signal(signal.SIGBUS, lambda *_: heard.append("own")))
    os.kill(os.getpid(), signal.SIGBUS)
print(len(heard), flush=True)
"""
_SENT = """
meanwhile(lambda: os.kill(os.getpid(), signal.SIGBUS))
print("went on", flush=True)
"""


@pytest.mark.parametrize(
    ("program", "code", "output"), [(_HANDLER, 0, "10\n"), (_SENT, -signal.SIGBUS, "")], ids=["handler", "sent"]
)
def test_what_the_program_does_with_the_signal_while_a_source_is_read_is_left_to_it(
    program: str, code: int, output: str
) -> None:
    done = subprocess.run([sys.executable, "-c", _WHILE_READ + program], capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stdout) == (code, output), done.stderr


_SAVE = """
import sys
import numpy as np
import holdfast
from holdfast import native
strided = np.arange(700_001, dtype=np.int16)[::2]
state = {"a": np.arange(3_000_000, dtype=np.float32), "b": strided, "c": np.ones((5, 7))}
with holdfast.Checkpointer(sys.argv[1], state, background=sys.argv[2]) as ckpt:
    ckpt.save(step=1)
print(native.is_built())
"""
_RESTORE = """
import sys
import numpy as np
import holdfast
state = {"a": np.zeros(3_000_000, np.float32), "b": np.zeros(700_001, np.int16)[::2], "c": np.zeros((5, 7))}
with holdfast.Checkpointer(sys.argv[1], state) as ckpt:
    assert ckpt.restore() is not None
assert (state["a"] == np.arange(3_000_000, dtype=np.float32)).all()
assert (state["b"] == np.arange(700_001, dtype=np.int16)[::2]).all()
assert (state["c"] == 1).all()
print("equal")
"""


def _run(program: str, *arguments: str, with_native: bool) -> str:
    environment = {**os.environ, "HOLDFAST_NATIVE": "1" if with_native else "0"}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("background", ["off", "process"])
def test_checkpoints_are_the_same_with_and_without_it_and_each_restores_the_other(
    tmp_path: Path, background: str
) -> None:
    made = [_run(_SAVE, str(tmp_path / str(kind)), background, with_native=kind) for kind in (True, False)]
    shards = [next((tmp_path / str(kind)).glob("*/*.safetensors")).read_bytes() for kind in (True, False)]

    assert made == ["True", "False"]
    assert shards[0] == shards[1]
    for kind in (True, False):
        assert _run(_RESTORE, str(tmp_path / str(kind)), with_native=not kind) == "equal"


def test_without_a_free_descriptor_it_is_loaded_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_loaded", {})
    monkeypatch.setattr(native, "_load", _without_descriptors)

    first = native.is_built()
    monkeypatch.undo()

    assert not first
    assert native.is_built()


def _without_descriptors(name: str) -> None:
    raise OSError(24, "Too many open files")
