"""The verdict that is stored with a run: one small blob. Light: `holdfast ls` looks for it."""

import json

from holdfast.core.errors import BlobMissingError, HoldfastError
from holdfast.core.light_typing import NamedTuple
from holdfast.core.limits import MAX_SMALL_BLOB_BYTES
from holdfast.core.names import MARKS_DIR, PROOF_NAME
from holdfast.storage.store import Store

__all__ = ["StoredVerdict", "read_verdict", "store_verdict"]

# Among the marks, where it is in nobody's way: it says something of the run, as they do of checkpoints.
_KEY = f"{MARKS_DIR}/{PROOF_NAME}"


class StoredVerdict(NamedTuple):
    """What a listing says of the last proof."""

    answer: str
    utc_s: float
    interruptions: int
    last_step: int
    step: int | None
    """The first at which the runs part."""
    path: str
    cause: str
    """In a sentence."""
    kind: str
    command: str


_TYPES: dict[str, tuple[type, ...]] = {
    "answer": (str,),
    "utc_s": (int, float),
    "interruptions": (int,),
    "last_step": (int,),
    "step": (int, type(None)),
    "path": (str,),
    "cause": (str,),
    "kind": (str,),
    "command": (str,),
}


def store_verdict(store: Store, verdict: StoredVerdict) -> None:
    """Put it in the place of the one before."""
    data = json.dumps(verdict._asdict()).encode() + b"\n"
    store.remove(_KEY)
    store.publish(_KEY, data)


def read_verdict(store: Store) -> StoredVerdict | None:
    """None where there is none, or none that can be read: a listing does not fail for it."""
    try:
        fields = json.loads(store.read(_KEY, MAX_SMALL_BLOB_BYTES))
        found = StoredVerdict(**{name: fields[name] for name in StoredVerdict._fields})
    except BlobMissingError:
        return None
    except (HoldfastError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if all(type(value) in _TYPES[name] for name, value in found._asdict().items()) else None
