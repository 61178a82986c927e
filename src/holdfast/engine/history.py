"""The attempts that a journal tells of: when each began, how long it lived, how it ended. Pure.

A journal is never trusted: a field of the wrong type, or beyond all reason, is as if it were not there. `Fields` counts
those.

Times of a run are its *running time*: the attempts one after the other, without the pauses between them, which may
have lasted days.
"""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from holdfast.core.errors import printable
from holdfast.engine.journal import Event

__all__ = ["IMPORTS", "Attempt", "Ending", "Fields", "History", "Placed", "trace_attempts"]

IMPORTS = frozenset({"importing", "imported"})
"""The events of `holdfast import`."""

_MOST_ATTEMPTS = 10**9
_MOST_STEPS = 10**18
_MOST_S = 1e10
_MOST_CHARS = 400


class Ending:
    """How an attempt ended, as far as its journal can tell."""

    RUNNING = "running"
    CLOSED = "closed"
    STOPPED = "stopped itself"
    LEFT = "ended without close()"
    RAISED = "ended by an exception"
    ROLLED_BACK = "rolled back"
    KILLED = "killed"
    UNKNOWN = "unknown"


class Attempt(NamedTuple):
    """One start of the job, or a rollback."""

    number: int
    began_utc_s: float | None
    at_s: float
    """The running time of the run when it began."""
    lived_s: float
    """Until its last sign of life."""
    ending: str
    restored_step: int | None
    last_step: int | None
    """The last one that the journal mentions."""
    committed: int
    save_failed: int
    agent_lost: int

    @property
    def failed(self) -> bool:
        """Whether it was ended from outside: it neither closed the run nor went back on purpose."""
        return self.ending == Ending.KILLED


class Placed(NamedTuple):
    """An event, the attempt that it belongs to, and the running time at which it was."""

    event: Event
    attempt: int
    at_s: float


class History(NamedTuple):
    """What a journal tells."""

    attempts: tuple[Attempt, ...]
    events: tuple[Placed, ...]
    """In order of their running time."""
    is_whole: bool
    """Whether it goes back to the beginning of the first attempt."""

    @property
    def running_s(self) -> float:
        """The running time of all attempts."""
        return sum(attempt.lived_s for attempt in self.attempts)


class Fields:
    """Reads fields of events, and counts those that make no sense."""

    def __init__(self) -> None:
        self.odd = 0

    def number(self, event: Event, name: str, *, least: float = 0.0, most: float = _MOST_S) -> float | None:
        """A finite number within the bounds."""
        value = event.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            self.odd += 1
            return None
        return float(value)

    def whole(self, event: Event, name: str, *, least: int = 0) -> int | None:
        """A whole number; 3.0 is one, too."""
        number = self.number(event, name, least=least, most=_MOST_STEPS)
        if number is None:
            return None
        if not number.is_integer():
            self.odd += 1
            return None
        value = event[name]
        return value if isinstance(value, int) else int(number)  # a float has not all the digits of a large number

    def text(self, event: Event, name: str) -> str:
        """A text that a terminal shows and does not obey; empty where there is none."""
        value = event.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            self.odd += 1
            return ""
        shown = printable(value[: _MOST_CHARS + 1])
        return shown if len(shown) <= _MOST_CHARS else shown[: _MOST_CHARS - 1] + "…"


def trace_attempts(
    events: Sequence[Event], fields: Fields, *, alive: int | None = None, now_utc_s: float = 0.0
) -> History:
    """Sort the events into attempts. `alive` is the number of the attempt whose process lives, as its lock says."""
    groups: dict[int, list[Event]] = {}
    for event in events:
        number = event.get("attempt")
        # Commands such as `holdfast rm` write to the journal as attempt 0.
        if isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= _MOST_ATTEMPTS:
            groups.setdefault(number, []).append(event)
    for number in [n for n, group in groups.items() if any(e.get("event") in IMPORTS for e in group)]:
        del groups[number]  # no training: a file that was made a checkpoint, or was to be
    attempts: list[Attempt] = []
    placed: list[Placed] = []
    at_s = 0.0
    numbers = sorted(groups)
    for place, number in enumerate(numbers):
        group = groups[number]
        following = groups[numbers[place + 1]] if place + 1 < len(numbers) else None
        times_s, end_s = _place(group, fields, now_utc_s if number == alive else None)
        placed += [Placed(event, number, at_s + s) for event, s in zip(group, times_s, strict=True)]
        ending = Ending.RUNNING if number == alive else _ending(group, following)
        attempts.append(_attempt(number, group, fields, at_s=at_s, lived_s=end_s, ending=ending))
        at_s += end_s
    begins = {group[0].get("event") for number, group in groups.items() if number == min(groups)}
    return History(tuple(attempts), tuple(placed), is_whole=begins in (set(), {"attempt"}))


