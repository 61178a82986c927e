"""Whether an exception came out of the middle of a weight update: the state is neither that before it nor after it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

__all__ = ["Updates"]


class Updates:
    """Knows of those that the program announces, and of steps of torch optimizers."""

    def __init__(self) -> None:
        self._error: BaseException | None = None

    @contextmanager
    def announced(self) -> Iterator[None]:
        """Around code that changes parameters or moments."""
        self._error = None  # whatever it was, the program went on from it
        try:
            yield
        except BaseException as error:
            self._error = error
            raise

    def is_half_done(self, error: BaseException) -> bool:
        """Whether one was under way when the exception was raised, or another one that led to it."""
        return any(each is self._error or _is_in_step(each.__traceback__) for each in _those_behind(error))


def _those_behind(error: BaseException) -> Iterator[BaseException]:
    """The exception, and all that it was raised from, or while handling."""
    found: list[BaseException | None] = [error]
    seen: set[int] = set()
    while found:
        each = found.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        found += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            found += each.exceptions


def _is_in_step(trace: TracebackType | None) -> bool:
    optimizer = getattr(getattr(sys.modules.get("torch"), "optim", None), "Optimizer", None)
    while optimizer is not None and trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_name == "step" and isinstance(frame.f_locals.get("self"), optimizer):
            return True
        trace = trace.tb_next
    return False
