"""Starts what saves in the background, and gets memory ready; or says why saves are made in the foreground."""

import logging
from collections.abc import Callable

from holdfast.agent.estimate import expected_bytes
from holdfast.agent.recall import Recall
from holdfast.agent.staging import CaptureMode, Stager
from holdfast.core.errors import HoldfastError
from holdfast.engine.outcome import PendingCheckpoint
from holdfast.engine.session import Session
from holdfast.engine.snapshots import close_snapshots
from holdfast.policy.keep import Keep
from holdfast.storage.files import Files
from holdfast.tiers.finding import reclaim

__all__ = ["start_background"]

_log = logging.getLogger("holdfast")


def start_background(
    session: Session,
    state: object,
    keep: Keep,
    *,
    kind: str,
    capture: CaptureMode,
    memory_bytes: int | None,
    files: Files | None,
    on_failure: Callable[[PendingCheckpoint, HoldfastError], None],
) -> tuple[Stager, Recall] | tuple[None, None]:
    """Nothing where `kind` is "off", or where neither a process nor a thread can be had."""
    if kind == "off":
        return None, None
    try:
        reclaim(keep_run_id=session.run_id)
        stager = Stager(
            session,
            state,
            keep,
            process=kind == "process",
            mode=capture,
            memory_bytes=memory_bytes,
            files=files,
            on_failure=on_failure,
        )
    except HoldfastError as error:
        _log.warning("checkpoints are saved in the foreground: %s", error)
        return None, None
    recall = Recall(session, stager.background)
    # What there is to restore comes first: memory for the next snapshot is not made ready beside that.
    if session.starts_over or not _has_something(session, recall):
        stager.prepare(expected_bytes(state))
    return stager, recall


def _has_something(session: Session, recall: Recall) -> bool:
    """Whether there may be something to restore."""
    try:
        snapshots = recall.find()
        close_snapshots(snapshots)
        return bool(snapshots or session.catalog().checkpoints)
    except HoldfastError:
        return True
