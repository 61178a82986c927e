"""The processes of this machine, as /proc shows them: who came from whom, and what each does with signals."""

import os
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Process", "descendants", "read_arguments", "read_processes", "read_signals", "read_variables"]

_ENDED = ("Z", "X")


class Process(NamedTuple):
    """One of them, at one moment."""

    parent: int
    state: str
    name: str
    """Its first fifteen bytes."""
    group: int

    @property
    def has_ended(self) -> bool:
        """Whether it only waits to be reaped."""
        return self.state in _ENDED


def read_processes() -> dict[int, Process]:
    """All of them; empty where there is no /proc."""
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return {}
    found = {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                head, _, tail = file.read().rpartition(")")
            state, parent, group = tail.split()[:3]
            found[pid] = Process(int(parent), state, head.partition("(")[2], int(group))
        except (OSError, ValueError):
            continue  # it has gone
    return found


def descendants(processes: Mapping[int, Process], pid: int, *, without: set[int] | None = None) -> set[int]:
    """All that came from the process, the ended included, but for those given and what came from them."""
    left_out = without or set()
    found, new = set[int](), {pid}
    while new:
        new = {one for one, process in processes.items() if process.parent in new and one not in left_out} - found
        found |= new
    return found


def read_signals(pid: int) -> dict[str, int]:
    """The bits of its signals, bit n - 1 for signal n: `caught`, `ignored`, `blocked`; empty where it has gone."""
    names = {"SigCgt": "caught", "SigIgn": "ignored", "SigBlk": "blocked"}
    found = {}
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key in names:
                    found[names[key]] = int(value, 16)
    except (OSError, ValueError):
        return {}
    return found


def read_arguments(pid: int) -> list[str]:
    """Its command line; empty where it has gone."""
    return [word.decode(errors="replace") for word in _read_words(pid, "cmdline")]


def read_variables(pid: int) -> list[bytes]:
    """The environment that it was started with, `NAME=value`; empty where it has gone, or is another user's."""
    return _read_words(pid, "environ")


def _read_words(pid: int, name: str) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read().split(b"\0")[:-1]
    except OSError:
        return []
