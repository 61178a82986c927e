"""Whose turn it is: a scheduler that starts a job again has given up the start before, though that may not know it yet.

A node that does not answer is declared down and its job requeued, while the program on it goes on. The later turn takes
the run over, and the earlier one is fenced off (I11), instead of keeping the later from starting.
"""

import re
from collections.abc import Mapping

from holdfast.engine.holders import Turn
from holdfast.engine.job_ads import read_ad

__all__ = ["TURN_VARIABLE", "find_turn"]

TURN_VARIABLE = "HOLDFAST_TURN"
"""Set where the tasks of an array are a chain: the number of the task. Otherwise its tasks run side by side."""
_NUMBER = re.compile(r"[0-9]{1,12}\Z")
_CLUSTER = re.compile(r"[A-Za-z0-9._-]{1,100}\Z")
_GLOBAL_NAME = re.compile(r"[A-Za-z0-9@#._-]{1,200}\Z")
_MAX_STARTS = 10**9


def find_turn(environ: Mapping[str, str]) -> Turn | None:
    """What Slurm or HTCondor says; None outside of them. Values that make no sense count as not there."""
    job, array = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_ARRAY_JOB_ID", "")
    task, restarts = environ.get(TURN_VARIABLE, ""), environ.get("SLURM_RESTART_COUNT", "0")
    # Two clusters that share a file system have jobs of the same number.
    cluster = environ.get("SLURM_CLUSTER_NAME", "")
    where = f" of {cluster}" if _CLUSTER.match(cluster) else ""
    if _NUMBER.match(array) and _NUMBER.match(task):
        return Turn(f"slurm array {array}{where}", int(task))
    if _NUMBER.match(job) and _NUMBER.match(restarts):
        return Turn(f"slurm {job}{where}", int(restarts))
    return _condor_turn(environ)


def _condor_turn(environ: Mapping[str, str]) -> Turn | None:
    ad = read_ad(environ.get("_CONDOR_JOB_AD"))
    # Each start elsewhere has a shadow of its own; a program that is started again where it was has the same.
    job, starts = ad.get("globaljobid"), ad.get("numshadowstarts")
    if not isinstance(job, str) or not _GLOBAL_NAME.match(job) or type(starts) is not float:
        return None
    return Turn(f"htcondor {job}", int(starts)) if 0 <= starts < _MAX_STARTS else None
