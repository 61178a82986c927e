"""What a part of the rig reports, how it shows its progress, and how it ends what hangs."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple

__all__ = ["Hang", "Outcome", "Progress", "deadline"]

_SHOWN = 20


class Outcome(NamedTuple):
    """How much was tried and what went wrong."""

    counted: int
    violations: list[str]
    skipped: str = ""
    """Why the part could not run here; empty where it ran."""
    remark: str = ""
    """What has to be known about the count."""

    def __str__(self) -> str:
        if self.skipped:
            return f"skipped: {self.skipped}"
        lines = [f"{self.counted:,} tried, {len(self.violations)} violations{self.remark and f' ({self.remark})'}"]
        lines += [f"  {violation}" for violation in self.violations[:_SHOWN]]
        if len(self.violations) > _SHOWN:
            lines.append(f"  … and {len(self.violations) - _SHOWN} more")
        return "\n".join(lines)


class Progress:
    """A line on stderr every few seconds."""

    def __init__(self, part: str, total: int, *, period_s: float = 5.0) -> None:
        self._part = part
        self._total = total
        self._period_s = period_s
        self._begin_s = self._shown_s = time.monotonic()

    def show(self, done: int, violations: int = 0) -> None:
        now_s = time.monotonic()
        if now_s - self._shown_s < self._period_s:
            return
        self._shown_s = now_s
        elapsed_s = now_s - self._begin_s
        rate = done / elapsed_s
        print(
            f"  {self._part}: {done:,} of {self._total:,}, {rate:,.0f}/s, {elapsed_s:.0f} s, {violations} violations",
            file=sys.stderr,
            flush=True,
        )


class Hang(BaseException):
    """Something took far longer than it may. Not an Exception, so that nothing under test can swallow it."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise Hang in the main thread when the time is up (I7: nothing waits without a deadline)."""

    def expire(_number: int, _frame: FrameType | None) -> None:
        raise Hang(f"no end after {seconds} s")

    previous = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
