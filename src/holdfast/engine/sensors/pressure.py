"""Memory: how much its limits leave, how fast that shrinks, and whether processes wait for it already.

The limits are those of the machine, of the control groups that this process is in, and of its address space
(RLIMIT_AS). Pressure is what the kernel tells of stalls (PSI), of the machine and of the group.
"""

import math
import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast.core.clock import Clock, SystemClock
from holdfast.engine.sensors.sensor import number_in, text_of, whole
from holdfast.policy.risk import CALM, IMMINENT, SERIOUS, SLIGHT, Lingering, Reading
from holdfast.policy.trend import Trend
from holdfast.tiers.room import GroupFiles, group_places

__all__ = ["MemorySensor"]

# A start takes memory fast, and then no more: only where half of it is gone does its trend mean something.
_MUCH_LEFT = 0.5
_LITTLE_LEFT = ((0.02, IMMINENT), (0.05, SERIOUS))
_SOON_S = ((120.0, IMMINENT), (600.0, SERIOUS), (3600.0, SLIGHT))
_STALLED_PERCENT = ((20.0, IMMINENT), (5.0, SERIOUS))  # all processes wait: nothing else is done
_WAITING_PERCENT = ((40.0, SERIOUS), (10.0, SLIGHT))  # some process waits
_SPAN_S = 180.0
_LEAST_S = 2.0
_KILLED_HOLD_S = 900.0
_NO_LIMIT = 1 << 60


class _Limit(NamedTuple):
    what: str
    limit_bytes: int
    free_bytes: int


class MemorySensor:
    """Whether the OOM killer is coming."""

    name = "memory"
    is_urgent = True  # a leak may leave less than a minute

    def __init__(
        self,
        proc: Path = Path("/proc"),
        groups: Path = Path("/sys/fs/cgroup"),
        *,
        clock: Clock | None = None,
    ) -> None:
        self._proc = proc
        self._groups = groups
        self._clock = clock or SystemClock()
        self._trends: dict[str, Trend] = {}
        self._kills: int | None = None
        self._killed = Lingering(_KILLED_HOLD_S)

    def missing(self) -> str:
        """Why it cannot be had here; empty where it can."""
        return "" if text_of(self._proc / "meminfo") else f"{self._proc}/meminfo cannot be read"

    def read(self) -> Reading:
        now_s = self._clock.monotonic_s()
        groups = list(group_places(self._proc, self._groups))
        # The innermost group of either version: those above it have other jobs in them.
        own = list({files: place for place, files in reversed(groups)}.values())
        found = [self._judge(limit, now_s) for limit in self._limits(groups)]
        found += [
            _judge_pressure(self._proc / "pressure/memory"),
            *(_judge_pressure(p / "memory.pressure") for p in own),
        ]
        found.append(self._judge_kills(own, now_s))
        worst = max(found, key=lambda reading: reading.risk)
        text = "; ".join(reading.text for reading in found if reading.text)
        return Reading(text or "nothing can be read", worst.risk, worst.concluded)

    def _limits(self, groups: Sequence[tuple[Path, GroupFiles]]) -> Iterator[_Limit]:
        memory = dict(line.partition(":")[::2] for line in text_of(self._proc / "meminfo").splitlines())
        available, total = _kib(memory.get("MemAvailable", "")), _kib(memory.get("MemTotal", ""))
        if available is not None and total is not None:
            yield _Limit("memory of the machine", total, available)
        for place, files in groups:
            limit, used = number_in(place / files.limit), number_in(place / files.used)
            if limit is not None and used is not None and 0 < limit < _NO_LIMIT:
                stat = (line.partition(" ") for line in text_of(place / "memory.stat").splitlines())
                cache = sum(whole(value) or 0 for name, _, value in stat if name in files.reclaimable)
                yield _Limit(f"memory of the control group {place.name or place}", limit, max(0, limit - used + cache))
        yield from self._address_space()

    def _address_space(self) -> Iterator[_Limit]:
        for line in text_of(self._proc / "self/limits").splitlines():
            words = line.removeprefix("Max address space").split()
            limit = whole(words[0]) if line.startswith("Max address space") and words else None
            pages = [whole(word) for word in text_of(self._proc / "self/statm").split()]
            if limit is not None and pages and pages[0] is not None:
                left = max(0, limit - pages[0] * mmap.PAGESIZE)
                yield _Limit("address space (RLIMIT_AS)", limit, left)

    def _judge(self, limit: _Limit, now_s: float) -> Reading:
        trend = self._trends.setdefault(limit.what, Trend(_SPAN_S, least_s=_LEAST_S))
        trend.note(now_s, limit.free_bytes)
        share = limit.free_bytes / max(1, limit.limit_bytes)
        text = f"{limit.what}: {_mib(limit.free_bytes)} of {_mib(limit.limit_bytes)} left"
        risk = next((risk for most, risk in _LITTLE_LEFT if share < most), CALM)
        concluded = f"hardly any {limit.what} is left" if risk > CALM else ""
        left_s = trend.used_up_in_s() if share < _MUCH_LEFT else math.inf
        if left_s < math.inf:
            text += f", used up in {left_s:.0f} s"
        soon = next((risk for most_s, risk in _SOON_S if left_s < most_s), CALM)
        return (
            Reading(text, soon, f"{limit.what} will be used up soon") if soon > risk else Reading(text, risk, concluded)
        )

    def _judge_kills(self, own: Sequence[Path], now_s: float) -> Reading:
        kills = sum(map(_kills_in, own))
        if self._kills is not None and kills > self._kills:
            self._killed.happened(now_s, SERIOUS, "a process of this control group was killed for its memory")
        self._kills = kills
        return self._killed.reading(now_s, f"{kills} killed for memory" if kills else "")


def _judge_pressure(path: Path) -> Reading:
    values: dict[str, float] = {}
    for line in text_of(path).splitlines():
        kind, *fields = line.split() or [""]
        for field in fields:
            name, _, value = field.partition("=")
            if name == "avg10":
                values[kind] = _float(value)
    if not values:
        return Reading("")
    full, some = values.get("full", 0.0), values.get("some", 0.0)
    risk = max(
        next((risk for least, risk in _STALLED_PERCENT if full >= least), CALM),
        next((risk for least, risk in _WAITING_PERCENT if some >= least), CALM),
    )
    text = f"waiting for memory {some:g} %, all of them {full:g} % of the time"
    return Reading(text, risk, "processes wait for memory" if risk > CALM else "")


def _kills_in(place: Path) -> int:
    """How often the OOM killer struck in a group, by either version's file."""
    for name in ("memory.events", "memory.oom_control"):
        for line in text_of(place / name).splitlines():
            kind, _, count = line.partition(" ")
            if kind == "oom_kill":
                return whole(count.strip()) or 0
    return 0


def _kib(text: str) -> int | None:
    number = whole(text.partition("kB")[0].strip())
    return None if number is None else number << 10


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.0f} MiB"


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
