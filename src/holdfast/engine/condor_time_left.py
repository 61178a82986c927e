"""How long an HTCondor job may still run, as the ads that its starter wrote beside it say.

Changes of a running job do not come to its ad: it is read once.
"""

import os
from collections.abc import Mapping

from holdfast.core.clock import Clock
from holdfast.engine.job_ads import read_ad_numbers
from holdfast.engine.wall_deadline import WallDeadline

__all__ = ["CondorTimeLeft", "condor_time_left"]


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
    job = read_ad_numbers(path)
    machine = read_ad_numbers(environ.get("_CONDOR_MACHINE_AD"))
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


def _changed_s(path: str | None) -> float | None:
    try:
        return os.stat(path).st_mtime if path else None
    except OSError:
        return None
