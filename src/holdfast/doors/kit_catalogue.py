"""The files of the KIT class as checkpoints of a run: a catalogue with digests and retention, beside the plain file."""

import errno
import logging
import os
from pathlib import Path
from typing import NamedTuple

from holdfast.core.clock import SystemClock
from holdfast.core.errors import HoldfastError, RunError, StorageError
from holdfast.core.values import DISK, Checkpoint
from holdfast.doors.kit_files import aside, put_in_place
from holdfast.engine.file_state import restore_files, save_files
from holdfast.engine.holders import newest_attempt
from holdfast.engine.identity import identify
from holdfast.engine.loading import Source, read_manifest
from holdfast.engine.marks import QUARANTINED, set_mark
from holdfast.engine.provenance import Provenance, begin_provenance
from holdfast.engine.restoring import Choice, find_candidates, try_candidates
from holdfast.engine.saving import Document
from holdfast.engine.session import Session, default_workers
from holdfast.policy.keep import keep
from holdfast.policy.lineage import in_order
from holdfast.storage.posix import PosixStore

__all__ = ["Catalogue", "Known"]

_log = logging.getLogger("holdfast")

_KEEP = keep(last=2)
_DIGEST = "blake3"
_AFTER = "after"
_TAG = "kit"
# Of this process, and its newest attempt: a Checkpointer that is made again, as in a notebook, takes the run over from
# the one before, but not from another process (I11).
_opened: dict[str, tuple[int, int | None]] = {}


class Known(NamedTuple):
    """A checkpoint of the run, and the digest of the file that it holds."""

    checkpoint: Checkpoint
    digest: str
    after: str
    """The digest of what was transferred last when it was made; empty where nothing was, or nothing is known."""


