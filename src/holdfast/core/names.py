"""Names of things on disk: which are allowed, and how a checkpoint's id is written and read."""

import re
from functools import lru_cache

from holdfast.core.errors import UsageError, printable
from holdfast.core.light_typing import NamedTuple
from holdfast.core.limits import MAX_NAME_BYTES

__all__ = [
    "ATTEMPTS_DIR",
    "JOURNAL_NAME",
    "LOCK_NAME",
    "MANIFEST_NAME",
    "MARKER_NAME",
    "MARKS_DIR",
    "PROOF_NAME",
    "CheckpointId",
    "agent_key",
    "attempt_key",
    "check_name",
    "is_valid_name",
    "parse_checkpoint_id",
    "shard_name",
]

MARKER_NAME = "holdfast.json"
MANIFEST_NAME = "manifest.json"
JOURNAL_NAME = "journal.jsonl"
LOCK_NAME = "lock"
ATTEMPTS_DIR = "attempts"
MARKS_DIR = "marks"
PROOF_NAME = "proof.json"

# Letters, digits and a few safe marks; no leading dot (hidden) or dash (looks like an option).
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=@-]*\Z")
# One spelling each: a name with needless zeros would be a second name for the same checkpoint.
_CHECKPOINT_ID = re.compile(
    r"(\d{9}|[1-9]\d{9,17})-e(\d{3}|[1-9]\d{3,17})-(\d{8}T\d{6}Z)-a(\d{4}|[1-9]\d{4,8})(?:-([1-9]\d{0,8}))?\Z", re.ASCII
)


def is_valid_name(name: str) -> bool:
    """Whether the name can be one path component on every storage."""
    return bool(_NAME.match(name)) and ".." not in name and len(name) <= MAX_NAME_BYTES


def check_name(name: str) -> str:
    """The name, or UsageError: no separators, `..`, control characters, leading dot or dash."""
    if not is_valid_name(name):
        raise UsageError(
            f"name {printable(name)!r} is not allowed on disk",
            hint="use letters, digits and _ . + = @ -, not starting with a dot or dash, at most 200 characters",
        )
    return name


class CheckpointId(NamedTuple):
    """What the name of a checkpoint's directory says. `str()` gives the name back."""

    step: int
    epoch: int
    utc: str
    attempt: int
    twin: int = 0

    def __str__(self) -> str:
        text = f"{self.step:09d}-e{self.epoch:03d}-{self.utc}-a{self.attempt:04d}"
        return f"{text}-{self.twin}" if self.twin else text


@lru_cache(maxsize=16_384)  # a listing asks for each id as itself, as a parent and as an origin
def parse_checkpoint_id(name: str) -> CheckpointId | None:
    """The parts of a checkpoint directory's name, or None where it is not one."""
    match = _CHECKPOINT_ID.match(name)
    if match is None:
        return None
    step, epoch, utc, attempt, twin = match.groups()
    return CheckpointId(int(step), int(epoch), utc, int(attempt), int(twin or 0))


def attempt_key(number: int) -> str:
    """`attempts/000002.json`."""
    return f"{ATTEMPTS_DIR}/{number:06d}.json"


def agent_key(attempt: int) -> str:
    """`attempts/000002.agent`: held by an attempt's agent, which may outlive its training process."""
    return f"{ATTEMPTS_DIR}/{attempt:06d}.agent"


def shard_name(rank: int) -> str:
    """`rank-00000.safetensors`."""
    return f"rank-{rank:05d}.safetensors"
