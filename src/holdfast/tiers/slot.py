"""A slot: one snapshot in shared memory, as the exact bytes of its shard, with its manifest.

    [control page][image, in whole pages][manifest]

The control record is written last and emptied first, so that a slot whose writer died at any moment is either complete
or says that it has nothing. The record and the manifest are read by system calls, never through the mapping.
"""

import os
import stat
from collections.abc import Callable
from typing import NamedTuple

from holdfast.core.errors import IntegrityError, StorageError, UsageError
from holdfast.core.limits import MAX_MANIFEST_BYTES
from holdfast.tiers.control import (
    CONTROL_BYTES,
    EMPTY_RECORD,
    FILLED_AT,
    RECORD_BYTES,
    Control,
    decode_control,
    decode_filled,
    encode_control,
    encode_filled,
)
from holdfast.tiers.shared_memory import Mapping, MemoryBoundary, allocate, padded, read_exactly, write_fully

__all__ = ["Content", "Slot"]


class Content(NamedTuple):
    """A complete snapshot."""

    generation: int
    """Increases over all slots of an arena; never 0."""
    image_bytes: int
    manifest: bytes


class Slot:
    """One file or memfd. Its owner grows, fills and finishes it; others attach and read.

    Of one slot, one thread at a time: `content` may be asked by any.
    """

    def __init__(
        self,
        descriptor: int,
        *,
        where: str,
        kind: str,
        writable: bool,
        next_generation: Callable[[], int] | None = None,
        on_finish: Callable[[], None] | None = None,
    ) -> None:
        self.descriptor = descriptor
        self.where = where
        self.kind = kind
        """"file", or "memfd": gone with the last process that has its descriptor."""
        self.writable = writable
        self.capacity_bytes = 0
        """For the image; of an attached slot, at most this."""
        self._mapping: Mapping | None = None
        self._growing: Mapping | None = None
        self._is_filling = False
        self._next_generation = next_generation
        self._attached_generation = 0
        self._on_finish = on_finish

    @classmethod
    def attach(cls, descriptor: int, *, writable: bool = False, where: str = "slot", kind: str = "file") -> "Slot":
        """The slot of another process, or of a dead one. Has the descriptor from now on, unless this raises.

        Reads need no mapping; `image` maps. A process of the same user that cuts the file off while it is mapped ends
        this one with SIGBUS: read what nobody answers for through an ArenaStore.
        """
        slot = cls(descriptor, where=where, kind=kind, writable=writable)
        slot.capacity_bytes = max(0, slot._size_bytes() - CONTROL_BYTES)
        slot._attached_generation = slot.generation()
        return slot

    def opened(self) -> int:
        """The descriptor; StorageError where the slot was closed."""
        if self.descriptor < 0:
            raise StorageError(f"{self.where}: the slot was closed before")
        return self.descriptor

    def grow(self, capacity_bytes: int, keep_going: Callable[[], bool] | None = None) -> None:
        """Allocate, map and touch room for an image of that size. What the slot holds stays; views stay valid.

        OSError where it cannot be had, and the slot is as it was.
        """
        capacity_bytes = padded(capacity_bytes)
        if capacity_bytes <= self.capacity_bytes and self._mapping is not None:
            return
        size_before = os.fstat(self.descriptor).st_size
        try:
            begin = CONTROL_BYTES + self.capacity_bytes if self._mapping is not None else 0
            allocate(self.descriptor, begin, CONTROL_BYTES + capacity_bytes, keep_going)
            self._growing = Mapping(self.descriptor, CONTROL_BYTES + capacity_bytes, writable=True)
            self._growing.touch(keep_going, used_bytes=begin)
        except BaseException:
            self._give_up_growing()
            if os.fstat(self.descriptor).st_size > size_before:
                os.ftruncate(self.descriptor, size_before)  # only what was never used, and is not mapped any more
            raise
        before, self._mapping, self._growing = self._mapping, self._growing, None
        self.capacity_bytes = capacity_bytes
        if before is not None:
            before.close()

    def image(self, size_bytes: int) -> memoryview:
        """The image's memory, from a page's start: for the owner to fill, for others to read.

        Release it, or let go of it, before the slot is closed: the memory stays as long as the view does.
        """
        self.opened()
        if size_bytes < 0:
            raise UsageError(f"{self.where}: an image of {size_bytes} bytes was wanted")
        end = CONTROL_BYTES + size_bytes
        if self._mapping is None or end > self._mapping.size_bytes:
            self._map(size_bytes)
        assert self._mapping is not None
        return self._mapping.part(CONTROL_BYTES, end)

    def begin(self) -> None:
        """From now on the slot holds nothing; before the first byte of the image is changed."""
        self._check_writable()
        with MemoryBoundary("marking the content as invalid", self.where):
            write_fully(self.descriptor, EMPTY_RECORD, 0)
            write_fully(self.descriptor, encode_filled(0), FILLED_AT)
        self._is_filling = True

    def note_filled(self, filled_bytes: int) -> None:
        """So many bytes of the image, from its start, stay as they are. A hint: nobody may rely on it."""
        try:
            write_fully(self.descriptor, encode_filled(filled_bytes), FILLED_AT)
        except OSError:
            pass  # whoever reads ahead waits, and the complete snapshot is read as ever

    def filled_bytes(self) -> int:
        """What was noted last, by whoever fills the slot."""
        with MemoryBoundary("reading how far it is filled", self.where):
            return decode_filled(os.pread(self.opened(), len(encode_filled(0)), FILLED_AT))

    def finish(self, image_bytes: int, manifest: bytes) -> int:
        """The image is complete: write its manifest behind it, then the record. The content's generation.

        NoSpaceError where there is no room for the manifest; the slot holds nothing then.
        """
        if not 0 <= image_bytes <= self.capacity_bytes or len(manifest) > MAX_MANIFEST_BYTES:
            raise UsageError(
                f"{self.where}: an image of {image_bytes} and a manifest of {len(manifest)} bytes do not fit: "
                f"the slot has {self.capacity_bytes}, a manifest at most {MAX_MANIFEST_BYTES}"
            )
        if not self._is_filling:
            self.begin()
        self._check_writable()
        behind = CONTROL_BYTES + padded(image_bytes)
        control = Control(self._generation(), image_bytes, len(manifest))
        with MemoryBoundary("writing the manifest", self.where):
            allocate(self.descriptor, behind, behind + len(manifest))
            write_fully(self.descriptor, manifest, behind)
            write_fully(self.descriptor, encode_control(control), 0)
        self._is_filling = False
        if self._on_finish is not None:
            self._on_finish()
        return control.generation

    def content(self) -> Content | None:
        """What the slot holds; None where it is empty, being filled, damaged, or changed while it was read."""
        control = self._control()
        if control is None:
            return None
        behind = CONTROL_BYTES + padded(control.image_bytes)
        if behind + control.manifest_bytes > self._size_bytes():
            return None
        manifest = bytearray(control.manifest_bytes)
        try:
            with MemoryBoundary("reading the manifest", self.where):
                read_exactly(self.descriptor, [memoryview(manifest)], behind, self.where)
        except IntegrityError:
            return None
        unchanged = self._control() == control
        return Content(control.generation, control.image_bytes, bytes(manifest)) if unchanged else None

    def generation(self) -> int:
        """The generation of the content; 0 where the record is not valid. Cheap: whether it is still the same one."""
        control = self._control()
        return 0 if control is None else control.generation

    def close(self) -> None:
        """Unmap and close. The content stays for whoever else has the file."""
        self._unmap()
        self._give_up_growing()
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            try:
                os.close(descriptor)
            except OSError:
                pass  # shared memory has nothing left to write; there is nothing to lose

    def _map(self, size_bytes: int) -> None:
        """Map an attached slot as far as the image goes. An owner's is mapped by `grow`."""
        if self._next_generation is not None:
            raise UsageError(f"{self.where}: {size_bytes} bytes were wanted, the slot has {self.capacity_bytes}")
        found = self._size_bytes()
        if CONTROL_BYTES + size_bytes > found:
            raise IntegrityError(f"{self.where}: an image of {size_bytes} bytes was wanted, the file has {found}")
        with MemoryBoundary("mapping", self.where):
            mapping = Mapping(self.descriptor, min(found, CONTROL_BYTES + padded(size_bytes)), writable=self.writable)
        self._unmap()
        self._mapping = mapping
        self.capacity_bytes = max(0, found - CONTROL_BYTES)

    def _unmap(self) -> None:
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            mapping.close()

    def _give_up_growing(self) -> None:
        mapping, self._growing = self._growing, None
        if mapping is not None:
            mapping.close()

    def _generation(self) -> int:
        if self._next_generation is not None:
            return self._next_generation()
        self._attached_generation += 1
        return self._attached_generation

    def _control(self) -> Control | None:
        with MemoryBoundary("reading the control record", self.where):
            return decode_control(os.pread(self.opened(), RECORD_BYTES, 0))

    def _size_bytes(self) -> int:
        with MemoryBoundary("reading the size", self.where):
            found = os.fstat(self.opened())
        if not stat.S_ISREG(found.st_mode):
            raise IntegrityError(f"{self.where}: something else is in the place of a slot", hint="look with ls -l")
        return found.st_size

    def _check_writable(self) -> None:
        self.opened()
        if not self.writable:
            raise UsageError(f"{self.where}: attached for reading only")
