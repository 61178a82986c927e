"""The signals that come to the supervisor: blocked, and fetched one by one when there is time for them.

Unlike a handler, that tells who sent a signal, and loses none between looking for one and waiting for the next.
"""

import ctypes
import os
import select
import signal
import struct
import sys
from collections.abc import Collection
from typing import NamedTuple

__all__ = ["STOPS", "Arrival", "Arrivals"]

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""After these the program is not started again."""
# Ignored by `nohup`, and by shells for what they start in the background: that is meant.
_MAY_BE_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_OTHERS = (signal.SIGTSTP, signal.SIGCONT, signal.SIGCHLD, signal.SIGWINCH)
_SI_KERNEL = 0x80
# `struct signalfd_siginfo`: the signal, an error, why it was sent, by whom, and what nobody asks here.
_INFO, _INFO_BYTES = struct.Struct("=IiiI"), 128
_SET_BYTES = 128


class Arrival(NamedTuple):
    """One signal."""

    number: signal.Signals
    from_terminal: bool
    """Whether the terminal sent it, and so to all of the foreground."""
    sender: int
    """The process; 0 where that is not known."""


class Arrivals:
    """From here on signals wait until they are fetched; until the end of this process."""

    def __init__(self) -> None:
        self.ignored = [number for number in _MAY_BE_IGNORED if signal.getsignal(number) is signal.SIG_IGN]
        """Left alone: the program has inherited that, too."""
        self._fetched = {*(number for number in STOPS if number not in self.ignored), *_OTHERS}
        # Else the system reaps the children, and nobody learns of their status.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # A supervisor in the background may write to its terminal.
        self._descriptor = _open_signals(self._fetched)
        self._poller = select.poll()
        self._poller.register(self._descriptor, select.POLLIN)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {*self._fetched, signal.SIGTTOU})
        self.mask_of_program = sorted(int(number) for number in before if number not in {*STOPS, *_OTHERS})
        """What this process was started with; but a program that is to be stopped by signals must see them."""

    def fetch(self, timeout_s: float) -> Arrival | None:
        """The next one, waited for as long as that."""
        self._poller.poll(max(0.0, timeout_s) * 1000)
        try:
            number, _, code, sender = _INFO.unpack_from(os.read(self._descriptor, _INFO_BYTES))
        except BlockingIOError:
            return None
        return Arrival(signal.Signals(number), code == _SI_KERNEL, sender)

    def stop_ourselves(self) -> None:
        """As SIGTSTP would have, were it not blocked: until somebody says SIGCONT.

        Where there is nobody who could, the system does not stop us.
        """
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})


def _open_signals(numbers: Collection[int]) -> int:
    """A descriptor that these signals can be read from, once they are blocked.

    `signal.sigtimedwait` would do, but returns random bytes where SIGCONT comes when its time is just over.
    """
    bits = sum(1 << (number - 1) for number in numbers)
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.signalfd(-1, bits.to_bytes(_SET_BYTES, sys.byteorder), os.O_CLOEXEC | os.O_NONBLOCK)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "signalfd")
    return descriptor
