"""Ctrl-C and other signals, between lines that belong together: noted, and raised when these are done.

Python runs a program's signal handlers in its main thread, between any two instructions. One that raises would leave
half of what is being done undone; one that saves would save in the middle of a save.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["interrupts_are_noted", "interrupts_deferred", "interrupts_let_through"]

# The first is the one that raises: it is the first to be deferred, and the last to be let through again.
_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

_handlers: dict[int, Any] = {}
"""The program's own, while they are deferred."""
_noted: list[int] = []


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """What comes meanwhile is raised at the end. Does nothing outside of the main thread, or inside another one."""
    if _handlers or threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        _defer()
        yield
    finally:
        _let_through()


@contextmanager
def interrupts_let_through() -> Iterator[None]:
    """Around a wait inside of `interrupts_deferred`, at a point at which nothing is half done."""
    if not _handlers or threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        _let_through()
        yield
    finally:
        _defer()


def interrupts_are_noted() -> bool:
    """Whether something came that waits to be raised."""
    return bool(_noted)


def _defer() -> None:
    for number in _NUMBERS:
        handler = signal.getsignal(number)
        if callable(handler) and handler is not _note:
            _handlers[number] = handler
            signal.signal(number, _note)


def _let_through() -> None:
    for number in reversed(_NUMBERS):
        handler = _handlers.pop(number, None)
        if handler is not None:
            signal.signal(number, handler)
    numbers, _noted[:] = list(_noted), []
    _raise_all(numbers)


def _raise_all(numbers: list[int]) -> None:
    """Each to its handler, also where one before it raises."""
    if numbers:
        try:
            signal.raise_signal(numbers[0])
        finally:
            _raise_all(numbers[1:])


def _note(number: int, _: FrameType | None) -> None:
    _noted.append(number)


def _forget_in_child() -> None:
    # The thread that deferred them is not in the child.
    _noted.clear()
    while _handlers:
        signal.signal(*_handlers.popitem())


os.register_at_fork(after_in_child=_forget_in_child)
