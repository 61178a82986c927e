"""One end of the socket between training and agent: whole packets, with descriptors, and sends that never block."""

import os
import select
import socket
import threading
from array import array
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from holdfast.agent.messages import MAX_PACKET_BYTES
from holdfast.core.errors import ProtocolError

__all__ = ["Channel", "Packet", "channel_pair"]

_BUFFER_BYTES = 4 * MAX_PACKET_BYTES
_MAX_DESCRIPTORS = 4
_INT_BYTES = array("i").itemsize
_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR


class Packet(NamedTuple):
    """What one send of the other end was."""

    data: bytes
    descriptors: list[int]
    """Ours to close."""

    def close(self) -> None:
        """Close the descriptors that nobody took."""
        _close_all(self.descriptors)


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends. Packets keep their bounds, and a closed end is seen at the other."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Channel:
    """One end. `send` may be called from any thread; everything else belongs to the one that polls."""

    def __init__(self, end: socket.socket) -> None:
        end.settimeout(0)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        self._end = end
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()
        self._waiting: deque[tuple[bytes, int | None]] = deque()
        self.ended = False
        """The other end is closed, and all that it sent was received."""

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be sent."""
        return not self._waiting

    def send(self, data: bytes, descriptor: int | None = None, *, droppable: bool = False) -> None:
        """Send now, or when the other end takes packets again: a stopped process must not stop this one.

        To an end that is closed, nothing is sent. What is `droppable` does not wait.
        """
        with self._lock:
            if not self._waiting and self._try_send(data, descriptor):
                return
            if droppable:
                return
            # The caller may close its descriptor before ours is sent.
            self._waiting.append((data, None if descriptor is None else os.dup(descriptor)))
        self.wake()

    def wake(self) -> None:
        """Make `poll` return."""
        os.eventfd_write(self._wakeup, 1)

    def poll(self, others: Iterable[int] = (), *, timeout_s: float | None = None) -> None:
        """Wait until a packet is there, another descriptor is ready, or `wake` was called; then send what waits."""
        poller = select.poll()
        poller.register(self._wakeup, select.POLLIN)
        if not self.ended:
            poller.register(self._end.fileno(), _READABLE | (select.POLLOUT if self._waiting else 0))
        for other in others:
            poller.register(other, select.POLLIN)
        ready = poller.poll(None if timeout_s is None else max(0, round(timeout_s * 1000)))
        if any(descriptor == self._wakeup for descriptor, _ in ready):
            os.eventfd_read(self._wakeup)
        if self._waiting:
            with self._lock:
                self._send_waiting()

    def receive(self) -> Packet | None:
        """The next packet; None where there is none now (see `ended`). ProtocolError for one that is too large."""
        while not self.ended:
            try:
                data, extras, flags, _ = self._end.recvmsg(
                    MAX_PACKET_BYTES + 1,
                    socket.CMSG_SPACE(_MAX_DESCRIPTORS * _INT_BYTES),
                    socket.MSG_CMSG_CLOEXEC,
                )
            except BlockingIOError:
                return None
            except ConnectionResetError:
                # Said once, and before what still lies in the queue: the other end was closed without reading all.
                continue
            descriptors = _descriptors(extras)
            if not data and not descriptors:
                self.ended = True
                break
            if flags & socket.MSG_TRUNC or len(data) > MAX_PACKET_BYTES:
                _close_all(descriptors)
                raise ProtocolError(f"a message is longer than {MAX_PACKET_BYTES} bytes")
            return Packet(data, descriptors)
        return None

    def close(self) -> None:
        """Close this end; what waits is not sent."""
        with self._lock:
            self._end.close()
            os.close(self._wakeup)
            self._drop_waiting()
            self.ended = True

    def forget(self) -> None:
        """Close this end in a forked child, where a thread of the parent may have held the lock for ever."""
        os.close(self._end.detach())
        os.close(self._wakeup)
        self._drop_waiting()
        self.ended = True

    def _try_send(self, data: bytes, descriptor: int | None) -> bool:
        extras = [] if descriptor is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [descriptor]))]
        flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
        try:
            self._end.sendmsg([data], extras, flags)
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            pass  # whoever polls finds out
        return True

    def _send_waiting(self) -> None:
        while self._waiting and self._try_send(*self._waiting[0]):
            _, descriptor = self._waiting.popleft()
            if descriptor is not None:
                os.close(descriptor)

    def _drop_waiting(self) -> None:
        _close_all([descriptor for _, descriptor in self._waiting if descriptor is not None])
        self._waiting.clear()


def _descriptors(extras: list[tuple[int, int, bytes]]) -> list[int]:
    found = array("i")
    for level, kind, data in extras:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % _INT_BYTES])
    return found.tolist()


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
