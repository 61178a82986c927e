"""What this node has of a run in memory, for commands that only look. Nothing is imported where there is nothing."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from holdfast.cli.runs import Run
from holdfast.engine.catalog import Catalog

# As in holdfast/__init__.py: `holdfast ls` is to start at once.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.engine.snapshots import Snapshot

__all__ = ["SHARED_MEMORY", "with_memory"]

SHARED_MEMORY = "/dev/shm"  # noqa: S108  only asked for names here; `tiers` checks whose they are
"""`tiers.directory.DEFAULT_ROOT`, whose module would take longer to load than a listing."""


@contextmanager
def with_memory(opened: Run, catalog: Catalog) -> "Iterator[tuple[Catalog, Mapping[str, Snapshot]]]":
    """The catalogue with what is in memory, and the snapshots, which are open until the end of the block."""
    if not _has_arena(opened.run_id):
        yield catalog, {}
        return
    from holdfast.engine.journal import read_events
    from holdfast.engine.snapshots import close_snapshots, find_snapshots, with_snapshots

    snapshots = find_snapshots(opened.run_id, opened.path)
    try:
        yield with_snapshots(catalog, snapshots, read_events(opened.store)), snapshots
    finally:
        close_snapshots(snapshots)


def _has_arena(run_id: str) -> bool:
    """Whether something bears the name of an arena of the run."""
    try:
        names = os.listdir(f"{SHARED_MEMORY}/holdfast-{os.geteuid()}")
    except OSError:
        return False
    return any(name.startswith(f"{run_id}-") for name in names)
