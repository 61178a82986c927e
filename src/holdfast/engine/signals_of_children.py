"""What forked processes make of the signals that their parent hears."""

import signal
import sys
from types import FrameType
from typing import Any

__all__ = ["interrupt_child", "put_back_in_child"]


def put_back_in_child(number: int, before: Any) -> None:
    """Schedulers signal all processes of a job: a loader's worker must not die of what its parent is to hear.

    Not by SIG_IGN, which a program that the child executes, or a Checkpointer that it makes, would take for meant.
    """
    if before is signal.SIG_DFL and number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, _ignore)
        signal.siginterrupt(number, False)  # noqa: FBT003  libraries go on waiting, as they would if it were ignored
    elif before is signal.default_int_handler:
        signal.signal(number, interrupt_child)
    else:
        signal.signal(number, before)


def interrupt_child(number: int, frame: FrameType | None) -> None:
    """Ctrl-C comes to all processes of a terminal. A worker is ended by its parent, who saves first."""
    processes = sys.modules.get("multiprocessing.process")
    if processes is None or not processes.current_process().daemon:
        signal.default_int_handler(number, frame)


def _ignore(number: int, frame: FrameType | None) -> None:
    del number, frame
