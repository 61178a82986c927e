"""The worker of luigi that a task runs under: its tasks end with it, none runs twice, and it may be asked to end."""

import contextlib
import ctypes
import multiprocessing
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.engine.holders import latest_holder
from holdfast.storage.posix import PosixStore

__all__ = ["end_forgotten", "ends_with_worker", "has_own_process", "phase_out_worker"]

_PR_SET_PDEATHSIG = 1
_PR_GET_PDEATHSIG = 2
_END_S = 60.0


def has_own_process() -> bool:
    """Whether this process is a task's, and not the worker's."""
    return multiprocessing.parent_process() is not None


@contextlib.contextmanager
def ends_with_worker() -> Iterator[None]:
    """In a task's own process: SIGTERM when the worker dies.

    Nobody would take the result of the task any more, and the scheduler gives it to another worker.
    """
    worker = multiprocessing.parent_process()
    if worker is None or worker.pid is None:
        yield
        return
    libc = ctypes.CDLL(None)
    before = ctypes.c_int(0)
    libc.prctl(_PR_GET_PDEATHSIG, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    try:
        if os.getppid() != worker.pid:  # it died before that
            signal.raise_signal(signal.SIGTERM)
        yield
    finally:
        libc.prctl(_PR_SET_PDEATHSIG, before.value, 0, 0, 0)


def end_forgotten(run: str) -> bool:
    """Kill the process that holds the run of this process's task, if it belongs to the same worker; whether it ended.

    Luigi may be told twice that a task was killed. The second time it takes the attempt that runs by then for the dead
    one, forgets it, and starts another: that one counts from then on.
    """
    store = PosixStore(run, readonly=True)
    try:
        holder = latest_holder(store)
    finally:
        store.close()
    if not has_own_process() or holder is None or holder.host != socket.gethostname():
        return False
    try:
        process = os.pidfd_open(holder.pid)
    except (OSError, OverflowError):  # there is none, or the file says nonsense
        return False
    try:
        if holder.pid == os.getpid() or _parent_of(holder.pid) != os.getppid():
            return False
        # If it could save, it could also tell luigi that it has failed, which would then forget this one.
        signal.pidfd_send_signal(process, signal.SIGKILL)
        ended = select.poll()
        ended.register(process, select.POLLIN)
        return bool(ended.poll(_END_S * 1000))
    except OSError:  # it is gone
        return True
    finally:
        os.close(process)


def phase_out_worker(shut_down: Callable[[int, None], object]) -> None:
    """Have the worker end when its running tasks have; by the signal that luigi has for it.

    `shut_down` is what the worker does at SIGUSR1.
    """
    worker = multiprocessing.parent_process()
    if worker is None:
        shut_down(signal.SIGUSR1, None)
    elif worker.pid is not None and os.getppid() == worker.pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGUSR1)


def _parent_of(pid: int) -> int:
    # The name, in parentheses, may hold anything.
    return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
