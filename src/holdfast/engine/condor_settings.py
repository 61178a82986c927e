"""What HTCondor will do with the checkpoints of the job that this process is in, as the ads beside it say."""

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.engine.job_ads import read_ad

__all__ = ["CondorSettings", "checkpoint_settings"]

# The first is what HTCondor makes of `checkpoint_exit_code`; the other is met in ads that were written by hand.
_STATUS = ("successcheckpointexitcode", "checkpointexitcode")
_GRACE = ("jobmaxvacatetime", "machinemaxvacatetime")


class CondorSettings(NamedTuple):
    """Of one job; what its ad does not say, or not in a way that makes sense, is None or empty."""

    exit_code: int | None
    """With which status the program says that it has made a checkpoint and wants to go on."""
    files: tuple[str, ...]
    """What HTCondor transfers then, relative to the job's directory."""
    destination: str
    """The URL that it transfers them to; empty where that is the machine of the submitter."""
    when_to_transfer_output: str
    """`ON_EXIT`; with `ON_EXIT_OR_EVICT` also what an eviction left."""
    transfers: bool
    """Whether the job has a directory of its own; if not, it runs where it was submitted, on a shared file system."""
    scratch: str
    """The directory that goes with the job."""
    grace_s: float | None
    """From SIGTERM to SIGKILL, the transfer of the files included."""


def checkpoint_settings(environ: Mapping[str, str]) -> CondorSettings | None:
    """None outside of a job of HTCondor."""
    ad = read_ad(environ.get("_CONDOR_JOB_AD"))
    if not ad:
        return None
    limits = {**read_ad(environ.get("_CONDOR_MACHINE_AD")), **ad}
    # A job may ask for less time than the machine gives, not for more.
    graces_s = [value for name in _GRACE if type(value := limits.get(name)) is float and value >= 0]
    return CondorSettings(
        next(filter(None, (_status(ad.get(name)) for name in _STATUS)), None),
        tuple(name for name in (part.strip() for part in _text(ad, "transfercheckpoint").split(",")) if name),
        _text(ad, "checkpointdestination"),
        _text(ad, "whentotransferoutput").upper(),
        _text(ad, "shouldtransferfiles").upper() == "YES",
        environ.get("_CONDOR_SCRATCH_DIR", ""),
        min(graces_s, default=None),
    )


def _status(value: object) -> int | None:
    return int(value) if type(value) is float and value.is_integer() and 1 <= value <= 255 else None


def _text(ad: Mapping[str, object], name: str) -> str:
    value = ad.get(name)
    return value if isinstance(value, str) else ""
