"""The journal: what happened in a run, one JSON object a line. Never trusted: a torn or damaged line is skipped."""

import json
import logging
from collections.abc import Iterable, Mapping

from holdfast.core.clock import Clock, utc_text
from holdfast.core.errors import HoldfastError
from holdfast.core.names import JOURNAL_NAME
from holdfast.storage.store import Store

__all__ = ["Event", "Journal", "read_events", "read_journal"]

_log = logging.getLogger("holdfast")
_TAIL_BYTES = 1 << 20

Event = Mapping[str, object]


class Journal:
    """Writes the events of one attempt."""

    def __init__(self, store: Store, clock: Clock, attempt: int) -> None:
        self._store = store
        self._clock = clock
        self._attempt = attempt

    def record(self, event: str, *, durable: bool = False, **details: object) -> None:
        """Append an event. A journal that cannot be written is a warning: the checkpoint matters more (I7)."""
        entry = {"time": utc_text(self._clock.utc_s()), "attempt": self._attempt, "event": event, **details}
        try:
            self._store.append(JOURNAL_NAME, json.dumps(entry, allow_nan=True).encode() + b"\n", durable=durable)
        except HoldfastError as error:
            _log.warning("the journal of %s cannot be written: %s", self._store.location, error.message)


def read_events(store: Store) -> list[Event]:
    """The latest events, oldest first, as far as they can be read."""
    return read_journal(store)[0]


def read_journal(store: Store) -> tuple[list[Event], int]:
    """The latest events, oldest first, and how many lines among them could not be read."""
    try:
        tail = store.read_tail(JOURNAL_NAME, _TAIL_BYTES)
    except HoldfastError as error:
        # A diary that is lost, or has become a link or a FIFO, must not keep a job from its checkpoints (I7).
        _log.warning("the journal of %s cannot be read: %s", store.location, error.message)
        return [], 0
    lines = [line for line in tail.split(b"\n") if line]
    events = list(_parse(lines))
    # The first may be no more than the end of one: what is before it is not read.
    is_cut = len(tail) >= _TAIL_BYTES and not list(_parse(lines[:1]))
    return events, len(lines) - len(events) - is_cut


def _parse(lines: Iterable[bytes]) -> Iterable[Event]:
    for line in lines:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and isinstance(entry.get("event"), str):
            yield entry