def _place(group: Sequence[Event], fields: Fields, now_utc_s: float | None) -> tuple[list[float], float]:
    """When each event was, in seconds since the attempt began, and when the last sign of life was.

    From the first event on that says how long the program has made steps (`elapsed_s`), those are right, whatever the
    wall clock does; it tells where the others lie in between.
    """
    elapsed_s = _rising([fields.number(event, "elapsed_s") for event in group])
    next_s = math.inf
    bounds_s = []
    for value in reversed(elapsed_s):
        next_s = next_s if value is None else value
        bounds_s.append(next_s)
    bounds_s.reverse()
    times_s: list[float] = []
    now_s, seen_utc_s, seen_s = 0.0, None, 0.0
    steps_began_s: float | None = None
    for event, known_s, bound_s in zip(group, elapsed_s, bounds_s, strict=True):
        utc_s = _utc_s(event, fields)
        by_clock_s = now_s if utc_s is None or seen_utc_s is None else seen_s + max(0.0, utc_s - seen_utc_s)
        if known_s is not None:
            if steps_began_s is None:
                # Before the first step lies the start of the program; after a rollback, steps of an earlier attempt.
                steps_began_s = (by_clock_s if seen_utc_s is not None and utc_s is not None else known_s) - known_s
            by_clock_s = steps_began_s + known_s
        elif steps_began_s is not None:
            by_clock_s = min(by_clock_s, steps_began_s + bound_s)
        now_s = max(now_s, by_clock_s)
        if utc_s is not None:
            seen_utc_s, seen_s = utc_s, now_s
        times_s.append(now_s)
    if now_utc_s is not None and seen_utc_s is not None:
        now_s = max(now_s, seen_s + min(now_utc_s - seen_utc_s, _MOST_S))
    return times_s, now_s


def _rising(values: Sequence[float | None]) -> list[float | None]:
    """Without those that are less than one before."""
    kept: list[float | None] = []
    highest = 0.0
    for value in values:
        kept.append(value if value is not None and value >= highest else None)
        highest = max(highest, value or 0.0)
    return kept


def _attempt(
    number: int, group: Sequence[Event], fields: Fields, *, at_s: float, lived_s: float, ending: str
) -> Attempt:
    kinds = [event.get("event") for event in group]
    restored = [fields.whole(event, "step") for event in group if event.get("event") == "restored"]
    # Their fields are counted where they are read for their own sake.
    steps = [Fields().whole(event, "step") for event in group if event.get("event") != "restoring"]
    return Attempt(
        number=number,
        began_utc_s=_utc_s(group[0], Fields()) if kinds[0] == "attempt" else None,
        at_s=at_s,
        lived_s=lived_s,
        ending=ending,
        restored_step=next((step for step in restored if step is not None), None),
        last_step=max((step for step in steps if step is not None), default=None),
        committed=kinds.count("committed"),
        save_failed=kinds.count("save_failed"),
        agent_lost=kinds.count("agent_lost"),
    )


def _ending(group: Sequence[Event], following: Sequence[Event] | None) -> str:
    kinds = [event.get("event") for event in group]
    if "stopped" in kinds:
        return Ending.STOPPED
    if "closed" in kinds:
        closed = next(event for event in reversed(group) if event.get("event") == "closed")
        if closed.get("clean") is True:
            return Ending.CLOSED
        return Ending.RAISED if closed.get("error") else Ending.LEFT
    if following is not None and _is_rollback(group, following):
        return Ending.ROLLED_BACK
    return Ending.KILLED


def _is_rollback(group: Sequence[Event], following: Sequence[Event]) -> bool:
    """Whether the same process began the next attempt, by going back: it was restoring, and is not done."""
    kinds = [event.get("event") for event in group if event.get("event") in ("restoring", "restored")]
    pids = [next((e.get("pid") for e in events if e.get("event") == "attempt"), None) for events in (group, following)]
    # In a container every start may have the same number; there, what was going on decides.
    return bool(kinds) and kinds[-1] == "restoring" and pids[0] == pids[1]


def _utc_s(event: Event, fields: Fields) -> float | None:
    value = event.get("time")
    if value is None:
        return None
    try:
        return datetime.strptime(str(value), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        fields.odd += 1
        return None
