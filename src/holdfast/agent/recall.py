"""What earlier attempts of a run left in memory: found, restored from, made durable, and given back."""

import logging
import os
from collections.abc import Mapping

from holdfast.agent.background import Background
from holdfast.core.errors import HoldfastError
from holdfast.core.names import parse_checkpoint_id
from holdfast.core.values import DISK, Checkpoint
from holdfast.engine.journal import read_events
from holdfast.engine.outcome import PendingCheckpoint
from holdfast.engine.session import Session
from holdfast.engine.snapshots import Snapshot, committed_names, find_snapshots, remove_old_arenas
from holdfast.engine.writing import Draft
from holdfast.format.manifest import decode_staged

__all__ = ["Recall"]

_log = logging.getLogger("holdfast")


class Recall:
    """For one Checkpointer."""

    def __init__(self, session: Session, background: Background) -> None:
        self._session = session
        self._background = background
        self._run = os.path.abspath(session.store.location)
        background.on_durable = self.remove_old_arenas

    def find(self) -> dict[str, Snapshot]:
        """The snapshots of this run in the memory of this machine. To be closed by the caller."""
        return find_snapshots(self._session.run_id, self._run)

    def follow_up(self, restored: Checkpoint, snapshots: Mapping[str, Snapshot]) -> PendingCheckpoint | None:
        """After a restore: what exists in memory only is made durable; said where that cannot be."""
        if DISK in restored.where:
            return None
        reason = "there is no room for a second copy"
        adopted = None
        try:
            adopted = self._adopt(snapshots[restored.id])
        except HoldfastError as error:
            reason = error.message
        if adopted is None:
            _log.warning("step %d is in memory only, until the next save: %s", restored.step, reason)
        return adopted

    def remove_old_arenas(self) -> None:
        """Give the memory of earlier attempts back: what it held is durable, or older than what is."""
        session = self._session
        known: set[object] | None = None
        if self._background.durable_step is None:
            # Nothing of this attempt is durable: what an earlier one left may be the newest that exists.
            known = committed_names(read_events(session.store))
        remove_old_arenas(
            session.run_id,
            self._run,
            attempt=session.attempt,
            durable=lambda name: known is None or name in known,
        )

    def _adopt(self, snapshot: Snapshot) -> PendingCheckpoint | None:
        """Make a snapshot of an attempt that is gone durable, as a checkpoint of this one; None without room for it."""
        session, background = self._session, self._background
        manifest = decode_staged(snapshot.store.content.manifest, where=snapshot.store.location, run_id=session.run_id)
        checkpoint = _as_own(manifest.checkpoint, session)
        pending = PendingCheckpoint(checkpoint.step)
        if not background.has_room(checkpoint.size_bytes):
            return None
        index = background.reserve(pending)
        try:
            is_in_place = os.path.sameopenfile(background.arena.slots[index].descriptor, snapshot.slot.descriptor)
            image = background.image(index, checkpoint.size_bytes)
            try:
                if not is_in_place:
                    snapshot.store.open(f"{snapshot.checkpoint.id}/{manifest.body.shards[0].name}").read_at([image], 0)
            finally:
                image.release()
        except BaseException:
            background.drop(index)
            raise
        session.note_commit(checkpoint)
        background.hand_over(index, Draft(checkpoint, manifest.body), pending, manifest.body.shards[0].xxh3)
        return pending


def _as_own(checkpoint: Checkpoint, session: Session) -> Checkpoint:
    """The checkpoint of an attempt before, as the first of this one: it was never made durable under its own name."""
    parsed = parse_checkpoint_id(checkpoint.id)
    assert parsed is not None, checkpoint.id
    own = str(parsed._replace(attempt=session.attempt, twin=0))
    session.used_names.add(own)
    return checkpoint._replace(
        id=own,
        attempt=session.attempt,
        seq=session.seq + 1,
        parent=checkpoint.id,
        origin=session.origin,
        forks=session.forks,
    )
