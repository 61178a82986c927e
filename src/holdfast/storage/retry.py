"""Bounded retries for errors that pass: a server that restarts, a signal that interrupts."""

import errno
from collections.abc import Callable

from holdfast.core.clock import Clock
from holdfast.core.errors import HoldfastError
from holdfast.core.light_typing import TypeVar

__all__ = ["retried"]

_T = TypeVar("_T")
_TRANSIENT = (errno.EAGAIN, errno.EINTR, errno.ESTALE)
_PAUSES_S = (0.01, 0.05)


def retried(operation: Callable[..., _T], clock: Clock, *arguments: object) -> _T:
    """What the operation returns, tried three times at most. For opening and reading only.

    Writing is never tried again on the same file: after a failed write or fsync nobody knows what it holds (I5).
    """
    for pause_s in _PAUSES_S:
        try:
            return operation(*arguments)
        except OSError as error:
            if isinstance(error, HoldfastError) or error.errno not in _TRANSIENT:
                raise
        clock.sleep(pause_s)
    return operation(*arguments)
