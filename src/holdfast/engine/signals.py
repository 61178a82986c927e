"""The signals that ask a program to save or to stop: who hears them, and how soon.

Python runs a handler between two instructions of the main thread, which may be in a library for an hour. So the handler
is not what is waited for: the number of every signal that comes is written to a pipe at once, by the interpreter
itself, and a thread that reads it tells whoever listens. The handler does the same when it runs, for programs that have
taken that pipe away, and then calls what was installed before.
"""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable
from functools import partial
from types import FrameType
from typing import Any, Protocol

from holdfast.core.interrupts import call_or_note, not_deferred
from holdfast.engine.signal_tally import Tally
from holdfast.engine.signals_of_children import interrupt_child, put_back_in_child

__all__ = ["Listener", "Signals", "listen"]

_log = logging.getLogger("holdfast")

_FIRST = 0
"""Not the number of any signal: in the pipe, says that the handler was the first to know of the one that follows."""
_READ_BYTES = 512


class Listener(Protocol):
    """Somebody who wants to know of signals."""

    def takes(self, number: int) -> bool:
        """Whether it does something about that one now; if nobody does, the signal does what it did before."""

    def stops(self, number: int) -> bool:
        """Whether it ends the program because of that one."""

    def hear(self, number: int) -> None:
        """The signal came. May be called in a handler: nothing is waited for here, and nothing said."""

    def heard(self, number: int) -> None:
        """Right after that, in a thread of its own, in which things may be said; once for several of a kind."""


class Signals:
    """Of one listener. Nothing happens outside of the main thread, which alone may install handlers."""

    def __init__(self, numbers: Iterable[int], listener: Listener) -> None:
        self._numbers = tuple(numbers)
        self.listener = listener
        self.is_listening = False

    def start(self) -> bool:
        """Whether it listens from now on."""
        if self._numbers and threading.current_thread() is threading.main_thread():
            _station.add(self)
            self.is_listening = True
        return self.is_listening

    def install(self) -> None:
        """Once more: somebody may have put other handlers in their place."""
        if self.is_listening and threading.current_thread() is threading.main_thread():
            _station.install(self._numbers)

    def join(self) -> None:
        """Hear what others have handlers for; installs none, and so may be called by any thread."""
        _station.join(self)
        self.is_listening = True

    def silence(self) -> None:
        """For good: the process is about to end."""
        _station.silence(self._numbers)

    def close(self) -> None:
        """Listen no more."""
        if self.is_listening:
            self.is_listening = False
            _station.remove(self)

    @property
    def numbers(self) -> tuple[int, ...]:
        return self._numbers


def listen(numbers: Iterable[int], listener: Listener) -> Signals:
    """One that has started, if it could."""
    signals = Signals(numbers, listener)
    signals.start()
    return signals


