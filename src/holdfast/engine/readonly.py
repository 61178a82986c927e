"""Reading a run without being its writer: nothing is written, nothing is marked, nobody is fenced."""

from os import PathLike

from holdfast.core.calls import public_call
from holdfast.core.errors import NoCheckpointError, UsageError
from holdfast.core.values import Checkpoint
from holdfast.engine.blocks import BlockPool
from holdfast.engine.identity import identify
from holdfast.engine.loading import Arrays, Source, load_tree, unwrap_tree
from holdfast.engine.restoring import RULES, Choice, find_candidates, try_candidates
from holdfast.engine.session import default_workers
from holdfast.storage.posix import PosixStore

__all__ = ["load"]


@public_call("holdfast.load")
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

    `only` names a leaf or subtree (`model.layers.0`, as `holdfast show` spells it); nothing else is read. A damaged
    checkpoint gives way to the next older one for "latest", "healthy" and "best"; one that was named raises
    RestoreError.
    """
    if arrays not in ("native", "numpy"):
        raise UsageError(f"arrays is {arrays!r}, expected 'native' or 'numpy'")
    store = PosixStore(run, readonly=True)
    try:
        source = Source(store, identify(store), BlockPool(), default_workers())
        candidates = find_candidates(store, source.run_id, Choice(which, by, mode))
        if not candidates:
            raise NoCheckpointError(f"{store.location} has no checkpoint yet")
        if which not in RULES:
            # Whoever names one and gets only its values could not tell that they are another one's.
            candidates = candidates[:1]
        value = try_candidates(
            store,
            candidates,
            lambda checkpoint: load_tree(
                source, checkpoint.id, only=only, like=like, arrays=arrays, allow_pickle=pickle
            ),
            on_damage=_leave_alone,
            is_named=which not in RULES,
        )
    finally:
        store.close()
    return value if only is not None else unwrap_tree(value)


def _leave_alone(checkpoint: Checkpoint, reason: str) -> None:
    """A reader marks nothing; the log has said what is damaged."""
    del checkpoint, reason
