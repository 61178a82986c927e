"""Becomes the program under proof, after the kernel was told what that may write, and that it ends with the proof.

Run as a script of its own between the two: `python -I -S launcher.py PROVER ANSWERS LOCALE COMMAND...`. Nothing of
this can be done in a child of a process with threads before it is another program. What became of it is written to the
descriptor ANSWERS, which is closed when the command has begun: CONFINED or OPEN, and the system's error number where
the command cannot be started.
"""

import ctypes
import importlib.util
import json
import os
import signal
import sys
from typing import Any

__all__ = ["CONFINED", "KEPT", "OPEN"]

CONFINED = "confined"
OPEN = "open"
KEPT = "kept"
_PR_SET_PDEATHSIG = 1
_GUARDING = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "engine", "guarding.py")


def _guarding() -> Any:
    """By its file: `import holdfast` takes longer than all the rest."""
    spec = importlib.util.spec_from_file_location("_holdfast_guarding", _GUARDING)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _launch(prover: int, answers: int, locale: str, command: list[str]) -> None:
    os.set_inheritable(answers, False)  # noqa: FBT003
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != prover:
        os._exit(1)  # it had ended before it could be told
    with open(os.environ["HOLDFAST_PROVE"], "rb") as file:
        plan = json.load(file)
    is_confined = _guarding().Guard(plan["directory"], plan["trace"], plan["start"]).confine()
    os.write(answers, f"{CONFINED if is_confined else OPEN}\n".encode())
    # What this Python has changed for itself is not the program's.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    if locale != KEPT:
        os.environ.pop("LC_CTYPE", None)
    try:
        os.execvp(command[0], command)  # noqa: S606  the user's own command
    except OSError as error:
        os.write(answers, str(error.errno).encode())


if __name__ == "__main__":
    _launch(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
    os._exit(127)
