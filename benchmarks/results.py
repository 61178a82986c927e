"""What a benchmark found, as values that become JSON, a table and a plot."""

import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

__all__ = [
    "Check",
    "Report",
    "Role",
    "Row",
    "Section",
    "against_limits",
    "at_least",
    "at_most",
    "faster_than_peers",
    "noise",
    "per_item",
    "percent",
    "row",
    "slow_downs",
]

Role = Literal["limit", "verified limit", "holdfast", "peer"]
"""A *limit* is what the machine can do at all; a *verified* one digests what it reads, as restore must (I4)."""


class Row(msgspec.Struct, frozen=True):
    """One contender under one condition."""

    group: str
    """The condition: `warm`, `10,000 leaves`, …; rows of one group are compared with each other."""
    name: str
    role: Role
    times_s: list[float]
    median_s: float
    best_s: float
    items: int | None = None
    """Where the cost is counted per item (leaves, checkpoints)."""
    extra_bytes: int | None = None
    """How far the process's memory grew above where it was, at most."""
    speed_of_limit_median: float | None = None
    """1.0 is as fast as the fastest limit of the group; from medians."""
    speed_of_limit_best: float | None = None
    slowdown_median: float | None = None
    """Of a training: 0.1 is a tenth more time than without checkpoints; from medians."""
    slowdown_best: float | None = None


class Check(msgspec.Struct, frozen=True):
    """A target, and what was found."""

    what: str
    target: float
    found: float
    relation: Literal["at least", "at most"]
    met: bool
    unit: str = ""


class Section(msgspec.Struct):
    """The answer to one question."""

    name: str
    title: str
    rows: list[Row] = []
    checks: list[Check] = []
    notes: list[str] = []
    skipped: str = ""
    """Why there is nothing to see, if so."""
    took_s: float = 0.0


class Report(msgspec.Struct):
    """One run of the benchmarks."""

    version: str
    utc: str
    quick: bool
    repeat: int
    machine: dict[str, str]
    sections: list[Section]


def row(
    group: str,
    name: str,
    role: Role,
    times_s: Sequence[float],
    *,
    items: int | None = None,
    extra_bytes: int | None = None,
) -> Row:
    """A row whose summary follows from the times."""
    return Row(
        group=group,
        name=name,
        role=role,
        times_s=[round(time_s, 6) for time_s in times_s],
        median_s=round(statistics.median(times_s), 6),
        best_s=round(min(times_s), 6),
        items=items,
        extra_bytes=extra_bytes,
    )


def per_item(found: Row) -> str:
    """The cost of one item, for people; nothing where items are not counted."""
    if not found.items:
        return ""
    cost_us = found.median_s / found.items * 1e6
    return f"{cost_us:,.{1 if cost_us >= 1 else 3}f} µs"


def against_limits(rows: Sequence[Row]) -> list[Row]:
    """The rows with their speed as a fraction of the fastest limit of their group."""
    done = []
    for found in rows:
        limits = [other for other in rows if other.group == found.group and other.role == "limit"]
        if not limits:
            done.append(found)
            continue
        done.append(
            msgspec.structs.replace(
                found,
                speed_of_limit_median=round(min(limit.median_s for limit in limits) / found.median_s, 3),
                speed_of_limit_best=round(min(limit.best_s for limit in limits) / found.best_s, 3),
            )
        )
    return done


def slow_downs(rows: Sequence[Row]) -> list[Row]:
    """The rows with how much more time they take than the first one."""
    base = rows[0]
    return against_limits(
        [
            msgspec.structs.replace(
                found,
                slowdown_median=round(found.median_s / base.median_s - 1, 4),
                slowdown_best=round(found.best_s / base.best_s - 1, 4),
            )
            for found in rows
        ]
    )


def noise(times_s: Sequence[float]) -> float:
    """Half of how far runs of the same loop are apart, as a fraction."""
    return (max(times_s) - min(times_s)) / 2 / statistics.median(times_s)


def percent(fraction: float | None) -> float:
    """As a check shows it."""
    return round((fraction or 0.0) * 100, 2)


def at_least(what: str, target: float, found: float, unit: str = "") -> Check:
    """A check that more is better."""
    found = round(found, 4)
    return Check(what, target, found, "at least", found >= target, unit)


def at_most(what: str, target: float, found: float, unit: str = "") -> Check:
    """A check that less is better."""
    found = round(found, 4)
    return Check(what, target, found, "at most", found <= target, unit)


def faster_than_peers(rows: Sequence[Row], group: str) -> list[Check]:
    """How many times slower than holdfast each peer of the group is, by medians."""
    chosen = [found for found in rows if found.group == group]
    ours = next(found for found in chosen if found.role == "holdfast")
    return [
        at_least(f"{group}: times faster than {peer.name}", 1.0, peer.median_s / ours.median_s)
        for peer in chosen
        if peer.role == "peer"
    ]
