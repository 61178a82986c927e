"""Network: errors and drops that the interfaces count, beside the packets that came through."""

from pathlib import Path
from typing import NamedTuple

from holdfast.core.clock import Clock, SystemClock
from holdfast.engine.sensors.sensor import text_of, whole
from holdfast.policy.risk import SERIOUS, SLIGHT, Lingering, Reading

__all__ = ["NetworkSensor"]

_HOLD_S = 300.0
# Drops are part of a network's life, errors are not. Of each, so many since the last look, and so many of all packets.
_FEW, _MANY = 10, 100
_ERROR_SHARES = (1e-2, 1e-4)
_DROP_SHARES = (5e-2, 5e-3)


class _Counts(NamedTuple):
    packets: int
    errors: int
    drops: int


class NetworkSensor:
    """Whether a network interface, or what it is plugged into, fails."""

    name = "network"

    def __init__(self, table: Path = Path("/proc/net/dev"), *, clock: Clock | None = None) -> None:
        self._table = table
        self._clock = clock or SystemClock()
        self._before: dict[str, _Counts] = {}
        self._trouble = Lingering(_HOLD_S)

    def missing(self) -> str:
        """Why it cannot be had here; empty where it can."""
        return "" if _interfaces(text_of(self._table)) else f"{self._table} lists no interface"

    def read(self) -> Reading:
        now_s = self._clock.monotonic_s()
        counts = _interfaces(text_of(self._table))
        for name, found in counts.items():
            before = self._before.get(name)
            # A counter that went back is that of an interface that was made anew.
            if before is not None and min(now - then for now, then in zip(found, before, strict=True)) >= 0:
                self._judge(name, _Counts(*(now - then for now, then in zip(found, before, strict=True))), now_s)
        self._before = counts
        errors, drops = sum(c.errors for c in counts.values()), sum(c.drops for c in counts.values())
        return self._trouble.reading(now_s, f"{len(counts)} interfaces, {errors} errors and {drops} drops so far")

    def _judge(self, name: str, new: _Counts, now_s: float) -> None:
        for what, count, (large, small) in (("errors", new.errors, _ERROR_SHARES), ("drops", new.drops, _DROP_SHARES)):
            share = count / max(1, new.packets + count)
            if count >= _MANY and share >= large:
                self._trouble.happened(now_s, SERIOUS, f"many {what} on the network interface {name}")
            elif count >= _FEW and share >= small:
                self._trouble.happened(now_s, SLIGHT, f"{what} on the network interface {name}")


def _interfaces(table: str) -> dict[str, _Counts]:
    found = {}
    for line in table.splitlines():
        name, colon, rest = line.partition(":")
        fields = rest.split()
        # Received: bytes packets errs drop fifo frame compressed multicast; then the same of what was sent.
        numbers = [number for number in map(whole, fields) if number is not None]
        if colon and name.strip() != "lo" and 12 <= len(fields) == len(numbers):
            found[name.strip()] = _Counts(numbers[1] + numbers[9], numbers[2] + numbers[10], numbers[3] + numbers[11])
    return found
