"""How long the job may still run, from whoever knows: the program, the environment, Slurm, HTCondor."""

import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Protocol

from holdfast.core.clock import Clock
from holdfast.core.errors import UsageError
from holdfast.engine.asking import Asking
from holdfast.engine.condor_time_left import condor_time_left
from holdfast.engine.slurm_time_left import slurm_time_left
from holdfast.engine.wall_deadline import WallDeadline
from holdfast.policy.durations import seconds_of, words_of

__all__ = ["TimeLeft", "TimeLeftOption", "find_time_left", "process_age_s"]

_log = logging.getLogger("holdfast")

TimeLeftOption = float | str | timedelta | Callable[[], float | None] | None

_LEFT, _DEADLINE = "HOLDFAST_TIME_LEFT", "HOLDFAST_DEADLINE"
_UNLIMITED = "unlimited"
_ASK_S = 5.0


class TimeLeft(Protocol):
    """Somebody who knows how long the job may still run."""

    source: str

    def left_s(self) -> float | None:
        """Seconds, negative after the end; infinity without a limit; None where that is not known (yet)."""

    def close(self) -> None:
        """Ask no more."""


def find_time_left(
    option: TimeLeftOption, environ: Mapping[str, str], clock: Clock, *, age_s: float | None = None
) -> TimeLeft | None:
    """The first that says something: the option, the environment's variables, Slurm, HTCondor; None where nobody does.

    A duration that the environment gives counts from the start of the process, which was `age_s` ago (by default as the
    system says); that of the option from now. UsageError where one of them makes no sense.
    """
    if option is not None:
        return _of_option(option, clock)
    given = _of_environment(environ, clock, process_age_s() if age_s is None else age_s)
    if given is not None:
        return given
    return slurm_time_left(environ, clock) or condor_time_left(environ, clock)


def process_age_s() -> float:
    """How long ago this process was started; 0 where the system does not say."""
    try:
        with open("/proc/self/stat", "rb") as file:
            # The name of the program, in parentheses, may hold anything: the fields are counted after it.
            started = int(file.read().rpartition(b")")[2].split()[19])
        return max(time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK"), 0.0)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


class _Until:
    """A moment of the monotonic clock."""

    def __init__(self, source: str, seconds: float, clock: Clock) -> None:
        self.source = source
        self._clock = clock
        self._end_s = clock.monotonic_s() + seconds

    def left_s(self) -> float | None:
        return self._end_s - self._clock.monotonic_s()

    def close(self) -> None:
        pass


class _UntilWall:
    """A moment of wall-clock time."""

    def __init__(self, source: str, end_utc_s: float, clock: Clock) -> None:
        self.source = source
        self._end_utc_s = end_utc_s
        self._wall = WallDeadline(clock)

    def left_s(self) -> float | None:
        return self._wall.left_s(self._end_utc_s)

    def close(self) -> None:
        pass


class _Asked:
    """A function of the program, called in a thread of its own, because it may take its time."""

    source = "the function given as time_left"

    def __init__(self, function: Callable[[], float | None], clock: Clock) -> None:
        self._function = function
        self._clock = clock
        self._asking = Asking(self._ask, what=self.source, period_s=lambda _: _ASK_S, clock=clock)
        self._asking.start()

    def left_s(self) -> float | None:
        end_s = self._asking.answer()
        return None if end_s is None else end_s - self._clock.monotonic_s()

    def close(self) -> None:
        self._asking.close()

    def _ask(self) -> float | None:
        answer = self._function()
        if answer is None:
            return None
        left_s = float(answer)
        if math.isnan(left_s):
            raise ValueError("returned NaN; expected seconds, or None")
        return self._clock.monotonic_s() + left_s


def _of_option(option: float | str | timedelta | Callable[[], float | None], clock: Clock) -> TimeLeft:
    if callable(option):
        return _Asked(option, clock)
    return _Until("the option time_left", _duration(option, "the option time_left"), clock)


def _of_environment(environ: Mapping[str, str], clock: Clock, age_s: float) -> TimeLeft | None:
    """The earlier one, where both variables are set."""
    found: list[TimeLeft] = []
    if environ.get(_LEFT):
        found.append(_Until(_LEFT, _duration(environ[_LEFT], _LEFT) - age_s, clock))
    if environ.get(_DEADLINE):
        found.append(_UntilWall(_DEADLINE, _moment(environ[_DEADLINE]), clock))
    if not found:
        return None
    first = min(found, key=lambda one: one.left_s() or 0.0)
    left_s = first.left_s()
    if left_s is not None and left_s <= 0:
        # Not a stop with its status: whoever starts the program again because of that would do so for ever.
        raise UsageError(
            f"{first.source}={environ[first.source]!r}: the time was over {words_of(-left_s)} ago",
            hint=f"to start took {words_of(age_s)} of it: give more, or unset it"
            if first.source == _LEFT
            else f"set {first.source} anew for every job, or unset it",
        )
    return first


def _duration(given: float | str | timedelta, what: str) -> float:
    text = given.strip().lower() if isinstance(given, str) else ""
    is_unlimited = text == _UNLIMITED or (isinstance(given, float) and given == math.inf)
    return math.inf if is_unlimited else seconds_of(given, what)


def _moment(text: str) -> float:
    """Seconds since 1970, or a date and time with its zone."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            moment = None
        seconds = moment.timestamp() if moment is not None and moment.tzinfo is not None else math.nan
    if not math.isfinite(seconds):
        raise UsageError(
            f"{_DEADLINE}={text!r}: expected seconds since 1970, or a date and time with its zone",
            hint='export HOLDFAST_DEADLINE=$(date -d "2 hours" +%s), or 2026-11-15T18:42:01Z',
        )
    return seconds
