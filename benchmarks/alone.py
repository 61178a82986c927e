"""One call in a process of its own: a program that has nothing else in it, as a user's."""

import ctypes
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

__all__ = ["alone"]

_T = TypeVar("_T")
_Arguments = TypeVarTuple("_Arguments")
_DEADLINE_S = 1800.0  # many times what a contender takes, also on a slow disk
_PR_SET_PDEATHSIG = 1


def alone(function: Callable[[*_Arguments], _T], *arguments: *_Arguments, deadline_s: float = _DEADLINE_S) -> _T:
    """What the function returns in a fresh interpreter, which has imported its module and those of the arguments.

    Function, arguments and result are pickled. When it fails, or is not back in time, that is a RuntimeError with
    all that it printed. The process has ended when this returns or raises, and ends if this one is killed.
    """
    task = pickle.dumps((function, arguments))
    # A file: a pipe would stay open for as long as a process that a peer has started.
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            process_group=0,
        ) as process,
    ):
        failure = ""
        try:
            answer, _ = process.communicate(task, timeout=deadline_s)
            if process.returncode or not answer:
                failure = f"ended with status {process.returncode}"
        except subprocess.TimeoutExpired:
            failure = f"did not end within {deadline_s:g} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        if failure:
            said.seek(0)
            called = f"{function.__qualname__}{arguments}"
            raise RuntimeError(f"{called}, in a process of its own, {failure}:\n{said.read().decode(errors='replace')}")
    result: _T = pickle.loads(answer)
    return result


def _answer() -> None:
    # Ctrl-C and the like reach only the parent, which is in another group.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    answers = os.dup(1)
    os.dup2(2, 1)  # what peers print, and the processes that they start
    function: Callable[..., Any]
    function, arguments = pickle.load(sys.stdin.buffer)
    answer = pickle.dumps(function(*arguments))
    with open(answers, "wb") as pipe:
        pipe.write(answer)


if __name__ == "__main__":
    _answer()
