"""What happened to an attempt, in words."""

import signal
import time

from holdfast.policy.durations import words_of
from holdfast.supervising.deciding import Tried, Verdict
from holdfast.supervising.watching import Progress

__all__ = ["attempt_line", "ending_words", "live_words", "signal_words"]

_MINUTE_S = 60


def attempt_line(number: int, started_utc_s: float, tried: Tried, *, ending: str, verdict: Verdict) -> str:
    """`attempt 2  18:42:01  3 min 20 s  step 1200 → 3400  killed by SIGKILL; again in 2 s`."""
    parts = [f"attempt {number}", time.strftime("%H:%M:%S", time.localtime(started_utc_s)), _took(tried.took_s)]
    if tried.step is not None:
        parts.append(f"step {tried.from_step or 0} → {tried.step}")
    return "  ".join([*parts, f"{ending}{_next(verdict)}"])


def ending_words(tried: Tried, *, hang_s: float | None = None) -> str:
    """How it ended."""
    if tried.outcome == "done":
        words = "done"
    elif tried.outcome == "again":
        words = f"has more to do (status {tried.status})"
    else:
        words = signal_words(tried.status) or f"status {tried.status}"
    if tried.is_hung:
        return f"no step for {words_of(hang_s or 0)}, ended; {words}"
    return f"{words}, after {tried.stopped_by}" if tried.stopped_by else words


def signal_words(status: int) -> str:
    """`killed by SIGKILL`; empty where the status is not that of a signal."""
    try:
        return f"killed by {signal.Signals(status - 128).name}"
    except ValueError:
        return ""


def live_words(number: int, progress: Progress) -> str:
    """`attempt 2  step 3400 of 5000  12 steps/s  last durable 3300`."""
    parts = [f"attempt {number}"]
    if progress.step is not None:
        of = f" of {progress.total_steps}" if progress.total_steps else ""
        parts.append(f"step {progress.step}{of}")
    if progress.steps_per_s:
        rate = progress.steps_per_s
        parts.append(f"{rate:.3g} steps/s" if rate >= 1 else f"{words_of(1 / rate)} a step")
    if progress.durable_step is not None:
        parts.append(f"last durable {progress.durable_step}")
    return "  ".join(parts)


def _took(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < _MINUTE_S else words_of(seconds)


def _next(verdict: Verdict) -> str:
    if verdict.goes_on:
        return f"; again in {words_of(verdict.after_s)}" if verdict.after_s else "; again at once"
    return f"; {verdict.why}" if verdict.why else ""
