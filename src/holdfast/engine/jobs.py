"""The job of a scheduler that this process is in, and what is the same in all parts of it.

A job that is requeued, an array whose tasks follow each other, a job that moves to another machine: one piece of work,
one run.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from holdfast.core.errors import UsageError
from holdfast.engine.condor_settings import checkpoint_settings
from holdfast.engine.job_ads import read_ad_numbers

__all__ = ["JOB_VARIABLE", "RESTART_STATUS", "Job", "fill_in_job", "find_job", "restart_status"]

RESTART_STATUS = 85
"""The status of a program that has more to do, and wants to be started again."""

JOB_VARIABLE = "HOLDFAST_JOB"
_PLACE = "{job}"
_NUMBER = re.compile(r"[0-9]{1,12}\Z")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_MAX_NUMBER = 10**12


class Job(NamedTuple):
    """Where this process runs."""

    scheduler: str
    """`slurm`, `htcondor`; empty where only HOLDFAST_JOB says what it belongs to."""
    name: str
    """The same for all parts of one piece of work: requeued, moved, or the next task of an array."""
    part: str
    """What the scheduler calls the part that runs now."""
    restarts: int
    """How often the scheduler started it again."""
    task: int | None = None
    """The number within an array that is a chain; None outside of one."""
    last_task: int | None = None


def find_job(environ: Mapping[str, str]) -> Job | None:
    """What the environment says; None outside of any job. Values that make no sense count as not there."""
    job = _slurm(environ) or _condor(environ)
    name = environ.get(JOB_VARIABLE, "")
    if not _NAME.match(name):
        return job
    return Job("", name, name, 0) if job is None else job._replace(name=name)


def fill_in_job(path: str, environ: Mapping[str, str]) -> str:
    """The path with `{job}` replaced by the job's name: one run for all parts of a job."""
    if _PLACE not in path:
        return path
    job = find_job(environ)
    if job is None:
        raise UsageError(
            f"{path}: names the job, and this process is in none",
            hint=f"run it by Slurm or HTCondor, or say what to call it: export {JOB_VARIABLE}=first-try",
        )
    return path.replace(_PLACE, job.name)


def restart_status(given: int | None, environ: Mapping[str, str]) -> int:
    """With which status the program asks for a restart: what was given, what the HTCondor job wants, or 85."""
    if given is not None:
        if type(given) is not int or not 1 <= given <= 255:
            raise UsageError(f"exit_code is {given!r}, expected a whole number from 1 to 255", hint="85 is the custom")
        return given
    condor = checkpoint_settings(environ)
    return condor.exit_code if condor is not None and condor.exit_code is not None else RESTART_STATUS


def _slurm(environ: Mapping[str, str]) -> Job | None:
    part = environ.get("SLURM_JOB_ID", "")
    if not _NUMBER.match(part):
        return None
    array = environ.get("SLURM_ARRAY_JOB_ID", "")
    task = _whole(environ.get("SLURM_ARRAY_TASK_ID"))
    return Job(
        "slurm",
        array if _NUMBER.match(array) else part,
        part,
        _whole(environ.get("SLURM_RESTART_COUNT")) or 0,
        task,
        _whole(environ.get("SLURM_ARRAY_TASK_MAX")) if task is not None else None,
    )


def _condor(environ: Mapping[str, str]) -> Job | None:
    ad = read_ad_numbers(environ.get("_CONDOR_JOB_AD"))
    numbers = [ad.get("clusterid", -1.0), ad.get("procid", 0.0)]
    if not all(number.is_integer() and 0 <= number < _MAX_NUMBER for number in numbers):
        return None
    name = f"{numbers[0]:.0f}.{numbers[1]:.0f}"
    # It counts when the program was started, which comes after the ad is written.
    starts = ad.get("numjobstarts", 0.0)
    return Job("htcondor", name, name, int(starts) if 0 <= starts < _MAX_NUMBER else 0)


def _whole(text: str | None) -> int | None:
    return int(text) if text and _NUMBER.match(text) else None
