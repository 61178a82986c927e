"""Start the agent's process, watch it, and leave nothing of it behind: no zombie, no descriptor, also in children."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from holdfast.agent.channel import Channel, channel_pair
from holdfast.agent.signals import JOB_SIGNALS

__all__ = ["AGENT", "AgentProcess", "start_process"]

AGENT = ("-m", "holdfast.agent")
_PACKAGES = ("holdfast", "msgspec", "blake3", "xxhash")  # all that the agent needs besides the standard library
# Of Python's own variables, those that say where things are; not those that warn, trace, or wait for a terminal.
_KEPT_VARIABLES = ("PYTHONHOME", "PYTHONPLATLIBDIR", "PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE", "PYTHONUTF8")
_MAX_TAIL_BYTES = 4096
_KILLED_S = 2.0
_PAUSE_S = 0.01


class AgentProcess:
    """A started agent, and our end of the socket to it."""

    def __init__(self, pid: int, channel: Channel, said: int) -> None:
        self.pid = pid
        self.channel = channel
        self.status: int | None = None
        """How it ended: an exit status, or a signal's number below zero; None where that is not known."""
        self._said = said
        self._reaped = False
        try:
            self._descriptor: int | None = os.pidfd_open(pid)
        except (OSError, AttributeError):
            self._descriptor = None  # before Linux 5.3

    @property
    def watched(self) -> list[int]:
        """What to poll for its end."""
        return [] if self._descriptor is None else [self._descriptor]

    def has_ended(self) -> bool:
        """Whether it is gone. Reaps it."""
        if not self._reaped:
            try:
                found, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self._reaped = True  # by someone who waits for any child, or ignores SIGCHLD
            else:
                if found:
                    self._reaped = True
                    self.status = os.waitstatus_to_exitcode(status)
        return self._reaped

    def end(self, grace_s: float) -> None:
        """See to it that it ends: by itself in time, or by force. One that hangs in the system is reaped later."""
        if not self._wait(grace_s):
            self.kill()
            if not self._wait(_KILLED_S):
                _reap_later(self.pid)
                self._reaped = True

    def kill(self) -> None:
        """SIGKILL."""
        if not self.has_ended():
            # Not reaped, so the number is still its own.
            os.kill(self.pid, signal.SIGKILL)

    def said(self) -> str:
        """The end of what it wrote to its standard error."""
        size = os.fstat(self._said).st_size
        tail = os.pread(self._said, _MAX_TAIL_BYTES, max(0, size - _MAX_TAIL_BYTES))
        return tail.decode("utf-8", "replace").strip()

    def close(self) -> None:
        """Close what is open to it."""
        with _forks_wait:
            _open.discard(self)
            self.channel.close()
            self._close_descriptors()

    def forget(self) -> None:
        """In a forked child of the training process: it must neither use the agent nor keep it waiting."""
        self.channel.forget()
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        os.close(self._said)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _wait(self, seconds: float) -> bool:
        deadline_s = time.monotonic() + seconds
        while not self.has_ended():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            if self._descriptor is None:
                time.sleep(_PAUSE_S)
            else:
                poller = select.poll()
                poller.register(self._descriptor, select.POLLIN)
                poller.poll(left_s * 1000)
        return True


def start_process(program: Sequence[str] = AGENT) -> AgentProcess:
    """A new agent, in a session of its own. OSError where a process cannot be had.

    `program` are the interpreter's arguments before those of the agent.
    """
    if not sys.executable:
        raise FileNotFoundError("this Python does not know its own executable")
    with _forks_wait:
        with ExitStack() as undo:
            ours, theirs = channel_pair()
            undo.callback(ours.close)
            undo.callback(theirs.close)
            channel = Channel(ours)
            undo.callback(channel.close)
            # A file in memory: unlike a pipe, it never fills, and outlives both.
            said = os.memfd_create("holdfast-agent", os.MFD_CLOEXEC)
            undo.callback(os.close, said)
            pid = _spawn(program, theirs, said)
            undo.pop_all()
        theirs.close()
        process = AgentProcess(pid, channel, said)
        _open.add(process)
    return process


def _spawn(program: Sequence[str], end: socket.socket, said: int) -> int:
    # -S, -P: nothing of the user's environment runs in it or takes the place of a module.
    command = [sys.executable, "-S", "-P", *program, str(end.fileno()), str(os.getpid())]
    with _signals_blocked():
        process = subprocess.Popen(  # noqa: S603  our own interpreter and module
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            pass_fds=(end.fileno(),),
            start_new_session=True,
            cwd="/",
            env=_environment(),
        )
    process.returncode = 0  # reaped by us; the object must not wait for it, nor warn when it goes
    return process.pid


def _environment() -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON") or name in _KEPT_VARIABLES
    }
    return {**kept, "PYTHONPATH": os.pathsep.join(_package_roots())}


def _package_roots() -> list[str]:
    """Where this process found what the agent needs; nothing else of its path may stand in a module's way."""
    found = (find_spec(name) for name in _PACKAGES)
    roots = (Path(spec.origin).absolute().parents[1] for spec in found if spec is not None and spec.origin)
    return list(dict.fromkeys(map(str, roots)))


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """A child inherits what this thread blocks, so that no signal to the job ends it before it ignores them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, JOB_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _reap_later(pid: int) -> None:
    """A killed process that waits for a dead disk ends when the disk answers; it does nothing more in between."""

    def reap() -> None:
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:
            pass

    try:
        threading.Thread(target=reap, name="holdfast-reap", daemon=True).start()
    except RuntimeError:
        pass  # the limit of threads; the system reaps it when this process has ended


# Between the making of a socket and its entry here, no other thread can fork a child that would inherit it unknown.
_forks_wait = threading.RLock()
_open: set[AgentProcess] = set()


def _forget_all() -> None:
    for process in list(_open):
        process.forget()
    _open.clear()
    _forks_wait.release()


os.register_at_fork(before=_forks_wait.acquire, after_in_parent=_forks_wait.release, after_in_child=_forget_all)
