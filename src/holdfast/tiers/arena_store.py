"""A slot's content as a store: what a restore reads from a run, it reads from memory in the same way.

Read by system calls, or by `native`, which survives faults: the arena of a dead job has no owner who would answer for
its files, and one that is cut off while it is read has to be an error, not a signal that ends the program.
"""

import json
import threading
from collections.abc import Sequence

from holdfast import native
from holdfast.core.errors import BlobMissingError, FormatError, HoldfastError, IntegrityError
from holdfast.core.names import MANIFEST_NAME, shard_name
from holdfast.core.values import Checkpoint
from holdfast.format.head import decode_head, split_head
from holdfast.storage.store import BlobInfo, Reader, split_key
from holdfast.tiers.control import CONTROL_BYTES
from holdfast.tiers.shared_memory import MemoryBoundary, read_exactly
from holdfast.tiers.slot import Content, Slot

__all__ = ["ArenaStore"]


class ArenaStore:
    """The one checkpoint that the slot holds. The slot stays the caller's, and is closed by the caller."""

    def __init__(self, slot: Slot, *, content: Content | None = None, shard: str | None = None) -> None:
        """BlobMissingError where the slot holds nothing complete; FormatError where its manifest is not one."""
        found = slot.content() if content is None else content
        if found is None:
            raise BlobMissingError(f"{slot.where}: holds no complete snapshot")
        self.content = found
        self.checkpoint, self.run_id = _decode_head(found.manifest, slot.where)
        self._slot = slot
        self._shard = shard_name(0) if shard is None else shard

    @property
    def location(self) -> str:
        return self._slot.where

    @property
    def checkpoint_id(self) -> str:
        return self.checkpoint.id

    def list(self, group: str = "") -> list[BlobInfo]:
        if not group:
            return [BlobInfo(self.checkpoint_id, is_group=True)]
        names = (MANIFEST_NAME, self._shard) if group == self.checkpoint_id else ()
        return [BlobInfo(name, is_group=False) for name in names]

    def read(self, key: str, limit_bytes: int) -> bytes:
        data = self.content.manifest if self._name(key) == MANIFEST_NAME else self._image(key, limit_bytes)
        if len(data) > limit_bytes:
            raise IntegrityError(f"{self.location}/{key}: has {len(data)} bytes, at most {limit_bytes} were expected")
        return data

    def open(self, key: str) -> Reader:
        if self._name(key) == MANIFEST_NAME:
            return _ManifestReader(self.content.manifest, f"{self.location}/{key}")
        return _ImageReader(self._slot, self.content, f"{self.location}/{key}")

    def close(self) -> None:
        pass

    def _name(self, key: str) -> str:
        group, name = split_key(key)
        if group != self.checkpoint_id or name not in (MANIFEST_NAME, self._shard):
            raise BlobMissingError(f"{self.location}/{key}: does not exist; the slot holds {self.checkpoint_id}")
        return name

    def _image(self, key: str, limit_bytes: int) -> bytes:
        # One byte more than allowed is enough to refuse it.
        data = bytearray(min(self.content.image_bytes, limit_bytes + 1))
        self.open(key).read_at([memoryview(data)], 0)
        return bytes(data)


class _ImageReader:
    def __init__(self, slot: Slot, content: Content, where: str) -> None:
        self._slot = slot
        self._generation = content.generation
        self._where = where
        self._guard = threading.Lock()
        self._mapped: memoryview | None = None
        self._mapping_is_possible = native.is_built()
        self.size_bytes = content.image_bytes
        self._check_unchanged()

    def read_at(self, buffers: Sequence[memoryview], offset: int) -> None:
        _check_range(buffers, offset, self.size_bytes, self._where)
        with MemoryBoundary("reading", self._where):
            read_exactly(self._slot.opened(), buffers, CONTROL_BYTES + offset, self._where)
        self._check_unchanged()

    def read_checked(self, buffers: Sequence[memoryview], offset: int, chunk_bytes: int) -> Sequence[str] | None:
        size_bytes = _check_range(buffers, offset, self.size_bytes, self._where)
        mapped = self._map()
        if mapped is None:
            return None
        checksums = native.scatter_chunks(mapped[offset : offset + size_bytes], buffers, chunk_bytes)
        self._check_unchanged()
        return checksums

    def is_cached(self) -> bool:
        return True

    def close(self) -> None:
        self._mapped = None

    def _map(self) -> memoryview | None:
        with self._guard:
            if self._mapped is None and self._mapping_is_possible:
                try:
                    self._mapped = self._slot.image(self.size_bytes)
                except (HoldfastError, ValueError):
                    # No addresses to map it to; shorter by now, or closed, which read_at finds again, and explains.
                    self._mapping_is_possible = False
            return self._mapped

    def _check_unchanged(self) -> None:
        if self._slot.generation() != self._generation:
            raise BlobMissingError(
                f"{self._where}: the snapshot was replaced while it was being read",
                hint="the training that made it goes on; ask for the newest again",
            )


class _ManifestReader:
    def __init__(self, manifest: bytes, where: str) -> None:
        self._manifest = manifest
        self._where = where
        self.size_bytes = len(manifest)

    def read_at(self, buffers: Sequence[memoryview], offset: int) -> None:
        _check_range(buffers, offset, self.size_bytes, self._where)
        for buffer in buffers:
            buffer.cast("B")[:] = self._manifest[offset : offset + buffer.nbytes]
            offset += buffer.nbytes

    def read_checked(self, buffers: Sequence[memoryview], offset: int, chunk_bytes: int) -> None:  # noqa: ARG002 - nothing is faster
        return None

    def is_cached(self) -> bool:
        return True

    def close(self) -> None:
        pass


def _check_range(buffers: Sequence[memoryview], offset: int, size_bytes: int, where: str) -> int:
    wanted = sum(buffer.nbytes for buffer in buffers)
    if offset < 0 or offset + wanted > size_bytes:
        raise IntegrityError(f"{where}: bytes {offset} to {offset + wanted} were wanted, it has {size_bytes}")
    return wanted


def _decode_head(manifest: bytes, where: str) -> tuple[Checkpoint, str]:
    head, _ = split_head(manifest, where)
    try:
        checkpoint_id = json.loads(head)["id"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"{where}: the head does not name its checkpoint") from error
    return decode_head(head, where=where, checkpoint_id=str(checkpoint_id), run_id=None)
