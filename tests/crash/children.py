"""Forked children that tell their parent, line by line, what they know: it survives their death."""

import os
import select
import signal
import time
import traceback
from collections.abc import Callable

from tests.crash.subject import quiet

__all__ = ["Tell", "listen", "start"]

_DEADLINE_S = 30.0

Tell = Callable[[str], None]


def start(live: Callable[[Tell], None]) -> tuple[int, int]:
    """Run it in a child; its pid and a descriptor for `listen`. An exception in the child becomes a "problem" line."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading

    def tell(line: str) -> None:
        os.write(writing, line.replace("\n", " ").encode() + b"\n")

    try:
        os.close(reading)
        with quiet():
            live(tell)
        tell("end")
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        tell(f"problem {type(error).__name__}: {error} at {where.filename}:{where.lineno}")
    finally:
        os._exit(0)


def listen(child: int, told: int, *, deadline_s: float = _DEADLINE_S) -> list[str]:
    """Everything that the child told until it ended; a child that does not end is ended, and that is a problem."""
    received = b""
    until_s = time.monotonic() + deadline_s
    while select.select([told], [], [], max(0.0, until_s - time.monotonic()))[0]:
        data = os.read(told, 65536)
        if not data:
            break
        received += data
    else:
        os.kill(child, signal.SIGKILL)
        received += f"problem hung for {deadline_s} s\n".encode()
    os.close(told)
    os.waitpid(child, 0)
    return received.decode().splitlines()