class Catalogue:
    """The run `<file>.run`. It is opened when it is first needed, and again after its directory was away."""

    def __init__(self, file: Path) -> None:
        self.path = file.with_name(file.name + ".run")
        self._session: Session | None = None
        self._provenance: Provenance | None = None
        self._last: str | None = None
        self._place: tuple[int, int] | None = None
        self.step = 0
        """The one of the checkpoint that was saved or resumed last."""
        self.digest = ""
        """That of its file."""
        self.transferred = ""
        """That of what is in the storage, as far as is known; empty where the run itself is there."""

    @property
    def attempt(self) -> int:
        return 0 if self._session is None else self._session.attempt

    def has_any(self) -> bool:
        """Whether there is a checkpoint that may be used. Changes nothing."""
        if self._session is not None:
            return any(not found.quarantined for found in self._session.catalog().checkpoints)
        try:
            store = PosixStore(self.path, readonly=True)
        except RunError:
            return False
        try:
            return bool(find_candidates(store, identify(store), Choice()))
        except HoldfastError:
            return False
        finally:
            store.close()

    def known(self) -> list[Known]:
        """All checkpoints, newest first; of a damaged one, the digest still says what the plain file should be."""
        session = self._open(fresh=False)
        found = in_order(session.catalog().checkpoints)
        return [Known(one, *self._digests(session, one)) for one in reversed(found)]

    def resume(self, checkpoint: Checkpoint) -> None:
        """What is saved from now on follows that one."""
        session = self._open(fresh=False)
        if session.seq > 0:
            session.roll_back()
            _opened[str(self.path)] = os.getpid(), session.attempt
        session.resume_from(checkpoint)
        self._last = checkpoint.id
        self.digest, _ = self._digests(session, checkpoint)
        session.journal.record("restored", id=checkpoint.id, step=checkpoint.step, where=DISK)
        self.step = checkpoint.step

    def bring_back(self, target: Path) -> Checkpoint | None:
        """Put the file of the newest good checkpoint there, verified and whole; None where the run has none.

        RestoreError where it has some, and none can be used (I12).
        """
        session = self._open(fresh=False)
        source = _source(session)
        candidates = find_candidates(session.store, session.run_id, Choice())
        if candidates is None:
            return None

        def load(checkpoint: Checkpoint) -> Checkpoint:
            with aside(target) as folder:
                names = restore_files(source, checkpoint.id, str(folder))
                put_in_place(folder / names[0], target)
            return checkpoint

        found = try_candidates(session.store, candidates, load, on_damage=self._quarantine)
        self.resume(found)
        return found

    def save(self, file: Path, digest: str, *, step: int) -> None:
        """The file as a durable checkpoint. Where none was resumed, what the run has becomes an abandoned branch."""
        session = self._open_in_place()
        document = Document(
            step=step,
            epoch=None,
            metrics={},
            note="",
            tags=(_TAG,),
            hyperparameters={_DIGEST: digest, "file": file.name}
            | ({_AFTER: self.transferred} if self.transferred else {}),
            provenance={} if self._provenance is None else self._provenance(),
        )
        try:
            self._last = save_files(session, str(file.parent), [file.name], document, _KEEP).id
        except StorageError:
            # Its directory may be gone, and another one there when it is back: opened again, it is looked at again.
            self.close()
            raise
        self.step = step
        self.digest = digest

    def start_over(self) -> None:
        """What the run has is not what the program goes on from."""
        self.close()
        self._last = None
        self.step = 0
        self.digest = ""
        self._open(fresh=True)

    def close(self) -> None:
        """Let the run go."""
        if self._session is not None and os.getpid() == _opened[str(self.path)][0]:
            session, self._session = self._session, None
            session.close()
            if self._provenance is not None:
                self._provenance()  # no child process stays behind
        self._session = None

    def _open_in_place(self) -> Session:
        """To save. What is open may meanwhile be somewhere else than its name says: unmounted, or moved."""
        if self._session is not None and self._place != _place_of(self.path):
            self.close()
        return self._open(fresh=True)

    def _open(self, *, fresh: bool) -> Session:
        if self._session is None:
            if not self.path.parent.is_dir():
                raise StorageError(
                    f"{self.path.parent} does not exist, so no checkpoint can be kept or looked for there",
                    hint="is its file system mounted? or make it: mkdir -p, where it is an ordinary directory",
                    errno=errno.ENOENT,
                )
            name = str(self.path)
            goes_on = self._last is not None
            store = PosixStore(self.path, create=True)
            try:
                self._session = Session(
                    store,
                    SystemClock(),
                    takeover=_opened.get(name) == (os.getpid(), newest_attempt(store)),
                    fresh=fresh and not goes_on,
                    workers=default_workers(),
                )
            except BaseException:
                store.close()
                raise
            _opened[name] = os.getpid(), self._session.attempt
            self._provenance = self._provenance or begin_provenance()
            self._place = _place_of(self.path)
            if goes_on:
                self._go_on(self._session)
        return self._session

    def _go_on(self, session: Session) -> None:
        """After it was away: from what was saved last. StorageError where that is not there: then it is another run."""
        for checkpoint in session.catalog().checkpoints:
            if checkpoint.id == self._last:
                session.resume_from(checkpoint)
                return
        self.close()
        raise StorageError(
            f"{self.path} is not what it was: the checkpoint that was saved last, {self._last}, is not there",
            hint="is its file system mounted? to begin another run there, start the program again",
        )

    def _quarantine(self, checkpoint: Checkpoint, reason: str) -> None:
        session = self._open(fresh=False)
        session.journal.record("quarantined", id=checkpoint.id, reason=reason)
        try:
            set_mark(session.store, checkpoint.id, QUARANTINED, reason=reason, clock=session.clock)
        except HoldfastError as error:  # on a full disk the restore matters more than the mark
            _log.warning("%s cannot be marked: %s", checkpoint.id, error.message)

    def _digests(self, session: Session, checkpoint: Checkpoint) -> tuple[str, str]:
        """Of its file, and of what was transferred before it."""
        try:
            said = read_manifest(_source(session), checkpoint.id).body.hyperparameters
        except HoldfastError:
            return "", ""  # it is found out, and said, when it is to be loaded
        return (str(said.get(_DIGEST, "")), str(said.get(_AFTER, ""))) if isinstance(said, dict) else ("", "")


def _place_of(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _source(session: Session) -> Source:
    return Source(session.store, session.run_id, session.pool, session.workers)
