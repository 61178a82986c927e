"""What this process has open, for tests that see to it that nothing stays open."""

import os
import time

__all__ = ["open_descriptors", "wait_for_no_more"]

_DEADLINE_S = 60


def open_descriptors() -> set[str]:
    """But for what sensors look at for a moment: threads of other tests may still do so."""
    return {name for name in os.listdir("/proc/self/fd") if not _target(name).startswith(("/proc/", "/sys/"))}


def wait_for_no_more(than: set[str]) -> None:
    """Until no more are open than those: threads that hear signals, of this test and of others, close their own."""
    give_up_s = time.monotonic() + _DEADLINE_S
    while len(found := open_descriptors()) > len(than):
        assert time.monotonic() < give_up_s, {name: _target(name) for name in found - than}
        time.sleep(0.01)


def _target(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return "/proc/self/fd"  # that of the listing itself
