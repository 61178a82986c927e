"""Verification: read every byte of a checkpoint, and say exactly what is damaged."""

import errno
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from holdfast.core.errors import BlobMissingError, FormatError, FormatVersionError, NoCheckpointError, StorageError
from holdfast.core.limits import MAX_MANIFEST_BYTES
from holdfast.core.names import MANIFEST_NAME
from holdfast.core.values import Checkpoint
from holdfast.engine.loading import Source, read_manifest
from holdfast.engine.reading import verify_shard
from holdfast.format.manifest import Body, LeafRecord, ShardRecord

__all__ = ["Damage", "Verification", "leaves_in_chunk", "verify_checkpoint"]


class Damage(NamedTuple):
    """One thing that is wrong."""

    file: str
    chunk: int | None
    """Which chunk of the file; None where the file as a whole is meant."""
    what: str
    leaves: tuple[str, ...]
    """The arrays that have bytes there."""
    is_unread: bool = False
    """It may be intact: no right to read it, a server that is away, no descriptor left. Not a fault of the device."""

    def __str__(self) -> str:
        place = self.file if self.chunk is None else f"{self.file}, chunk {self.chunk}"
        return f"{place}: {self.what}"


class Verification(NamedTuple):
    """What a verification found."""

    checkpoint: Checkpoint
    damage: tuple[Damage, ...]
    read_bytes: int

    @property
    def is_intact(self) -> bool:
        return not self.damage

    @property
    def is_unread(self) -> bool:
        """Whether nothing is known to be wrong with it, and some of it could not be read."""
        return bool(self.damage) and all(one.is_unread for one in self.damage)

    @property
    def reason(self) -> str:
        """The damage in one line, for a mark."""
        more = f" and {len(self.damage) - 1} more" if len(self.damage) > 1 else ""
        return f"{self.damage[0]}{more}" if self.damage else ""


def verify_checkpoint(source: Source, checkpoint: Checkpoint) -> Verification:
    """Read the manifest and every shard. NoCheckpointError where the checkpoint was removed meanwhile."""
    try:
        body = read_manifest(source, checkpoint.id).body
    except BlobMissingError as error:
        raise NoCheckpointError(f"{checkpoint.id} was removed meanwhile", hint="look again with holdfast ls") from error
    except FormatVersionError:
        raise
    except (FormatError, StorageError) as error:
        return Verification(checkpoint, (_damage(MANIFEST_NAME, error, checkpoint.id, ()),), 0)
    damage: list[Damage] = []
    for index, shard in enumerate(body.shards):
        damage += _verify_shard(source, checkpoint.id, body, index, shard)
    if damage and _is_gone(source, checkpoint.id):
        raise NoCheckpointError(f"{checkpoint.id} was removed meanwhile", hint="look again with holdfast ls")
    unread = {one.file for one in damage if one.chunk is None}
    return Verification(
        checkpoint, tuple(damage), sum(shard.size_bytes for shard in body.shards if shard.name not in unread)
    )


def leaves_in_chunk(leaves: Iterable[LeafRecord], shard: int, begin: int, end: int) -> tuple[str, ...]:
    """The names of the leaves that have bytes between begin and end of the shard."""
    return tuple(leaf.name for leaf in leaves if leaf.shard == shard and leaf.begin < end and leaf.end > begin)


def _verify_shard(source: Source, checkpoint_id: str, body: Body, index: int, shard: ShardRecord) -> Sequence[Damage]:
    everything = leaves_in_chunk(body.leaves, index, 0, shard.size_bytes)
    try:
        chunks = verify_shard(
            source.store,
            checkpoint_id,
            shard,
            pool=source.pool,
            workers=source.workers,
            progress=source.progress,
        )
    except BlobMissingError:
        return [Damage(shard.name, None, "is missing", everything)]
    except (FormatError, StorageError) as error:
        return [_damage(shard.name, error, checkpoint_id, everything)]
    found = []
    for chunk in chunks:
        begin = chunk * shard.chunk_bytes
        end = min(begin + shard.chunk_bytes, shard.size_bytes)
        touched = leaves_in_chunk(body.leaves, index, begin, end)
        found.append(Damage(shard.name, chunk, f"bytes {begin}–{end} differ from their digest", touched))
    return found


def _damage(file: str, error: FormatError | StorageError, checkpoint_id: str, leaves: tuple[str, ...]) -> Damage:
    """That of a file that could not be read to its end."""
    is_unread = isinstance(error, StorageError) and error.errno != errno.EIO
    # Without the place that is said before it anyway.
    what = error.message.removeprefix(f"{checkpoint_id}/{MANIFEST_NAME}: ").removeprefix(f"{file} of {checkpoint_id} ")
    return Damage(file, None, what, leaves, is_unread)


def _is_gone(source: Source, checkpoint_id: str) -> bool:
    try:
        source.store.read(f"{checkpoint_id}/{MANIFEST_NAME}", MAX_MANIFEST_BYTES)
    except BlobMissingError:
        return True
    except (FormatError, StorageError):
        return False
    return False
