"""Which processes a signal is meant for: the program, and not the shells and pipes around it."""

import os
import signal
from collections.abc import Collection, Mapping
from contextlib import suppress

from holdfast.engine.process_tree import Process, read_signals
from holdfast.supervising.arrivals import Arrival

__all__ = ["are_all_catching", "as_its_launcher_takes_it", "choose", "relay"]

_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "busybox", "fish", "tcsh", "csh"})
# Of these, srun itself kills its tasks at once by SIGKILL, or tells them nothing; it passes SIGUSR1 on.
_NOT_PASSED_ON_BY_SRUN = frozenset({signal.SIGTERM, signal.SIGHUP, signal.SIGINT})


def relay(arrival: Arrival, family: Mapping[int, Process], beating: Collection[int], *, child: int) -> list[int]:
    """Pass it on; the processes that it went to, or that had it already."""
    # Who blocks it reads it: another supervisor, such as tini or ourselves, which passes it on.
    catching = {pid for pid in family if any(_has(what, arrival.number, pid) for what in ("caught", "blocked"))}
    chosen = choose(family, beating, catching, child=child)
    for pid in chosen:
        if arrival.from_terminal and family[pid].group == os.getpgrp():
            continue  # the terminal has sent it to the whole group
        number = as_its_launcher_takes_it(arrival.number, family[pid].name)
        if pid in beating and number != signal.SIGQUIT and _would_kill(number, pid):
            number = signal.SIGTERM  # by which it saves; SIGHUP, for one, few programs catch
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    return chosen


def as_its_launcher_takes_it(number: signal.Signals, name: str) -> signal.Signals:
    """The signal that reaches the tasks of a launcher of that name, and lets them save."""
    return signal.SIGUSR1 if name == "srun" and number in _NOT_PASSED_ON_BY_SRUN else number


def are_all_catching(number: signal.Signals, family: Mapping[int, Process], beating: Collection[int]) -> bool:
    """Whether all that use holdfast still do something about it."""
    return all(_has("caught", number, pid) for pid in beating if pid in family)


def choose(
    family: Mapping[int, Process], beating: Collection[int], catching: Collection[int], *, child: int
) -> list[int]:
    """Those that use holdfast; else those that catch it; else the child.

    Of the catching ones: shells only where nothing else does, since a shell that waits for its program does nothing
    before that has ended; and none that came from another one, which tells its own (`srun`, `mpirun`, data loaders).
    """
    alive = [pid for pid in beating if pid in family]
    if alive:
        return sorted(alive)
    programs = {pid for pid in catching if family[pid].name not in _SHELLS}
    meant = programs or set(catching)
    topmost = sorted(pid for pid in meant if not _ancestors(pid, family) & meant)
    return topmost or ([child] if child in family else [])


def _would_kill(number: signal.Signals, pid: int) -> bool:
    """Whether it would end by this one, and has something else in mind for SIGTERM."""
    is_prepared = _has("caught", number, pid) or _has("ignored", number, pid)
    return not is_prepared and _has("caught", signal.SIGTERM, pid)


def _has(what: str, number: signal.Signals, pid: int) -> bool:
    return bool(read_signals(pid).get(what, 0) >> (number - 1) & 1)


def _ancestors(pid: int, family: Mapping[int, Process]) -> set[int]:
    found = set[int]()
    while (process := family.get(pid)) is not None and process.parent not in found:
        pid = process.parent
        found.add(pid)
    return found
