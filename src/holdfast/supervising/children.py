"""Starts the program, reaps all that ends below this process, and keeps account of what is left."""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from holdfast.engine.process_tree import Process, descendants, read_arguments, read_processes
from holdfast.supervising import launcher
from holdfast.supervising.guard import Guard

__all__ = ["Children"]

_PR_SET_CHILD_SUBREAPER = 36
_AGENT = "holdfast.agent"


class Children:
    """Of this process. One of them is the program; what that leaves behind becomes ours, too."""

    def __init__(self, mask_of_program: Sequence[int]) -> None:
        self._mask = ",".join(map(str, mask_of_program))
        # `exec holdfast run` in a shell: these are the shell's own.
        processes = read_processes()
        self._spared = {pid for pid, process in processes.items() if process.parent == os.getpid()}
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._answers = -1
        self._guard: Guard | None = None
        self.pid = 0
        """Of the program; 0 where there is none."""

    @contextmanager
    def guarded(self, folder: str) -> Iterator[None]:
        """What happens in there has a guard, should this process be killed; its beats are below the folder."""
        self._guard = Guard(folder)
        self._spared.add(self._guard.pid)
        try:
            yield
        finally:
            self._guard.close()

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the program; OSError where no process can be had."""
        self._answers, theirs = os.pipe()
        os.set_blocking(self._answers, False)
        os.set_inheritable(theirs, True)  # noqa: FBT003
        locale = launcher.FOREIGN if _has_own_locale() else launcher.KEPT
        arguments = [str(os.getpid()), str(theirs), locale, self._mask, *command]
        try:
            # Whatever else this process has inherited, the program inherits, too: descriptors of a shell or of make.
            self.pid = os.posix_spawn(
                sys.executable, [sys.executable, "-I", "-S", launcher.__file__, *arguments], environment
            )
        except OSError:
            os.close(self._answers)
            raise
        finally:
            os.close(theirs)
        if self._guard is not None:
            self._guard.tell(self.pid)

    def reap(self) -> int | None:
        """Take note of all that has ended; the status of the program, once: 128 + n after signal n."""
        found = None
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self.pid:
                    code = os.waitstatus_to_exitcode(status)
                    found = code if code >= 0 else 128 - code
        if found is not None:
            self.pid = 0
        return found

    def take_error(self) -> OSError | None:
        """Why the program that has ended could not even begin; None where it did."""
        try:
            said = os.read(self._answers, 16)
        except BlockingIOError:  # it was started by what it started, which still holds the other end
            said = b""
        finally:
            os.close(self._answers)
        return OSError(int(said), os.strerror(int(said))) if said else None

    def family(self) -> dict[int, Process]:
        """The program and all that came from it, without agents of holdfast: those end when their work is done."""
        found = self._below()
        return {pid: process for pid, process in found.items() if not _is_agent(pid)}

    def agents(self) -> list[int]:
        """Those that still make something durable."""
        return [pid for pid in self._below() if _is_agent(pid)]

    def send_to_all(self, number: signal.Signals) -> int:
        """Send it to the whole family; to how many."""
        sent = 0
        for pid in self.family():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
                sent += 1
        return sent

    def _below(self) -> dict[int, Process]:
        processes = read_processes()
        found = descendants(processes, os.getpid(), without=self._spared)
        return {pid: processes[pid] for pid in found if not processes[pid].has_ended}


def _is_agent(pid: int) -> bool:
    arguments = read_arguments(pid)
    return "-m" in arguments and arguments[arguments.index("-m") + 1 :][:1] == [_AGENT]


def _has_own_locale() -> bool:
    """Whether this Python has set LC_CTYPE, as it does where there is no locale at all."""
    try:
        with open("/proc/self/environ", "rb") as file:
            return "LC_CTYPE" in os.environ and not any(
                line.startswith(b"LC_CTYPE=") for line in file.read().split(b"\0")
            )
    except OSError:
        return False
