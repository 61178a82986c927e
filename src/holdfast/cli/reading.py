"""What commands that read a checkpoint's data share."""

from collections.abc import Callable

from holdfast.cli.runs import Run
from holdfast.engine.blocks import BlockPool
from holdfast.engine.loading import Source
from holdfast.engine.session import default_workers

__all__ = ["source_of"]


def source_of(run: Run, progress: Callable[[int], None] | None = None) -> Source:
    """The run as the engine reads it."""
    return Source(run.store, run.run_id, BlockPool(), default_workers(), progress)
