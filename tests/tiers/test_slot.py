"""One slot: filling, reading, growing, and everything that may lie in its place."""

import os
from collections.abc import Iterator
from itertools import count, cycle
from pathlib import Path

import pytest

from holdfast.core.errors import IntegrityError, StorageError, UsageError
from holdfast.core.limits import PAGE_BYTES
from holdfast.tiers import shared_memory
from holdfast.tiers.control import CONTROL_BYTES, RECORD_BYTES, Control, encode_control
from holdfast.tiers.shared_memory import AllocationStoppedError, Mapping, touch_by_writing
from holdfast.tiers.slot import Content, Slot
from tests.descriptors import open_descriptors
from tests.tiers.conftest import StartChild


@pytest.fixture
def slot(root: Path) -> Iterator[Slot]:
    descriptor = os.open(root / "slot", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    made = Slot(descriptor, where="slot", kind="file", writable=True, next_generation=count(1).__next__)
    made.grow(10_000)
    yield made
    made.close()


def attached(root: Path) -> Slot:
    return Slot.attach(os.open(root / "slot", os.O_RDONLY), where="slot")


def test_a_new_slot_holds_nothing_and_has_whole_pages(slot: Slot) -> None:
    assert slot.content() is None
    assert slot.generation() == 0
    assert slot.capacity_bytes == 3 * PAGE_BYTES


def test_what_was_finished_is_the_content(slot: Slot, root: Path) -> None:
    slot.begin()
    slot.image(5)[:] = b"image"

    generation = slot.finish(5, b"manifest")

    reader = attached(root)
    assert slot.content() == reader.content() == Content(generation, 5, b"manifest")
    assert bytes(reader.image(5)) == b"image"
    reader.close()


def test_from_begin_to_finish_the_slot_holds_nothing(slot: Slot) -> None:
    slot.finish(5, b"first")

    slot.begin()
    assert slot.content() is None

    assert slot.finish(0, b"") == 2
    assert slot.content() == Content(2, 0, b"")


def test_the_image_is_mapped_writable_and_aligned_once(slot: Slot) -> None:
    first, second = slot.image(10_000), slot.image(100)

    first[0] = 7

    assert second[0] == 7
    assert not first.readonly
    assert len(second) == 100


def test_an_attached_slot_is_read_only(slot: Slot, root: Path) -> None:
    slot.finish(5, b"manifest")
    reader = attached(root)

    assert reader.image(5).readonly
    with pytest.raises(UsageError, match="reading only"):
        reader.begin()
    with pytest.raises(UsageError, match="reading only"):
        reader.finish(5, b"")

    assert slot.content() is not None
    reader.close()


def test_an_attached_slot_that_is_writable_goes_on_counting_generations(slot: Slot) -> None:
    slot.finish(1, b"")
    other = Slot.attach(os.dup(slot.descriptor), writable=True)

    other.begin()
    other.image(3)[:] = b"abc"

    assert other.finish(3, b"m") == 2
    assert slot.content() == Content(2, 3, b"m")
    other.close()


def test_what_does_not_fit_is_refused(slot: Slot) -> None:
    for size in (-1, slot.capacity_bytes + 1):
        with pytest.raises(UsageError):
            slot.image(size)
        with pytest.raises(UsageError):
            slot.finish(size, b"")


@pytest.mark.parametrize("bit", range(0, RECORD_BYTES * 8, 7))
def test_any_flipped_bit_of_the_record_in_memory_means_no_content(slot: Slot, bit: int) -> None:
    slot.finish(5, b"manifest")
    record = bytearray(os.pread(slot.descriptor, RECORD_BYTES, 0))
    record[bit // 8] ^= 1 << bit % 8

    os.pwrite(slot.descriptor, record, 0)

    assert slot.content() is None
    assert slot.generation() == 0


@pytest.mark.parametrize(
    "claim", [Control(9, 1 << 59, 0), Control(9, 3 * PAGE_BYTES + 1, 0), Control(9, 3 * PAGE_BYTES, 1)]
)
def test_a_record_that_claims_more_than_the_file_has_is_no_content(slot: Slot, claim: Control) -> None:
    os.pwrite(slot.descriptor, encode_control(claim), 0)

    assert slot.content() is None


def test_a_file_that_was_cut_off_is_no_content_and_is_not_mapped(slot: Slot, root: Path) -> None:
    slot.finish(10_000, b"manifest")
    os.truncate(root / "slot", CONTROL_BYTES + 9_000)
    reader = attached(root)

    assert reader.content() is None
    with pytest.raises(IntegrityError, match="was wanted"):
        reader.image(10_000)
    reader.close()


def test_growing_keeps_content_and_views(slot: Slot) -> None:
    view = slot.image(3)
    view[:] = b"abc"
    slot.finish(3, b"manifest")
    before = slot.content()

    slot.grow(50 * PAGE_BYTES)
    slot.image(50 * PAGE_BYTES)[-1] = 1

    assert slot.content() == before
    assert bytes(view) == bytes(slot.image(3)) == b"abc"


@pytest.mark.parametrize("steps", [1, 4])
def test_growing_that_is_stopped_while_allocating_or_touching_leaves_the_slot_as_it_was(slot: Slot, steps: int) -> None:
    slot.finish(3, b"manifest")
    before = (slot.content(), slot.capacity_bytes, os.fstat(slot.descriptor).st_size, open_descriptors())
    going = iter([True] * steps)

    with pytest.raises(AllocationStoppedError):
        slot.grow(40 << 20, lambda: next(going, False))

    assert (slot.content(), slot.capacity_bytes, os.fstat(slot.descriptor).st_size, open_descriptors()) == before


def test_an_attached_slot_follows_when_its_owner_grows_it(slot: Slot, root: Path) -> None:
    slot.finish(3, b"")
    reader = attached(root)
    small = reader.image(3)

    slot.grow(50 * PAGE_BYTES)
    slot.image(50 * PAGE_BYTES)[-1] = 9
    slot.finish(50 * PAGE_BYTES, b"")

    assert reader.image(50 * PAGE_BYTES)[-1] == 9
    assert len(small) == 3
    reader.close()


def test_a_view_outlives_its_slot(slot: Slot) -> None:
    view = slot.image(3)

    slot.close()
    view[:] = b"abc"

    assert bytes(view) == b"abc"
    for use in (slot.begin, slot.content, slot.generation, lambda: slot.image(1), lambda: slot.finish(0, b"")):
        with pytest.raises(StorageError, match="closed"):
            use()
    slot.close()


def test_closing_gives_all_descriptors_back(root: Path) -> None:
    before = open_descriptors()
    descriptor = os.open(root / "slot", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    made = Slot(descriptor, where="slot", kind="file", writable=True, next_generation=count(1).__next__)
    made.grow(PAGE_BYTES)
    made.finish(1, b"")
    made.grow(9 * PAGE_BYTES)
    reader = attached(root)
    reader.image(1).release()

    made.close()
    reader.close()

    assert open_descriptors() == before


def test_something_else_in_the_place_of_a_slot_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo"):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with pytest.raises(IntegrityError, match="in the place of a slot"):
            Slot.attach(descriptor)
        os.close(descriptor)


def test_touching_without_the_help_of_the_system_changes_nothing(slot: Slot) -> None:
    view = slot.image(slot.capacity_bytes)
    content = os.urandom(len(view))
    view[:] = content

    touch_by_writing(view)

    assert bytes(view) == content


def test_growing_without_the_help_of_the_system_does_not_write_to_what_is_used(
    slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overwrite(view: memoryview) -> None:
        view[:] = b"\xff" * len(view)

    monkeypatch.setattr(shared_memory, "_MADV_POPULATE_WRITE", 9999)
    monkeypatch.setattr(shared_memory, "touch_by_writing", overwrite)
    used_bytes = slot.capacity_bytes
    content = os.urandom(used_bytes)
    slot.image(used_bytes)[:] = content

    slot.grow(used_bytes + (20 << 20))

    assert bytes(slot.image(used_bytes)) == content
    assert slot.image(slot.capacity_bytes)[used_bytes] == slot.image(slot.capacity_bytes)[-1] == 0xFF


def test_touched_pages_are_in_memory_before_they_are_used(root: Path) -> None:
    with open(root / "file", "wb+") as file:
        os.posix_fallocate(file.fileno(), 0, 4 << 20)
        mapping = Mapping(file.fileno(), 4 << 20, writable=True)
        assert _resident_kib(root / "file") == 0

        mapping.touch()

        assert _resident_kib(root / "file") == 4096
        mapping.close()


def test_a_reader_never_sees_half_of_a_manifest(slot: Slot, root: Path, start_child: StartChild) -> None:
    slot.grow(1 << 20)
    child = start_child(_WATCH, root / "slot")
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"

    numbers = cycle(range(251))
    while child.poll() is None:
        number = next(numbers)
        slot.begin()
        slot.finish(number, bytes([number]) * 300_000)

    assert child.stdout.read() == "500 whole\n"


_WATCH = """
import os, sys
from holdfast.tiers.slot import Slot
slot = Slot.attach(os.open(sys.argv[1], os.O_RDONLY))
print("ready", flush=True)
whole = 0
while whole < 500:
    content = slot.content()
    if content is None:
        continue
    assert content.manifest == bytes([content.image_bytes]) * 300_000, "torn"
    whole += 1
print(whole, "whole")
"""


def _resident_kib(path: Path) -> int:
    """How much of the file this process has in its page tables."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0] and not line.split()[0].endswith(":"):
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            return int(line.split()[1])
    raise LookupError(path)
