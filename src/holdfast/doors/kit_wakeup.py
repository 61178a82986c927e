"""A signal that the main thread does not notice is sent to it once more.

Python runs a handler between two instructions of its main thread. What comes after the last one, right before that
thread begins to wait for a pipe or a queue, or what the system gives to another thread, is handled when that wait is
over: perhaps never. But the interpreter writes the number of every signal to a socket at once, which a thread reads
here. Those of a forked child come through the same socket, with its process number: they are not for this one.
"""

import contextlib
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable

__all__ = ["forget_wakeups", "wake_up"]

# A thread that can run its handler does so within that; one that computes in a library notices it no sooner by this.
_PATIENCE_S = 0.2
_READ_BYTES = 512
_SENDER = struct.Struct("3i")  # its process, user and group

_ends: list[tuple[socket.socket, int]] = []
"""Each with its inode: a program may close all descriptors, and then their numbers are others'."""


def wake_up(is_missed: Callable[[int], bool]) -> None:
    """From now on, what nobody has handled after a moment is sent to the main thread. To be called by that one.

    Where somebody else reads such numbers, an event loop for example, it is left to them; where it cannot be done, it
    is as without this.
    """
    if _ends or not hasattr(socket, "SO_PASSCRED"):
        return
    try:
        reader, writer = socket.socketpair()
    except OSError:  # no descriptors left
        return
    _ends.extend((end, os.fstat(end.fileno()).st_ino) for end in (reader, writer))
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    writer.settimeout(0)  # the interpreter wants one that does not block
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    if before < 0:
        try:
            threading.Thread(target=_watch, args=(reader, is_missed), name="holdfast-wakeup", daemon=True).start()
            return
        except RuntimeError:  # no more threads
            pass
    _put_back(before)
    _close()


def forget_wakeups() -> None:
    """In a forked child: there is no thread that reads, and the socket is the parent's."""
    if _ends:
        current = signal.set_wakeup_fd(-1)
        if current != _ends[1][0].fileno():
            _put_back(current)
        _close()


def _put_back(descriptor: int) -> None:
    with contextlib.suppress(OSError, ValueError):  # of somebody who has closed it
        signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)


def _close() -> None:
    while _ends:
        end, inode = _ends.pop()
        with contextlib.suppress(OSError):
            if os.fstat(end.fileno()).st_ino == inode:
                end.close()
        end.detach()  # not ours any more, or closed


def _watch(reader: socket.socket, is_missed: Callable[[int], bool]) -> None:
    main = threading.main_thread().ident
    assert main is not None
    while True:
        try:
            numbers, told, _, _ = reader.recvmsg(_READ_BYTES, socket.CMSG_SPACE(_SENDER.size))
        except OSError:
            return
        if not numbers:
            return
        if told and _SENDER.unpack(told[0][2][: _SENDER.size])[0] == os.getpid():
            time.sleep(_PATIENCE_S)
            for number in set(numbers):
                if is_missed(number):
                    signal.pthread_kill(main, number)
