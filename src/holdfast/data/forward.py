"""Going to a position by taking everything before it: where there is no quicker way, and not in silence."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["bar", "warn_of_draws", "warn_of_first_state", "warn_of_forwarding"]

_log = logging.getLogger("holdfast")
_EVERY_S = 0.1


def warn_of_forwarding(what: str, count: int, epoch: int, instead: str) -> None:
    """Say how far, and what would be quicker."""
    _log.warning(
        "%s: epoch %d was left after %d, which are taken and thrown away now to come there again; %s",
        what,
        epoch,
        count,
        instead,
    )


def warn_of_draws(what: str) -> None:
    """Say that no position can bring back what it draws."""
    _log.warning(
        "%s: it draws random numbers, and has no seed: after a restart they are others; give seed=, any number, the "
        "same in every attempt",
        what,
    )


def warn_of_first_state(what: str) -> None:
    """Say that epochs may be alike from now on."""
    _log.warning(
        "%s: since a position was loaded, each epoch begins with the state that it had at first, and it is elsewhere: "
        "if it counts epochs by itself, their order is repeated; with set_epoch(epoch) it is told which one begins",
        what,
    )


@contextmanager
def bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """On the error stream, where somebody looks at it. Call what it gives with how many are done."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(title, total=total)
        due_s = 0.0

        def update(done: int) -> None:
            nonlocal due_s
            if (now_s := time.monotonic()) >= due_s:
                shown.update(task, completed=done)
                due_s = now_s + _EVERY_S

        yield update
