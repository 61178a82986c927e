"""What this node has of a run in memory, for commands that only look. Nothing is imported where there is nothing."""

import os
from types import TracebackType

from holdfast.cli.runs import Run
from holdfast.engine.catalog import Catalog

# As in holdfast/__init__.py: `holdfast ls` is to start at once.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.engine.snapshots import Snapshot

__all__ = ["SHARED_MEMORY", "WithMemory"]

SHARED_MEMORY = "/dev/shm"  # noqa: S108  only asked for names here; `tiers` checks whose they are
"""`tiers.directory.DEFAULT_ROOT`, whose module would take longer to load than a listing."""


class WithMemory:
    """A block with the catalogue and what is in memory of it, and with the snapshots, which are open until its end."""

    def __init__(self, opened: Run, catalog: Catalog) -> None:
        self._opened = opened
        self._catalog = catalog
        self._snapshots: Mapping[str, Snapshot] = {}

    def __enter__(self) -> "tuple[Catalog, Mapping[str, Snapshot]]":
        if not _has_arena(self._opened.run_id):
            return self._catalog, {}
        from holdfast.engine.journal import read_events
        from holdfast.engine.snapshots import find_snapshots, with_snapshots

        self._snapshots = find_snapshots(self._opened.run_id, self._opened.path)
        try:
            return with_snapshots(self._catalog, self._snapshots, read_events(self._opened.store)), self._snapshots
        except BaseException:
            self._close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._snapshots:
            from holdfast.engine.snapshots import close_snapshots

            close_snapshots(self._snapshots)


def _has_arena(run_id: str) -> bool:
    """Whether something bears the name of an arena of the run."""
    try:
        names = os.listdir(f"{SHARED_MEMORY}/holdfast-{os.geteuid()}")
    except OSError:
        return False
    return any(name.startswith(f"{run_id}-") for name in names)
