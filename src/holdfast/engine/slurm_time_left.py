"""How long a Slurm job may still run, as its controller says; asked again, because limits get changed."""

import logging
import math
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from holdfast.core.clock import Clock
from holdfast.engine.asking import Asking
from holdfast.engine.wall_deadline import WallDeadline

__all__ = ["SlurmTimeLeft", "slurm_time_left"]

_log = logging.getLogger("holdfast")

_ASK_S = 60.0
_ASK_NEAR_S = 15.0
"""Near the end somebody may just be extending the limit; a controller is not asked more often than this."""
_DEADLINE_S = 20.0
_JOB = re.compile(r"[0-9]{1,12}\Z")
_FIELDS = "%A|%S|%e"
"""The job's own number (of an array, squeue shows every task), its start, its end."""


class SlurmTimeLeft:
    """`SLURM_JOB_END_TIME` at first, where Slurm sets it; then what `squeue` says."""

    def __init__(self, job: str, *, environ: Mapping[str, str], clock: Clock) -> None:
        self.source = f"Slurm, job {job}"
        self._job = job
        self._environ = environ
        self._first = _still_true(
            _Span(_number(environ.get("SLURM_JOB_START_TIME")), _number(environ.get("SLURM_JOB_END_TIME"))),
            clock.utc_s(),
        )
        self._wall = WallDeadline(clock, not_before_s=self._first.start_s or 0.0)
        self._clock = clock
        self._asking = Asking(self._ask, what=f"when {self.source} ends", period_s=self._period_s, clock=clock)

    def start(self) -> None:
        """Ask Slurm, now and from time to time."""
        self._asking.start()

    def left_s(self) -> float | None:
        """Seconds; infinity where the job has no limit, None where that is not known."""
        end_s = (self._asking.answer() or self._first).end_s
        return None if end_s is None else self._wall.left_s(end_s)

    def close(self) -> None:
        self._asking.close()

    def _ask(self) -> "_Span":
        command = shutil.which("squeue", path=self._environ.get("PATH", os.defpath))
        if command is None:
            raise FileNotFoundError("squeue is not in PATH; limits that are changed will not be seen")
        done = subprocess.run(  # noqa: S603  a list, no shell; the job's number is one
            [command, "--noheader", f"--jobs={self._job}", f"--format={_FIELDS}"],
            env={**_without_habits(self._environ), "SLURM_TIME_FORMAT": "%s"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_DEADLINE_S,
            check=False,
        )
        span = _read(done.stdout.decode(errors="replace"), self._job)
        if span is None:
            said = done.stderr.decode(errors="replace").strip() or f"status {done.returncode}, and no line for the job"
            raise ValueError(f"squeue: {said[:200]}")
        if self._first.start_s is None and span.start_s is not None:
            # Older Slurms say only here when the job began.
            self._first = span
            self._wall = WallDeadline(self._clock, not_before_s=span.start_s)
        return span

    def _period_s(self, span: "_Span | None") -> float:
        if span is None or span.end_s is None:
            return _ASK_NEAR_S
        return min(max(self._wall.left_s(span.end_s) / 10, _ASK_NEAR_S), _ASK_S)


def slurm_time_left(environ: Mapping[str, str], clock: Clock) -> SlurmTimeLeft | None:
    """That of the Slurm job that this process is in, asked from now on; None outside of one."""
    job = environ.get("SLURM_JOB_ID", "")
    if not _JOB.match(job):
        return None
    found = SlurmTimeLeft(job, environ=environ, clock=clock)
    found.start()
    return found


def _still_true(said: "_Span", now_s: float) -> "_Span":
    """What the environment says; or nothing, where that job is over: a shell may outlive it, and a screen session."""
    if said.end_s is None or said.end_s > now_s:
        return said
    _log.warning("SLURM_JOB_END_TIME is over: it is left out, and Slurm asked instead")
    return _Span(None, None)


class _Span(NamedTuple):
    """Start and end of the job, in wall-clock time; None where it is not known."""

    start_s: float | None
    end_s: float | None


def _read(text: str, job: str) -> _Span | None:
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) == 3 and fields[0] == job:
            end_s = math.inf if fields[2] in ("NONE", "UNLIMITED") else _moment(fields[2])
            return None if end_s is None else _Span(_moment(fields[1]), end_s)
    return None


def _without_habits(environ: Mapping[str, str]) -> dict[str, str]:
    """Without the variables by which users have squeue show less."""
    return {name: value for name, value in environ.items() if not name.startswith("SQUEUE_")}


def _moment(text: str) -> float | None:
    """Seconds since 1970; also of `2026-11-15T18:42:01`, in this machine's zone, which old clients print."""
    number = _number(text)
    if number is not None:
        return number
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


def _number(text: str | None) -> float | None:
    number = float(text) if text and re.fullmatch(r"[0-9]{1,12}", text) else 0.0
    return number or None  # 0 is what is said where it is not known
