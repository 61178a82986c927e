"""A process beside the supervisor that tells the program to end, should somebody kill the supervisor.

The kernel tells the child that the supervisor has started (see launcher.py), and no one behind it: a shell would die,
and the program in it go on alone. The guard reads a pipe whose other end the supervisor has, and no one else. Its
sudden end is that of the supervisor. It is run as a script, and imports nothing of holdfast before it is needed.
"""

import os
import sys
from contextlib import suppress

__all__ = ["Guard"]

_FAREWELL = b"farewell"
_NULL = os.devnull


class Guard:
    """The supervisor's side of it. Where no process can be had, there is none."""

    def __init__(self, folder: str) -> None:
        """`folder` is the one that holds the beats of all attempts."""
        reading, self._pipe = os.pipe()
        os.set_inheritable(reading, True)  # noqa: FBT003
        self.pid = 0
        arguments = [sys.executable, "-I", "-S", __file__, str(reading), folder]
        nothing = [(os.POSIX_SPAWN_OPEN, number, _NULL, os.O_RDWR, 0) for number in range(3)]
        with suppress(OSError):
            self.pid = os.posix_spawn(sys.executable, arguments, _environment(), file_actions=nothing, setsid=True)
        os.close(reading)

    def tell(self, child: int) -> None:
        """Which process the kernel will tell."""
        self._say(b"%d\n" % child)

    def close(self) -> None:
        """The supervisor ends by itself."""
        self._say(_FAREWELL)
        os.close(self._pipe)
        if self.pid:
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0)  # which has nothing left to do

    def _say(self, word: bytes) -> None:
        with suppress(OSError):  # it was killed itself
            os.write(self._pipe, word)


def _environment() -> dict[str, str]:
    """Only what Python needs to start: whoever looks for the processes of a job or a supervisor is not to find it."""
    return {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}


def _stand(pipe: int, folder: str) -> None:
    os.closerange(3, pipe)
    os.closerange(pipe + 1, 1 << 16)
    said = b""
    while part := os.read(pipe, 4096):
        said = (said + part)[-64:]
    if said.endswith(_FAREWELL):
        return
    lines = said.split()
    _tell_program(folder, told_already=int(lines[-1]) if lines else 0)


def _tell_program(folder: str, *, told_already: int) -> None:
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    import shutil
    import signal

    from holdfast.engine.beats import BEATS_VARIABLE, read_beats
    from holdfast.engine.process_tree import read_processes, read_variables
    from holdfast.supervising.arrivals import Arrival
    from holdfast.supervising.relaying import relay

    names: list[str] = []
    with suppress(OSError):  # somebody has cleared up temporary files
        names = os.listdir(folder)
    beating = [beat.pid for name in names for beat in read_beats(os.path.join(folder, name))]
    mark = f"{BEATS_VARIABLE}={folder}{os.sep}".encode()
    family = {
        pid: process
        for pid, process in read_processes().items()
        if pid != told_already and any(variable.startswith(mark) for variable in read_variables(pid))
    }
    if told_already not in beating:
        chosen = relay(Arrival(signal.SIGTERM, from_terminal=False, sender=0), family, beating, child=0)
        for pid in family if not chosen else ():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _stand(int(sys.argv[1]), sys.argv[2])
