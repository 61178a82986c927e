"""A process with all its descendants: going on, ending, and the files that they write."""

import contextlib
import os
import signal

from holdfast.engine.process_tree import descendants, read_processes

__all__ = ["child_of", "continue_tree", "has_ended", "kill_tree", "stamp_of", "tree_of", "written_files"]

_ACCESS = 0o3


def tree_of(pid: int) -> list[int]:
    """The process and its descendants, itself first."""
    return [pid, *sorted(descendants(read_processes(), pid))]


def child_of(pid: int) -> int | None:
    """The first that it has started, and that is alive."""
    processes = read_processes()
    return next((one for one, other in processes.items() if other.parent == pid and not other.has_ended), None)


def has_ended(pid: int) -> bool:
    """Whether it is gone, or only waits to be reaped."""
    process = read_processes().get(pid)
    return process is None or process.has_ended


def stamp_of(pid: int) -> str:
    """The process and when it was started, which no other of its number shares; empty where it has gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name of the program, in parentheses, may hold anything: the fields are counted after it.
            return f"{pid} {int(file.read().rpartition(b')')[2].split()[19])}"
    except (OSError, ValueError, IndexError):
        return ""


def continue_tree(pid: int) -> None:
    """Let all of them go on."""
    _signal_all(pid, signal.SIGCONT)


def kill_tree(pid: int) -> None:
    """End all of them at once, the root last: it is the one that is waited for."""
    _signal_all(pid, signal.SIGKILL)


def written_files(pid: int, folder: str) -> list[str]:
    """The ordinary files of the folder that one of them has open to write, by their names in it."""
    root = os.path.realpath(folder)
    found: dict[str, None] = {}
    for one in tree_of(pid):
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(f"/proc/{one}/fd"):
                with contextlib.suppress(OSError, ValueError):
                    path = os.readlink(f"/proc/{one}/fd/{descriptor}")
                    if _is_written(one, descriptor) and path.startswith(f"{root}/") and os.path.isfile(path):
                        found[os.path.relpath(path, root)] = None
    return list(found)


def _is_written(pid: int, descriptor: str) -> bool:
    with open(f"/proc/{pid}/fdinfo/{descriptor}", encoding="ascii") as file:
        flags = next(line for line in file if line.startswith("flags:"))
    return int(flags.split()[1], 8) & _ACCESS != os.O_RDONLY


def _signal_all(pid: int, number: signal.Signals) -> None:
    for one in reversed(tree_of(pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, number)
