"""Time as an argument: code that needs it takes a Clock, tests give a fake one."""

import time

from holdfast.core.light_typing import Protocol

__all__ = ["Clock", "SystemClock", "utc_text"]


class Clock(Protocol):
    """Wall time for names and documents, monotonic time for waiting."""

    def utc_s(self) -> float: ...

    def monotonic_s(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's clocks."""

    def utc_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def utc_text(seconds: float) -> str:
    """`2026-11-15T18:42:01Z`, the form used in manifests, marks and the journal."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
