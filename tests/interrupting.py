"""Ctrl-C that is raised inside of what is tested, and nowhere else."""

import signal
import sys
import threading
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
    Nor is anything traced meanwhile: coverage's tracer in C keeps an exception of a handler now and then, and raises
    it much later, in whatever runs by then.
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
        with _untraced():
            yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _untraced() -> Iterator[None]:
    ours, others = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)  # type: ignore[arg-type]  # None is what there is without a tracer
    try:
        yield
    finally:
        threading.settrace(others)  # type: ignore[arg-type]
        sys.settrace(ours)
