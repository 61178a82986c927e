"""The manifest: digest, limits, and what may not be in it."""

import msgspec
import pytest

from holdfast.core.errors import FormatError, IntegrityError
from holdfast.format.head import encode_head, head_lines
from holdfast.format.manifest import Body, LeafRecord, ShardRecord, decode_manifest, encode_manifest
from tests.format.test_head import ID, RUN, checkpoint

DIGEST = "0" * 64
CHECKSUM = "1" * 32


def body(**changes: object) -> Body:
    fields = {
        "tree": {"t": "dict", "v": {"a": 1}},
        "random": None,
        "leaves": [LeafRecord(name="a", dtype="float32", shape=[2], shard=0, begin=4096, end=4104)],
        "shards": [
            ShardRecord(
                name="rank-00000.safetensors",
                size_bytes=4104,
                chunk_bytes=4096,
                xxh3=[CHECKSUM] * 2,
                blake3=[DIGEST] * 2,
            )
        ],
        "pickled": [],
        "hyperparameters": {},
        "provenance": {"python": "3.11"},
    }
    return Body(**{**fields, **changes})


def decode(data: bytes):
    return decode_manifest(data, where="here", checkpoint_id=ID, run_id=RUN)


def test_a_manifest_comes_back_as_it_was_and_is_plain_json():
    data = encode_manifest(checkpoint(metrics={"loss": 0.5}), RUN, body())

    found = decode(data)

    assert found.body == body()
    assert found.checkpoint.metrics == {"loss": 0.5}
    assert set(msgspec.json.decode(data)) == {"head", "head_blake3", "body", "blake3"}
    assert data.count(b"\n") == 4


def test_a_body_without_a_ledger_has_the_bytes_that_it_had_before_there_were_ledgers():
    fields = ("tree", "random", "leaves", "shards", "pickled", "hyperparameters", "provenance")
    before = msgspec.json.encode({name: getattr(body(), name) for name in fields})

    data = encode_manifest(checkpoint(), RUN, body())

    assert data.splitlines()[2] == b'"body":' + before + b","
    assert decode(data).body.ledger is None


def test_a_ledger_comes_back_as_it_was():
    ledger = [["data", 1, 2, 3]]  # what it says is not the business of the manifest

    assert decode(encode_manifest(checkpoint(), RUN, body(ledger=ledger))).body == body(ledger=ledger)


def test_every_flipped_bit_of_a_manifest_is_found():
    data = encode_manifest(checkpoint(), RUN, body())

    for position in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(FormatError):
            decode(bytes(damaged))


def test_a_truncated_or_extended_manifest_is_found():
    data = encode_manifest(checkpoint(), RUN, body())

    for length in range(len(data)):
        with pytest.raises(IntegrityError):
            decode(data[:length])
    with pytest.raises(IntegrityError):
        decode(data + b"\n")


def shard(**changes: object) -> ShardRecord:
    fields = {"name": "a", "size_bytes": 4104, "chunk_bytes": 4096, "xxh3": [CHECKSUM] * 2, "blake3": [DIGEST] * 2}
    return ShardRecord(**{**fields, **changes})


def leaf(**changes: object) -> LeafRecord:
    fields = {"name": "a", "dtype": "float32", "shape": [2], "shard": 0, "begin": 4096, "end": 4104}
    return LeafRecord(**{**fields, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"shards": [shard(name="../x")]},
        {"shards": [shard(name=".hidden")]},
        {"shards": [shard(name="a/b")]},
        {"shards": [shard(), shard()]},
        {"shards": [shard(size_bytes=-1, xxh3=[], blake3=[])]},
        {"shards": [shard(size_bytes=1 << 62)]},
        {"shards": [shard(chunk_bytes=0)]},
        {"shards": [shard(chunk_bytes=1000)]},
        {"shards": [shard(chunk_bytes=1 << 40)]},
        {"shards": [shard(blake3=[DIGEST])]},
        {"shards": [shard(blake3=[DIGEST, "0" * 63 + "G"])]},
        {"shards": [shard(blake3=[DIGEST, "A" * 64])]},
        {"shards": [shard(xxh3=[CHECKSUM])]},
        {"shards": [shard(xxh3=[CHECKSUM, DIGEST])]},
        {"shards": [shard(xxh3=[CHECKSUM, "A" * 32])]},
        {"leaves": [leaf(shard=1)]},
        {"leaves": [leaf(shard=-1)]},
        {"leaves": [leaf(end=4105)]},
        {"leaves": [leaf(begin=-1)]},
        {"leaves": [leaf(begin=4104, end=4096)]},
        {"leaves": [leaf(shape=[-1])]},
        {"leaves": [leaf(shape=[1] * 65)]},
        {"leaves": [leaf(), leaf(name="b", begin=4100)]},
    ],
)
def test_nonsense_is_refused_even_with_a_right_digest(changes):
    data = encode_manifest(checkpoint(), RUN, body(**changes))

    with pytest.raises(FormatError):
        decode(data)


def test_unknown_or_missing_fields_of_the_body_are_refused():
    from holdfast.format.head import digest_hex

    for text in (b"{}", b"[]", b'{"tree":1,"surprise":2}', b"[" * 100_000):
        covered = head_lines(encode_head(checkpoint(), RUN)) + b'"body":' + text + b",\n"
        with pytest.raises(FormatError):
            decode(covered + b'"blake3":"' + digest_hex(covered).encode() + b'"}\n')
