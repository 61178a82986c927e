"""The processes of a proof: those that a start leaves behind are found, ended and reaped, agents included."""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.engine.process_tree import Process, descendants, read_processes, read_variables

__all__ = ["adopting", "end_all", "end_group", "end_marked"]

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_PAUSE_S = 0.01
_KILLED_S = 5.0


@contextmanager
def adopting() -> Iterator[set[int]]:
    """What the program leaves behind becomes a child of this process. The children that there are already."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int(0)
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield set(_children())
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def end_group(group: int) -> None:
    """Kill what is left of a process group. Its leader is not reaped yet, so the number is still its own."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def end_all(marker: bytes, *, grace_s: float, spared: set[int]) -> None:
    """Wait for the processes whose environment has the marker, kill those that stay, reap what became ours.

    An agent ends by itself when it has written what it was given. Others may have dropped their environment: all that
    came from this process ends, but for the children that were there before.
    """
    deadline_s = time.monotonic() + grace_s
    while _marked(marker) and time.monotonic() < deadline_s:
        time.sleep(_PAUSE_S)
    _kill(lambda: {*_marked(marker), *_descendants(spared)}, spared)


def end_marked(marker: bytes) -> None:
    """Kill the processes whose environment has the marker: those of a proof that was killed."""
    _kill(lambda: set(_marked(marker)), None)


def _kill(find: Callable[[], set[int]], spared: set[int] | None) -> None:
    deadline_s = time.monotonic() + _KILLED_S
    while (left := find()) and time.monotonic() < deadline_s:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        if spared is not None:
            _reap(spared)
        time.sleep(_PAUSE_S)
    if spared is not None:
        _reap(spared)


def _marked(marker: bytes) -> list[int]:
    # Of one that has ended and is not reaped, nothing is to be read.
    return [pid for pid in read_processes() if marker in read_variables(pid) and pid != os.getpid()]


def _reap(spared: set[int]) -> None:
    for pid, process in _children().items():
        if process.has_ended and pid not in spared:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass


def _descendants(spared: set[int]) -> set[int]:
    """Of this process, without those spared and what came from them; those that have ended are none any more."""
    processes = read_processes()
    return {pid for pid in descendants(processes, os.getpid(), without=spared) if not processes[pid].has_ended}


def _children() -> dict[int, Process]:
    return {pid: process for pid, process in read_processes().items() if process.parent == os.getpid()}
