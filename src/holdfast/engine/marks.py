"""Marks: what is said of a checkpoint after it was made. One small blob each; the checkpoint never changes (I3)."""

import json

from holdfast.core.clock import Clock, utc_text
from holdfast.core.errors import BlobExistsError, HoldfastError
from holdfast.core.limits import MAX_SMALL_BLOB_BYTES
from holdfast.core.names import MARKS_DIR, parse_checkpoint_id
from holdfast.storage.store import Store

__all__ = [
    "DAMAGED",
    "PINNED",
    "QUARANTINED",
    "SUSPECT",
    "VERIFIED",
    "clear_mark",
    "clear_marks",
    "list_marks",
    "read_reason",
    "set_mark",
]

DAMAGED = "damaged"
PINNED = "pinned"
QUARANTINED = "quarantined"
SUSPECT = "suspect"
VERIFIED = "verified"
_KINDS = (DAMAGED, PINNED, QUARANTINED, SUSPECT, VERIFIED)


def set_mark(store: Store, checkpoint_id: str, kind: str, *, reason: str, clock: Clock) -> None:
    """Mark the checkpoint; nothing where it is marked already."""
    data = json.dumps({"reason": reason, "time": utc_text(clock.utc_s())}).encode() + b"\n"
    try:
        store.publish(_key(checkpoint_id, kind), data)
    except BlobExistsError:
        pass


def clear_mark(store: Store, checkpoint_id: str, kind: str) -> None:
    """Take the mark off, if it is there."""
    store.remove(_key(checkpoint_id, kind))


def clear_marks(store: Store, checkpoint_id: str) -> None:
    """Take off all marks of a checkpoint that is gone."""
    for kind, marked in list_marks(store).items():
        if checkpoint_id in marked:
            clear_mark(store, checkpoint_id, kind)


def list_marks(store: Store) -> dict[str, set[str]]:
    """Kind to the ids that bear it. A mark exists if its blob does, whatever the blob says."""
    found: dict[str, set[str]] = {kind: set() for kind in _KINDS}
    for entry in store.list(MARKS_DIR):
        checkpoint_id, _, rest = entry.name.partition(".")
        kind, _, suffix = rest.partition(".")
        if suffix == "json" and kind in found and parse_checkpoint_id(checkpoint_id):
            found[kind].add(checkpoint_id)
    return found


def read_reason(store: Store, checkpoint_id: str, kind: str) -> str:
    """Why the mark was set; a text in any case."""
    try:
        entry = json.loads(store.read(_key(checkpoint_id, kind), MAX_SMALL_BLOB_BYTES))
        return str(entry["reason"])
    except (HoldfastError, ValueError, KeyError, TypeError, RecursionError):
        return "the reason cannot be read"


def _key(checkpoint_id: str, kind: str) -> str:
    return f"{MARKS_DIR}/{checkpoint_id}.{kind}.json"
