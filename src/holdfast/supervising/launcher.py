"""Becomes the program, after the kernel was told to end that with its supervisor.

Run as a script of its own between the two: `python -I -S launcher.py SUPERVISOR ANSWERS LOCALE MASK COMMAND...`. None
of this can be done in a child of a process with threads before it is another program. The descriptor ANSWERS is closed
when the command has begun; where that cannot be started, the system's error number is written to it.
"""

import ctypes
import os
import signal
import sys

__all__ = ["FOREIGN", "KEPT"]

KEPT = "kept"
FOREIGN = "foreign"
"""LC_CTYPE was set by Python itself, and not by the user."""
_PR_SET_PDEATHSIG = 1
_RESET = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)


def _launch(supervisor: int, answers: int, locale: str, mask: list[int], command: list[str]) -> None:
    os.set_inheritable(answers, False)  # noqa: FBT003
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != supervisor:
        os._exit(1)  # it had ended before it could be told
    # What this Python has changed for itself is not the program's; nor is it deaf because its supervisor's parent was.
    for number in (signal.SIGPIPE, signal.SIGXFSZ, *_RESET):
        signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if locale == FOREIGN:
        os.environ.pop("LC_CTYPE", None)
    # What came meanwhile comes now: a program that has not begun is ended by it.
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        os.execvp(command[0], command)  # noqa: S606  the user's own command
    except OSError as error:
        os.write(answers, str(error.errno).encode())
        os._exit(127 if isinstance(error, FileNotFoundError | NotADirectoryError) else 126)


if __name__ == "__main__":
    _launch(
        int(sys.argv[1]),
        int(sys.argv[2]),
        sys.argv[3],
        [int(number) for number in sys.argv[4].split(",") if number],
        sys.argv[5:],
    )
