"""Limits that are checked before anything is allocated. docs/format.md states them."""

__all__ = [
    "BLOCK_BYTES",
    "CHUNK_BYTES",
    "MAX_CHUNK_BYTES",
    "MAX_DEPTH",
    "MAX_FORKS",
    "MAX_HEAD_BYTES",
    "MAX_LEAVES",
    "MAX_MANIFEST_BYTES",
    "MAX_METRICS",
    "MAX_NAME_BYTES",
    "MAX_NDIM",
    "MAX_NOTE_CHARS",
    "MAX_SHARD_HEADER_BYTES",
    "MAX_SMALL_BLOB_BYTES",
    "MAX_TAGS",
    "MAX_TREE_NODES",
    "PAGE_BYTES",
]

PAGE_BYTES = 4096
# One chunk is one digest and the unit of a verified read: it fits a second-level cache, so that reading, digesting and
# copying it into place cost one trip to memory. Writes go in larger blocks.
CHUNK_BYTES = 1 << 20
MAX_CHUNK_BYTES = 256 << 20
# One direct write. Larger ones are no faster; with smaller ones a fast disk waits for a busy machine to start the next.
BLOCK_BYTES = 8 << 20

MAX_NAME_BYTES = 200  # a path component; ext4 and most others allow 255, we append suffixes
MAX_HEAD_BYTES = 64 << 10
MAX_MANIFEST_BYTES = 1 << 30
MAX_SHARD_HEADER_BYTES = 100_000_000  # the safetensors library refuses more
MAX_SMALL_BLOB_BYTES = 1 << 20  # marker, attempts, marks

MAX_DEPTH = 100  # nesting of containers
MAX_TREE_NODES = 20_000_000
MAX_LEAVES = 5_000_000
MAX_NDIM = 64  # numpy's own limit

MAX_METRICS = 200
MAX_NOTE_CHARS = 4000
MAX_TAGS = 50
MAX_FORKS = 200  # rollbacks that a line remembers; the oldest are forgotten first