class _Station:
    """One per process."""

    def __init__(self) -> None:
        self._masks = threading.local()
        self._reset()

    def _reset(self) -> None:
        self.members: tuple[Signals, ...] = ()
        """Replaced as a whole: a handler may come between any two instructions."""
        self._before: dict[int, list[Any]] = {}
        """What was there, and what was put over ours since, and has ours over it now."""
        self._depths: dict[int, int] = {}
        """How many of these call each other at the moment."""
        self._tallies: dict[int, Tally] = {}
        self._pipe: tuple[int, int] | None = None
        self._fd_before = -1
        self._watcher: threading.Thread | None = None

    def add(self, member: Signals) -> None:
        if self._pipe is None:
            self._open()
        self.join(member)
        self.install(member.numbers)

    def join(self, member: Signals) -> None:
        self.members = (*self.members, member)

    def install(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            current = signal.getsignal(number)
            # What is ignored stays so: `nohup` and shells in the background mean it. None is not Python's at all.
            if current in (signal.SIG_IGN, None) or current is _on_signal:
                continue
            self._before.setdefault(number, []).append(current)
            self._tallies.setdefault(number, Tally())
            signal.signal(number, _on_signal)

    def remove(self, member: Signals) -> None:
        self.members = tuple(other for other in self.members if other is not member)
        if self.members or threading.current_thread() is not threading.main_thread():
            return  # without members, the handler does what the one before it did
        for number in list(self._before):
            if signal.getsignal(number) is _on_signal:
                signal.signal(number, self._before[number].pop())
                # Those below are still called, by one of the program's that was put over ours and calls it.
                if not self._before[number]:
                    del self._before[number]
        self._close()

    def before(self, number: int) -> tuple[Any, bool]:
        """What it did before, and whether that is asked for by what was put over ours meanwhile, and calls it.

        Then it is what was there before that, or they would call each other for ever.
        """
        handlers, depth = self._before.get(number, []), self._depths.get(number, 0)
        is_below = 0 < depth < len(handlers)
        return handlers[-1 - depth * is_below] if handlers else signal.SIG_DFL, is_below

    def call(self, before: Callable[[int, FrameType | None], object], number: int, frame: FrameType | None) -> None:
        """It may call our handler in turn."""
        self._depths[number] = depth = self._depths.get(number, 0) + 1
        try:
            before(number, frame)
        finally:
            self._depths[number] = depth - 1

    def is_taken(self, number: int) -> bool:
        """Whether somebody does something about the one that the handler runs for, or does so already."""
        tally = self._tallies.get(number)
        return tally is not None and (tally.is_ahead_of_handler or bool(self.listeners(number)))

    def listeners(self, number: int) -> list[Listener]:
        """Those who do something about it now."""
        members = [member for member in self.members if member.is_listening and number in member.numbers]
        return [member.listener for member in members if member.listener.takes(number)]

    def stops(self, number: int) -> bool:
        """Whether somebody ends the program because of that one."""
        members = [member for member in self.members if member.is_listening and number in member.numbers]
        return any(member.listener.takes(number) and member.listener.stops(number) for member in members)

    def silence(self, numbers: Iterable[int]) -> None:
        """At the end of the process: what this interpreter handles does not outlive its last lines, this does."""
        for number in numbers:
            if signal.getsignal(number) is _on_signal:
                signal.signal(number, signal.SIG_IGN)

    def note_handled(self, number: int) -> None:
        """By the handler: the next line of the program is to find that it came."""
        if self._tallies[number].note_handled():
            self._hear(number)
            if self._pipe is not None:
                with contextlib.suppress(OSError):  # full: then the watcher has enough to wake up for
                    os.write(self._pipe[1], bytes([_FIRST, number]))

    def _is_heard(self, number: int) -> bool:
        """Not where the program has put a handler of its own in our place: if that calls ours, ours will tell."""
        return signal.getsignal(number) is _on_signal and bool(self.listeners(number))

    def _hear(self, number: int) -> None:
        for listener in self.listeners(number):
            listener.hear(number)

    def _watch(self, reader: int) -> None:
        is_marked = False
        while True:
            try:
                data = os.read(reader, _READ_BYTES)
            except OSError:
                return
            if not data or self._pipe is None or self._pipe[0] != reader:
                os.close(reader)
                return
            for number in data:
                if number == _FIRST:
                    is_marked = True
                    continue
                tally = self._tallies.get(number)
                if tally is not None and is_marked:
                    tally.note_mark()
                elif tally is not None and self._is_heard(number) and tally.note_written():
                    self._hear(number)
                if not is_marked:
                    self._pass_on(number)
                is_marked = False
            for number in list(self._tallies):
                self._tell(number)

    def _tell(self, number: int) -> None:
        tally = self._tallies.get(number)
        if tally is None or tally.count == tally.told:
            return  # None: closed meanwhile
        tally.told = tally.count
        for listener in self.listeners(number):
            try:
                listener.heard(number)
            except Exception as error:  # noqa: BLE001  the others are to hear it too (I7)
                _log.warning("%s was heard, but not told: %s", signal.Signals(number).name, error)

    def _pass_on(self, number: int) -> None:
        """To an event loop, say, whose pipe this was before."""
        if self._fd_before >= 0:
            with contextlib.suppress(OSError):
                os.write(self._fd_before, bytes([number]))

    def _open(self) -> None:
        try:
            reader, writer = os.pipe()
        except OSError:  # no descriptors left: the handler has to do
            return
        os.set_blocking(writer, False)
        self._pipe = reader, writer
        self._fd_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._watcher = threading.Thread(target=self._watch, args=(reader,), name="holdfast-signals", daemon=True)
        try:
            self._watcher.start()
        except RuntimeError:  # no more threads: the handler has to do
            self._watcher = None

    def _close(self) -> None:
        if self._pipe is None:
            return
        (reader, writer), self._pipe = self._pipe, None
        current = signal.set_wakeup_fd(-1)
        # What somebody else has put there meanwhile is theirs, and stays.
        back = self._fd_before if current == writer else current
        if back >= 0:
            with contextlib.suppress(ValueError, OSError):
                signal.set_wakeup_fd(back, warn_on_full_buffer=False)
        # The watcher, if there is one, wakes up at the end of the pipe, and closes its own side.
        if self._watcher is None:
            os.close(reader)
        os.close(writer)
        self._watcher = None
        self._tallies = {}

    def hold(self) -> None:
        """Before a fork: a signal that came to the child before it forgets would be written to the parent's pipe."""
        if self._pipe is not None:
            # Of this thread: another one may be about to fork, too, and a child that is deaf could not be ended.
            self._masks.mask = signal.pthread_sigmask(signal.SIG_BLOCK, list(self._before))

    def let_go(self) -> None:
        """After it, in the parent."""
        mask: set[int | signal.Signals] | None = getattr(self._masks, "mask", None)
        self._masks.mask = None
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def forget(self) -> None:
        """After it, in the child: it is nobody's, and hears nothing."""
        if self._pipe is not None:
            with contextlib.suppress(ValueError, OSError):
                signal.set_wakeup_fd(-1)
                for number, handlers in self._before.items():
                    if signal.getsignal(number) is _on_signal:
                        put_back_in_child(number, handlers[-1])
            for descriptor in self._pipe:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._reset()
        self.let_go()


def _on_signal(number: int, frame: FrameType | None) -> None:
    before, is_below = _station.before(number)
    is_taken = _station.is_taken(number)
    if is_taken and not is_below:
        _station.note_handled(number)
    if callable(before) and not (is_taken and _only_interrupts(before)):
        call_or_note(lambda: _call_before(before, number, frame))
    elif before is signal.SIG_DFL and not is_taken:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


def _only_interrupts(handler: Any) -> bool:
    """KeyboardInterrupt, and what asyncio makes of it, is what Python does where nobody else cares; somebody does."""
    called = handler.func if isinstance(handler, partial) else handler
    return (
        called in (signal.default_int_handler, interrupt_child)
        or getattr(called, "__module__", None) == "asyncio.runners"
    )


def _call_before(before: Callable[[int, FrameType | None], object], number: int, frame: FrameType | None) -> None:
    """It may not end the program at once: that is done at the end of the step, when all is saved."""
    try:
        _station.call(before, number, frame)
    except (SystemExit, KeyboardInterrupt):
        if not _station.stops(number):
            raise


_station = _Station()
not_deferred(_on_signal)
os.register_at_fork(before=_station.hold, after_in_parent=_station.let_go, after_in_child=_station.forget)
