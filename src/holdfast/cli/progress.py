"""A progress bar for long work, on the error stream, where somebody looks at it; else nothing."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress_bar", "step_line"]

_SMALL_BYTES = 32 << 20
"""Less than this is done before a bar could be read."""


@contextmanager
def progress_bar(title: str, total_bytes: int, *, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """Call what it gives with the number of bytes done since the last call; from any thread."""
    if quiet or total_bytes < _SMALL_BYTES or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total_bytes)
        yield lambda done_bytes: bar.advance(task, done_bytes)


@contextmanager
def step_line(title: str, total: int | None, *, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """A line of its own for a program that is run; call what it gives with the step it has come to."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<24}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda step: bar.update(task, completed=step)
