"""Ctrl-C that is raised inside of what is tested, and nowhere else."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["interrupted_only_in"]


@contextmanager
def interrupted_only_in(
    *functions: Callable[..., object], heard: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """SIGINT calls `heard`, and is raised as KeyboardInterrupt where one of the functions runs.

    One that comes later than it was sent, on a busy machine, would else end the test, and all tests of its process.
    """
    codes = {function.__code__ for function in functions}

    def handle(number: int, frame: FrameType | None) -> None:
        heard()
        while frame is not None and frame.f_code not in codes:
            frame = frame.f_back
        if frame is not None:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
