"""Reading a run without being its writer: nothing is written, nothing is marked, nobody is fenced."""

import os
from os import PathLike

from holdfast.core.errors import NoCheckpointError
from holdfast.core.values import Checkpoint
from holdfast.engine.blocks import BlockPool
from holdfast.engine.identity import identify
from holdfast.engine.loading import Arrays, Source, load_tree, unwrap_tree
from holdfast.engine.restoring import Choice, find_candidates, try_candidates
from holdfast.engine.session import default_workers
from holdfast.storage.posix import PosixStore

__all__ = ["load"]


def load(
    run: str | PathLike[str],
    which: str | int = "latest",
    *,
    only: str | None = None,
    like: object = None,
    arrays: Arrays = "native",
    pickle: bool = False,
    by: str | None = None,
    mode: str = "min",
) -> object:
    """The saved tree of a run, without any model and without writing anything.

    `only` names a leaf or subtree (`model.layers.0`, as `holdfast show` spells it); nothing else is read.
    """
    store = PosixStore(os.fspath(run), readonly=True)
    try:
        source = Source(store, identify(store), BlockPool(), default_workers())
        candidates = find_candidates(store, source.run_id, Choice(which, by, mode))
        if not candidates:
            raise NoCheckpointError(f"{store.location} has no checkpoint yet")
        value = try_candidates(
            store,
            candidates,
            lambda checkpoint: load_tree(
                source, checkpoint.id, only=only, like=like, arrays=arrays, allow_pickle=pickle
            ),
            on_damage=_leave_alone,
        )
    finally:
        store.close()
    return value if only is not None else unwrap_tree(value)


def _leave_alone(checkpoint: Checkpoint, reason: str) -> None:
    """A reader marks nothing; the log has said what is damaged."""
    del checkpoint, reason
