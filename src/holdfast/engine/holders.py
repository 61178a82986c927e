"""Who wrote a run, as the files of its attempts say. Reads only, and is light: `holdfast ls` starts with this."""

import json

from holdfast.core.errors import HoldfastError
from holdfast.core.light_typing import NamedTuple
from holdfast.core.limits import MAX_SMALL_BLOB_BYTES
from holdfast.core.names import ATTEMPTS_DIR, agent_key, attempt_key
from holdfast.storage.store import Store

__all__ = ["Holder", "Turn", "is_being_written", "latest_holder", "newest_attempt", "read_holder"]


class Turn(NamedTuple):
    """The n-th start of a job."""

    job: str
    number: int

    def follows(self, other: "Turn | None") -> bool:
        """Whether the scheduler started this one because the other is over."""
        return other is not None and self.job == other.job and self.number > other.number


class Holder(NamedTuple):
    """Who made an attempt, as its file says."""

    attempt: int
    host: str
    pid: int
    job: str
    since: str
    alive: bool
    turn: Turn | None = None
    """Which start of its job it was, where its scheduler says so."""

    def __str__(self) -> str:
        job = f", job {self.job}" if self.job else ""
        return f"attempt {self.attempt}: pid {self.pid} on {self.host}{job}, since {self.since}"


def latest_holder(store: Store) -> Holder | None:
    """Who wrote the run last, and whether that process still lives."""
    newest = newest_attempt(store)
    return None if newest is None else read_holder(store, newest)


def is_being_written(store: Store, attempt: int) -> bool:
    """Whether somebody writes for that attempt: its process, or the agent, which may outlive it."""
    return store.is_held(attempt_key(attempt)) or store.is_held(agent_key(attempt))


def newest_attempt(store: Store) -> int | None:
    """The highest number; None before the first."""
    names = (entry.name.removesuffix(".json") for entry in store.list(ATTEMPTS_DIR))
    numbers = [int(name) for name in names if name.isascii() and name.isdigit() and len(name) <= 9]
    return max(numbers, default=None)


def read_holder(store: Store, number: int) -> Holder:
    """Who made that attempt; unknown where its file does not say."""
    key = attempt_key(number)
    try:
        fields = json.loads(store.read(key, MAX_SMALL_BLOB_BYTES))
        known = (str(fields["host"]), int(fields["pid"]), str(fields["job"]), str(fields["since"]))
        turn = _read_turn(fields)
    except (HoldfastError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        known, turn = ("an unknown host", 0, "", "an unknown time"), None
    return Holder(number, *known, alive=store.is_held(key), turn=turn)


def _read_turn(fields: dict[str, object]) -> Turn | None:
    # Files of earlier releases have none.
    job, number = fields.get("turn_of"), fields.get("turn")
    return Turn(job, number) if isinstance(job, str) and type(number) is int else None
