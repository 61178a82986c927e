"""Hostile data: random bytes, and forged documents whose digests are right."""

import json
import random
import struct

from holdfast.core.names import JOURNAL_NAME, MANIFEST_NAME, MARKER_NAME
from holdfast.format.checksum import checksum_hex
from holdfast.format.head import digest_hex, head_lines
from tests.crash.damage import Baseline
from tests.crash.models import Tree

__all__ = ["forge", "scramble"]

_TOKENS = (
    b"\x00",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b'"',
    b"\\ud800",
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"9" * 5000,
    b"[" * 2000,
    b'{"a":' * 500,
    b"null",
    b"../../etc/passwd",
    b"\n",
    b",",
)
_VALUES: tuple[object, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63) - 1,
    10**400,
    1e308,
    -0.0,
    "",
    "..",
    "/etc/passwd",
    "a/../b",
    "\x1b[31m\n\x00",
    "x" * 5000,
    "é\u202e",
    "os.system",
    "builtins.eval",
    "nan",
    [],
    {},
    [[]],
    ["t", "ndarray", [1]],
    [2**40, 2**40],
    {"t": "object"},
    {"__class__": "os.system"},
)
_NAMES = (
    "..",
    ".",
    ".hidden",
    "-rf",
    "a\nb",
    "\x1b[31m",
    "é",
    "x" * 255,
    "000000009-e000-20261115T000000Z-a0009",
    "999999999999999999-e999999999999999999-99999999T999999Z-a999999999-999999999",
    "000000001-e000-20261115T000000Z-a0001-0",
    "000000002-e000-20261115T000000Z-a0001.quarantined.json",
    "999999999.json",
    "9999999999999999.json",
    "-1.json",
    "manifest.json",
    "rank-00001.safetensors",
)


def scramble(baseline: Baseline, rng: random.Random) -> Tree:
    """The run with random bytes of one file changed, moved, repeated or replaced by awkward text."""
    tree = dict(baseline.tree)
    path = rng.choice(baseline.paths)
    data = bytearray(tree[path] or b"")
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(data) + 1)
        length = rng.choice((1, 1, 2, 8, 64, 600))
        what = rng.randrange(5)
        if what == 0:
            data[at : at + length] = rng.randbytes(length)
        elif what == 1:
            del data[at : at + length]
        elif what == 2:
            data[at:at] = data[at : at + length]
        elif what == 3:
            data[at:at] = rng.choice(_TOKENS)
        elif at < len(data):
            data[at] ^= 1 << rng.randrange(8)
    tree[path] = bytes(data)
    return tree


def forge(baseline: Baseline, rng: random.Random) -> Tree:
    """The run with a document that was changed by somebody who can compute digests, or with hostile names."""
    return rng.choice((_forge_manifest, _forge_manifest, _forge_manifest, _forge_shard, _forge_small, _forge_name))(
        baseline, rng
    )


def _forge_manifest(baseline: Baseline, rng: random.Random) -> Tree:
    tree = dict(baseline.tree)
    path = _path(baseline, f"{baseline.newest}/{MANIFEST_NAME}")
    document = json.loads(tree[path] or b"")
    part = rng.choice(("head", "body", "body", "body"))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        document[part] = _changed(document[part], rng)
    tree[path] = _manifest(document)
    return tree


def _forge_shard(baseline: Baseline, rng: random.Random) -> Tree:
    """A shard whose header lies, and a manifest that vouches for it."""
    tree = dict(baseline.tree)
    manifest_path = _path(baseline, f"{baseline.newest}/{MANIFEST_NAME}")
    document = json.loads(tree[manifest_path] or b"")
    shard = document["body"]["shards"][0]
    path = _path(baseline, f"{baseline.newest}/{shard['name']}")
    data = tree[path] or b""
    (size,) = struct.unpack("<Q", data[:8])
    header = json.dumps(_changed(json.loads(data[8 : 8 + size]), rng)).encode()
    claimed = rng.choice((len(header), len(header), 0, 1, 2**40, 2**64 - 1))
    data = struct.pack("<Q", claimed) + header + data[8 + size :]
    chunk_bytes = shard["chunk_bytes"]
    shard["size_bytes"] = len(data)
    shard["xxh3"] = [checksum_hex(data[at : at + chunk_bytes]) for at in range(0, len(data), chunk_bytes)]
    shard["blake3"] = [digest_hex(data[at : at + chunk_bytes]) for at in range(0, len(data), chunk_bytes)]
    tree[path] = data
    tree[manifest_path] = _manifest(document)
    return tree


def _forge_small(baseline: Baseline, rng: random.Random) -> Tree:
    """Marker, attempts, marks, journal: small JSON documents."""
    tree = dict(baseline.tree)
    small = [path for path in baseline.paths if path.endswith((".json", JOURNAL_NAME)) and MANIFEST_NAME not in path]
    path = rng.choice(small)
    lines = (tree[path] or b"").splitlines()
    if path.endswith(MARKER_NAME):
        fields = json.loads(tree[path] or b"")
        fields.pop("blake3", None)
        covered = json.dumps(_changed(fields, rng)).encode()[:-1] + b",\n"
        tree[path] = covered + b'"blake3":"' + digest_hex(covered).encode() + b'"}\n'
    else:
        changed = [json.dumps(_changed(json.loads(line), rng)).encode() for line in lines] * rng.choice((1, 1, 4))
        tree[path] = b"\n".join(changed) + b"\n"
    return tree


def _forge_name(baseline: Baseline, rng: random.Random) -> Tree:
    """A copy of a file or of a directory under a name that nobody would choose."""
    tree = dict(baseline.tree)
    path = rng.choice(list(tree))
    parent, _, _ = path.rpartition("/")
    if not parent:
        return tree
    copy = f"{parent}/{rng.choice(_NAMES)}"
    for found, data in list(tree.items()):
        if found == path or found.startswith(f"{path}/"):
            tree[copy + found.removeprefix(path)] = data
            if rng.random() < 0.3:
                tree.pop(found)
    return {name: data for name, data in tree.items() if _has_parents(tree, name)}


def _has_parents(tree: Tree, path: str) -> bool:
    parent = path.rpartition("/")[0]
    return not parent or (parent in tree and tree[parent] is None and _has_parents(tree, parent))


def _manifest(document: dict[str, object]) -> bytes:
    covered = head_lines(_text(document["head"])) + b'"body":' + _text(document["body"]) + b",\n"
    return covered + b'"blake3":"' + digest_hex(covered).encode() + b'"}\n'


def _text(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _changed(value: object, rng: random.Random) -> object:
    """The JSON value with one thing in it changed, at any depth."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        changed = dict(value)
        what = rng.random()
        if what < 0.1:
            del changed[key]
        elif what < 0.2:
            changed[str(rng.choice(_VALUES))[:50]] = rng.choice(_VALUES)
        else:
            changed[key] = _changed(value[key], rng)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        what = rng.random()
        if what < 0.1:
            return value[:at] + value[at + 1 :]
        if what < 0.2:
            return value[:at] + [value[at]] * rng.choice((2, 3, 200)) + value[at:]
        return [*value[:at], _changed(value[at], rng), *value[at + 1 :]]
    if isinstance(value, int) and rng.random() < 0.4:
        return value + rng.choice((-1, 1, 4096, 2**32, 2**60))
    if rng.random() < 0.05:
        return _deep(rng.choice((50, 99, 101, 900)))
    return rng.choice(_VALUES)


def _deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


def _path(baseline: Baseline, end: str) -> str:
    return next(path for path in baseline.paths if path.endswith(end))
