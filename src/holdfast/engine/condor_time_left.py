"""How long an HTCondor job may still run, as the ads that its starter wrote beside it say.

Changes of a running job do not come to its ad: it is read once.
"""

import os
import re
from collections.abc import Mapping

from holdfast.core.clock import Clock
from holdfast.engine.wall_deadline import WallDeadline

__all__ = ["CondorTimeLeft", "condor_time_left", "read_ad"]

_MAX_BYTES = 1 << 20
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?\Z")


class CondorTimeLeft:
    """The earliest of the ends that the ads give."""

    def __init__(self, limit: str, *, end_s: float, start_s: float, clock: Clock) -> None:
        self.source = f"HTCondor, {limit}"
        self._end_s = end_s
        self._wall = WallDeadline(clock, not_before_s=start_s)

    def left_s(self) -> float | None:
        return self._wall.left_s(self._end_s)

    def close(self) -> None:
        """Nothing is held."""


def condor_time_left(environ: Mapping[str, str], clock: Clock) -> CondorTimeLeft | None:
    """That of the HTCondor job that this process is in; None outside of one, and where it has no limit."""
    path = environ.get("_CONDOR_JOB_AD")
    job = read_ad(path)
    machine = read_ad(environ.get("_CONDOR_MACHINE_AD"))
    ends = []
    start_s = job.get("shadowbday", job.get("jobcurrentstartdate"))
    if start_s is not None and "allowedjobduration" in job:
        ends.append((start_s + job["allowedjobduration"], "AllowedJobDuration"))
    # The starter writes the ad anew before each start of the program, also after a checkpoint, as that limit wants it.
    spawned_s = _changed_s(path)
    if spawned_s is not None and "allowedexecuteduration" in job:
        ends.append((spawned_s + job["allowedexecuteduration"], "AllowedExecuteDuration"))
    if machine.get("glidein_todie", 0.0) > 0:
        ends.append((machine["glidein_todie"], "GLIDEIN_ToDie of the machine"))
    if not ends:
        return None
    end_s, limit = min(ends)
    return CondorTimeLeft(limit, end_s=end_s, start_s=start_s or 0.0, clock=clock)


def read_ad(path: str | None) -> dict[str, float]:
    """The attributes of an ad file that are plain numbers, by their names in lower case; empty where it is not one."""
    if not path:
        return {}
    try:
        # Without waiting, should it be a FIFO.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            text = (file.read(_MAX_BYTES) or b"").decode(errors="replace")
    except OSError:
        return {}
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if _NUMBER.match(value.strip()):
            found[name.strip().lower()] = float(value)
    return found


def _changed_s(path: str | None) -> float | None:
    try:
        return os.stat(path).st_mtime if path else None
    except OSError:
        return None
