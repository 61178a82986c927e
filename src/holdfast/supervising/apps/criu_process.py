"""Between a supervisor and a program under CRIU: starts it so that it can be dumped, or restores it and waits for it.

`python -m holdfast.supervising.apps.criu_process start OUTPUT PROGRAM ARGUMENT…` becomes the program;
`… restore CRIU IMAGES` restores what the images hold as its own child, relays signals to it, and ends as it ends.
"""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Sequence

__all__ = ["PID_NAME", "RESTORE_FAILED_STATUS", "RESTORE_LOG", "main"]

RESTORE_FAILED_STATUS = 79
"""Where CRIU could not bring the program back."""
PID_NAME = "pid"
RESTORE_LOG = "restore.log"
_NOT_FOUND_STATUS = 127
_RELAYED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
_DEADLINE_S = 600


def main(arguments: Sequence[str]) -> int:
    """The status to end with."""
    if arguments[0] == "start":
        return _start(arguments[1], arguments[2:])
    return _restore(arguments[1], arguments[2])


def _start(output: str, command: Sequence[str]) -> int:
    if os.getsid(0) != os.getpid():
        os.setsid()  # a session that others are in cannot be dumped
    if not stat.S_ISREG(os.fstat(0).st_mode):
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
    # The other end of a pipe and a terminal cannot be brought back; a file that the supervisor writes to, too, can, but
    # not as it was.
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # which this Python ignores, and the program would have inherited
    try:
        os.execvp(command[0], list(command))  # noqa: S606  the user's own command
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    return _NOT_FOUND_STATUS


def _restore(criu: str, images: str) -> int:
    if os.getpgrp() != os.getpid():
        # What is typed at the terminal is for the supervisor, which dumps the program: it must not die before.
        os.setpgid(0, 0)
    command = [criu, "restore", "--images-dir", images, "--log-file", RESTORE_LOG, "--pidfile", PID_NAME]
    # As our child and not CRIU's, which would end with status 0 whatever the program ends with.
    command += ["--shell-job", "--file-locks", "--restore-detached", "--restore-sibling"]
    held = signal.pthread_sigmask(signal.SIG_BLOCK, _RELAYED)
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=_DEADLINE_S, check=False)  # noqa: S603
        with open(os.path.join(images, PID_NAME), encoding="ascii") as file:
            pid = int(file.read())
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        os.write(2, f"{criu}: {error}\n".encode())
        return RESTORE_FAILED_STATUS
    if done.returncode != 0:
        return RESTORE_FAILED_STATUS
    for number in _RELAYED:
        signal.signal(number, lambda number, _frame: os.kill(pid, number))
    signal.pthread_sigmask(signal.SIG_SETMASK, held)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status)
    return os.WEXITSTATUS(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
