"""Ctrl-C and other signals, between lines that belong together: noted, and raised when these are done.

Python runs a program's signal handlers in its main thread, between any two instructions. One that raises would leave
half of what is being done undone; one that saves would save in the middle of a save.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

__all__ = [
    "call_or_note",
    "interrupts_are_noted",
    "interrupts_deferred",
    "interrupts_let_through",
    "not_deferred",
]

# The first is the one that raises: it is the first to be deferred, and the last to be let through again. That of
# children does so in programs with loaders of torch: one whose worker was killed raises wherever the program is. Left
# out are faults of the program itself, which cannot wait, and those of real time, which hardly anybody uses.
_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""By these somebody wants something."""
_OTHERS = (
    signal.SIGCHLD,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGXCPU,
    signal.SIGXFSZ,
    signal.SIGQUIT,
    signal.SIGPWR,
    signal.SIGIO,
    signal.SIGURG,
    signal.SIGWINCH,
    signal.SIGCONT,
    signal.SIGTSTP,
)
"""Some of them come again and again: once is enough."""
_NUMBERS = (*_ASKING, *_OTHERS)

_handlers: dict[int, Any] = {}
"""The program's own, while they are deferred."""
_noted: list[int] = []
_calls: list[Callable[[], object]] = []
"""Of the program's handlers, by one that is not deferred itself."""
_exempt: list[Any] = []
_is_deferred = False


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """What comes meanwhile is raised at the end. Does nothing outside of the main thread, or inside another one."""
    if _is_deferred or threading.current_thread() is not threading.main_thread():
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
    if not _is_deferred or threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        _let_through()
        yield
    finally:
        _defer()


def interrupts_are_noted() -> bool:
    """Whether something came that waits to be raised, and by which somebody may ask not to wait any more."""
    return bool(_calls) or any(number in _ASKING for number in _noted)


def not_deferred(handler: Callable[[int, FrameType | None], object]) -> None:
    """That one only takes note, and is to do so at once; what it calls of the program goes through `call_or_note`."""
    _exempt.append(handler)


def call_or_note(call: Callable[[], object]) -> None:
    """Now, or when interrupts are let through again. In a handler, so in the main thread."""
    if _is_deferred:
        _calls.append(call)
    else:
        call()


def _defer() -> None:
    global _is_deferred
    _is_deferred = True
    for number in _NUMBERS:
        handler = signal.getsignal(number)
        if callable(handler) and handler is not _note and not any(handler is ours for ours in _exempt):
            _handlers[number] = handler
            signal.signal(number, _note)


def _let_through() -> None:
    global _is_deferred
    try:
        # Each, also where a signal comes in between, whose handler is back already, and raises.
        _call_all([partial(_put_back, number) for number in reversed(_NUMBERS)])
    finally:
        _is_deferred = False
        numbers, _noted[:] = list(_noted), []
        calls, _calls[:] = list(_calls), []
        _call_all([*calls, *(partial(signal.raise_signal, number) for number in numbers)])


def _put_back(number: int) -> None:
    handler = _handlers.pop(number, None)
    if handler is not None:
        signal.signal(number, handler)


def _call_all(calls: list[Callable[[], object]]) -> None:
    """Each, also where one before it raises."""
    if calls:
        try:
            calls[0]()
        finally:
            _call_all(calls[1:])


def _note(number: int, _: FrameType | None) -> None:
    if number in _ASKING or number not in _noted:
        _noted.append(number)


def _forget_in_child() -> None:
    # The thread that deferred them is not in the child.
    global _is_deferred
    _is_deferred = False
    _noted.clear()
    _calls.clear()
    while _handlers:
        signal.signal(*_handlers.popitem())


os.register_at_fork(after_in_child=_forget_in_child)
