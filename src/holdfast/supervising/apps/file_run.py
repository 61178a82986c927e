"""The run of a program that cannot be changed: its files as checkpoints, one attempt for each start of the program."""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.core.clock import Clock
from holdfast.core.errors import FormatError, HoldfastError
from holdfast.core.values import Checkpoint
from holdfast.engine.file_state import SavedFile, files_of, put_files, save_files
from holdfast.engine.pace_history import STOPPED
from holdfast.engine.provenance import collect_provenance
from holdfast.engine.restoring import Choice, Plan, TreePlan, restore_session
from holdfast.engine.saving import Document
from holdfast.engine.session import Session, default_workers
from holdfast.format.arrays import LeafInfo
from holdfast.format.decode import build
from holdfast.format.manifest import Manifest
from holdfast.policy.keep import keep
from holdfast.policy.lineage import latest
from holdfast.storage.posix import PosixStore
from holdfast.storage.translate import Boundary

__all__ = ["FileRun", "Saved"]

_log = logging.getLogger("holdfast")
# As of a Checkpointer: one that was restored this often without a newer one following may be what kills the program.
_SUSPECT_AFTER = 3


class Saved(NamedTuple):
    """The checkpoint that the next attempt should go on from."""

    checkpoint: Checkpoint
    files: Mapping[str, SavedFile]
    is_older: bool
    """A newer one is intact, and passed over because the program never got further from it."""


class FileRun:
    """One run. It is made with the first attempt, and held until it is closed."""

    def __init__(self, path: str, *, keep_last: int, clock: Clock, label: str) -> None:
        self.path = path
        self._keep = keep(last=keep_last)
        self._clock = clock
        self._label = label
        self._session: Session | None = None
        self._known: dict[str, object] | None = None

    def begin(self) -> Saved | None:
        """A new attempt; all bytes of what it gives are verified. None where there is no checkpoint yet.

        RestoreError where there are, and none can be used (I12).
        """
        if self._session is None:
            self._session = self._open()
        session = self._session

        def make_plan(manifest: Manifest, leaves: Sequence[LeafInfo]) -> Plan:
            return TreePlan(build(manifest.body.tree, leaves, arrays="numpy"))

        loaded = restore_session(
            session,
            Choice("latest", suspect_after=_SUSPECT_AFTER),
            make_plan,
            with_random=False,
            provenance=self._provenance,
            hyperparameters={},
            is_touched=lambda: False,
            on_touch=lambda: None,
            snapshots={},
        )
        if loaded is None:
            return None
        is_older = latest(session.catalog().checkpoints).id != loaded.checkpoint.id
        return Saved(loaded.checkpoint, files_of(loaded.value, loaded.checkpoint.id), is_older)

    def save(self, folder: str, names: Iterable[str], *, step: int | None, growing: Iterable[str], note: str) -> int:
        """The files as a durable checkpoint; its step, which is the next number where that is not known."""
        session = self._session
        if session is None:
            raise HoldfastError(f"{self.path}: nothing was begun")
        session.check_continues()
        last = session.last_step
        known = (0 if last is None else last + 1) if step is None else max(step, last or 0)
        document = Document(known, None, {}, note, (self._label,), {}, self._provenance())
        checkpoint = save_files(session, folder, names, document, self._keep, growing=growing)
        _log.info("saved %d files of step %d as %s", checkpoint.leaves, known, checkpoint.id)
        return known

    @property
    def last_step(self) -> int | None:
        """Of the newest checkpoint of this attempt, or the one that it goes on from."""
        return None if self._session is None else self._session.last_step

    def put_back(self, saved: Saved, folder: str, names: Iterable[str]) -> None:
        """Those files as the checkpoint has them."""
        wanted = set(names)
        if not wanted <= set(saved.files):
            raise FormatError(f"{saved.checkpoint.id} does not hold {', '.join(sorted(wanted - set(saved.files)))}")
        put_files({name: file for name, file in saved.files.items() if name in wanted}, folder)

    def note_stop(self, why: str) -> None:
        """The program was asked to end: that it got no further is not the checkpoint's fault."""
        if self._session is not None:
            self._session.journal.record(STOPPED, step=self._session.last_step, why=why, lost_steps=None)

    def close(self, *, clean: bool) -> None:
        """Let the run go."""
        if self._session is not None:
            self._session.journal.record("closed", clean=clean)
            self._session.close()
            self._session = None

    def _open(self) -> Session:
        parent = os.path.dirname(os.path.abspath(self.path))
        with Boundary("making", parent):
            os.makedirs(parent, exist_ok=True)
        store = PosixStore(self.path, create=True)
        try:
            return Session(store, self._clock, takeover=False, fresh=False, workers=default_workers())
        except BaseException:
            store.close()
            raise

    def _provenance(self) -> dict[str, object]:
        if self._known is None:
            self._known = collect_provenance()
        return dict(self._known)
