"""Disk: how much room the file system of the run has, and when it will be full."""

import math
from collections.abc import Callable
from pathlib import Path

from holdfast.core.clock import Clock, SystemClock
from holdfast.policy.risk import CALM, SERIOUS, SLIGHT, Reading
from holdfast.policy.trend import Trend
from holdfast.storage.files import Files, Space

__all__ = ["DiskSensor"]

_SOON_S = ((600.0, SERIOUS), (3600.0, SLIGHT))
_LITTLE_LEFT = ((0.01, SERIOUS), (0.03, SLIGHT))
_FEW_INODES = 1000
# Checkpoints come and go: a trend is told from what is left over several of them.
_SPAN_S = 1800.0
_LEAST_S = 60.0


class DiskSensor:
    """Whether the disk is filling up: what is saved now may be the last that fits."""

    name = "disk"

    def __init__(self, run: Path, *, clock: Clock | None = None, space: Callable[[Path], Space] | None = None) -> None:
        """`space` says how much a file system has; by default the system is asked."""
        self._run = run
        self._clock = clock or SystemClock()
        self._space = space or _space_of
        self._trend = Trend(_SPAN_S, least_s=_LEAST_S)

    def missing(self) -> str:
        """Why it cannot be had here; empty where it can."""
        try:
            self._space(self._run)
        except OSError as error:
            return f"{self._run}: {error.strerror}"
        return ""

    def read(self) -> Reading:
        space = self._space(self._run)
        self._trend.note(self._clock.monotonic_s(), space.free_bytes)
        left_s = self._trend.used_up_in_s()
        share = space.free_bytes / max(1, space.total_bytes)
        text = f"{space.free_bytes / (1 << 30):.2f} GiB free"
        if left_s < math.inf:
            text += f", full in {left_s / 60:.0f} min"
        soon = next((risk for most_s, risk in _SOON_S if left_s < most_s), CALM)
        little = next((risk for most, risk in _LITTLE_LEFT if share < most), CALM)
        if space.free_inodes < _FEW_INODES:
            return Reading(f"{text}, {space.free_inodes} inodes", SERIOUS, "the file system has hardly any inodes left")
        if soon > CALM and soon >= little:
            return Reading(text, soon, "the file system will be full soon")
        return Reading(text, little, "the file system is nearly full" if little > CALM else "")


def _space_of(path: Path) -> Space:
    files = Files()
    descriptor = files.open_root(str(path))
    try:
        return files.space(descriptor)
    finally:
        files.close(descriptor)
