"""The manifest: what a checkpoint consists of, with the digest of every chunk and its own."""

from typing import Any, NamedTuple

import msgspec

from holdfast.core.errors import FormatError, IntegrityError, StateError
from holdfast.core.limits import MAX_CHUNK_BYTES, MAX_LEAVES, MAX_MANIFEST_BYTES, MAX_NDIM, PAGE_BYTES
from holdfast.core.names import is_valid_name
from holdfast.core.values import Checkpoint
from holdfast.format.checksum import CHECKSUM_DIGITS
from holdfast.format.head import HEX_DIGITS, decode_head, digest_hex, encode_head, head_lines, split_head

__all__ = ["Body", "LeafRecord", "Manifest", "ShardRecord", "decode_manifest", "decode_staged", "encode_manifest"]

_BODY_OPEN = b'"body":'
_DIGEST_OPEN = b'"blake3":"'
_END = b'"}\n'
_HEX = b"0123456789abcdef"


class ShardRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of bytes."""

    name: str
    size_bytes: int
    chunk_bytes: int
    xxh3: list[str]
    """The checksum of each chunk, for restores; the last chunk may be shorter."""
    blake3: list[str]
    """The digest of each chunk, for verification, copies and comparisons."""


class LeafRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One array's bytes: which shard, from where to where (counted from the start of the file), and what they are."""

    name: str
    dtype: Any
    shape: list[int]
    shard: int
    begin: int
    end: int


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Everything that a restore needs and a listing does not."""

    tree: Any
    random: Any
    leaves: list[LeafRecord]
    shards: list[ShardRecord]
    pickled: list[str]
    """Paths of pickled objects."""
    hyperparameters: Any
    provenance: dict[str, Any]
    ledger: Any = None
    """Which samples went into which step, as `engine.ledger` reads it; left out where nobody counts them."""

    def with_shards(self, shards: list[ShardRecord]) -> "Body":
        """The same state, with these files."""
        return msgspec.structs.replace(self, shards=shards)


class Manifest(NamedTuple):
    """A decoded, digest-checked and validated manifest."""

    checkpoint: Checkpoint
    run_id: str
    body: Body


def encode_manifest(checkpoint: Checkpoint, run_id: str, body: Body) -> bytes:
    """The bytes of manifest.json."""
    covered = head_lines(encode_head(checkpoint, run_id)) + _BODY_OPEN + msgspec.json.encode(body) + b",\n"
    data = covered + _DIGEST_OPEN + digest_hex(covered).encode() + _END
    if len(data) > MAX_MANIFEST_BYTES:
        raise StateError(
            f"the manifest would have {len(data)} bytes, the limit is {MAX_MANIFEST_BYTES}",
            hint="keep large data in arrays",
        )
    return data


def decode_manifest(
    data: bytes, *, where: str, checkpoint_id: str, run_id: str | None, staged: bool = False
) -> Manifest:
    """The manifest; IntegrityError where a byte differs from what was written, FormatError where it makes no sense.

    `staged`: of a snapshot in memory, whose chunks have checksums, and no digests yet.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        raise FormatError(f"{where}: {len(data)} bytes, the limit is {MAX_MANIFEST_BYTES}")
    head, body_text = _split(data, where)
    checkpoint, found_run = decode_head(head, where=where, checkpoint_id=checkpoint_id, run_id=run_id)
    try:
        body = msgspec.json.decode(body_text, type=Body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{where}: the body is not valid: {error}") from error
    _check_shards(body, where, staged=staged)
    _check_leaves(body, where)
    return Manifest(checkpoint, found_run, body)


def decode_staged(data: bytes, *, where: str, run_id: str | None) -> Manifest:
    """The manifest of a snapshot in memory, which lies under no name: the id is the one it says itself."""
    head, _ = _split(data, where)
    try:
        checkpoint_id = msgspec.json.decode(head)["id"]
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise FormatError(f"{where}: the head has no id: {error}") from error
    manifest = decode_manifest(data, where=where, checkpoint_id=str(checkpoint_id), run_id=run_id, staged=True)
    if len(manifest.body.shards) != 1:
        raise FormatError(f"{where}: {len(manifest.body.shards)} shards, a snapshot has one")
    return manifest


def _split(data: bytes, where: str) -> tuple[bytes, memoryview]:
    tail_bytes = len(_DIGEST_OPEN) + HEX_DIGITS + len(_END)
    covered, tail = memoryview(data)[:-tail_bytes], data[-tail_bytes:]
    expected = _DIGEST_OPEN + digest_hex(covered).encode() + _END
    if tail != expected:
        raise IntegrityError(f"{where}: the manifest differs from its digest ({len(data)} bytes): truncated or damaged")
    head, body_start = split_head(data, where)
    if data[body_start : body_start + len(_BODY_OPEN)] != _BODY_OPEN or data[-tail_bytes - 2 : -tail_bytes] != b",\n":
        raise FormatError(f"{where}: the manifest's third line is not its body")
    return head, covered[body_start + len(_BODY_OPEN) : -2]


def _check_shards(body: Body, where: str, *, staged: bool) -> None:
    names = [shard.name for shard in body.shards]
    if len(set(names)) != len(names) or not all(map(is_valid_name, names)):
        raise FormatError(f"{where}: the shards' names are not valid or not unique: {names[:5]!r}")
    for shard in body.shards:
        chunk_ok = PAGE_BYTES <= shard.chunk_bytes <= MAX_CHUNK_BYTES and shard.chunk_bytes % PAGE_BYTES == 0
        if not chunk_ok or not 0 <= shard.size_bytes < 1 << 60:
            raise FormatError(f"{where}: shard {shard.name}: size {shard.size_bytes} or chunk {shard.chunk_bytes}")
        if not staged or shard.blake3:
            _check_sums(shard, "digest", shard.blake3, HEX_DIGITS, where)
        _check_sums(shard, "checksum", shard.xxh3, CHECKSUM_DIGITS, where)


def _check_sums(shard: ShardRecord, kind: str, sums: list[str], digits: int, where: str) -> None:
    if len(sums) != -(-shard.size_bytes // shard.chunk_bytes):
        raise FormatError(f"{where}: shard {shard.name}: {len(sums)} {kind}s for {shard.size_bytes} bytes")
    if "".join(sums).encode().translate(None, _HEX) or not {digits}.issuperset(map(len, sums)):
        raise FormatError(f"{where}: shard {shard.name}: a {kind} is not {digits} hexadecimal digits")


def _check_leaves(body: Body, where: str) -> None:
    if len(body.leaves) > MAX_LEAVES:
        raise FormatError(f"{where}: {len(body.leaves)} leaves, the limit is {MAX_LEAVES}")
    sizes = [shard.size_bytes for shard in body.shards]
    for leaf in body.leaves:
        if not 0 <= leaf.shard < len(sizes) or not 0 <= leaf.begin <= leaf.end <= sizes[leaf.shard]:
            raise FormatError(f"{where}: leaf {leaf.name!r} lies outside its shard")
        if leaf.shape and (len(leaf.shape) > MAX_NDIM or min(leaf.shape) < 0):
            raise FormatError(f"{where}: leaf {leaf.name!r} has the shape {leaf.shape[:5]!r}")
    last = (-1, 0)
    for shard, begin, end, name in sorted([(leaf.shard, leaf.begin, leaf.end, leaf.name) for leaf in body.leaves]):
        if shard == last[0] and begin < last[1]:
            raise FormatError(f"{where}: leaf {name!r} overlaps the one before it")
        last = (shard, end)
