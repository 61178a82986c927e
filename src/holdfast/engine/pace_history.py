"""What the journal tells a new attempt: what steps and checkpoints took before, and how long attempts lived."""

from collections.abc import Iterable
from typing import NamedTuple

from holdfast.engine.history import IMPORTS, Attempt, Ending, Fields, trace_attempts
from holdfast.engine.journal import Event
from holdfast.policy.failures import Lifetime

__all__ = ["PACED", "STOPPED", "Past", "read_past"]

PACED = "paced"
STOPPED = "stopped"
# Attempts before these say little of the machines of today.
_MOST_LIFETIMES = 50
# What tells how an attempt began and ended. A journal has thousands of others, and a job waits for this.
_TELLING = frozenset({"attempt", "restoring", "restored", "closed", STOPPED}) | IMPORTS


class Past(NamedTuple):
    """Of the attempts before this one."""

    profile: object = None
    """What the last one measured, as plain values that nobody has checked; None where there was none."""
    margin: object = None
    durable_s: object = None
    """What its slowest checkpoints took to be durable, where it stopped itself; not checked either."""
    lifetimes: tuple[Lifetime, ...] = ()


def read_past(events: Iterable[Event], *, attempt: int) -> Past:
    """Of the attempts before the given one. A journal is a diary: what makes no sense is skipped."""
    profile = margin = durable_s = None
    telling: list[Event] = []
    last: dict[int, Event] = {}
    hosts: dict[int, object] = {}
    for event in events:
        number, kind = event.get("attempt"), event.get("event")
        if type(number) is not int or not 1 <= number <= attempt:
            continue
        if kind == PACED and number < attempt:
            profile, margin = event.get("profile"), event.get("margin")
        if kind == STOPPED and number < attempt:
            durable_s = event.get("durable_s")
        if kind == "attempt":
            hosts[number] = event.get("host")
        if kind in _TELLING:
            telling.append(event)
            last.pop(number, None)
        else:
            last[number] = event  # at least a sign of life
    traced = trace_attempts([*telling, *last.values()], Fields())
    lifetimes = [
        # From the last sign of life on nothing is known, and what is known counts.
        Lifetime(each.lived_s, _failed(each), hosts.get(each.number) == hosts.get(attempt))
        for each in traced.attempts
        # One whose beginning is not in the journal any more may have lived much longer.
        if each.number < attempt and each.began_utc_s is not None
    ]
    return Past(profile, margin, durable_s, tuple(lifetimes[-_MOST_LIFETIMES:]))


def _failed(attempt: Attempt) -> bool:
    """Whether something went wrong. A program that ends without close(), and without an exception, is done."""
    return attempt.ending in (Ending.KILLED, Ending.RAISED)
