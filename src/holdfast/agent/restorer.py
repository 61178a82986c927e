"""A restore, from the checkpoints of a run to the program's objects: with what is in memory, and what follows then."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from holdfast.agent.recall import Recall
from holdfast.agent.staging import Stager
from holdfast.core.errors import RestoreError, StateError, UnsupportedError
from holdfast.core.values import DISK, Checkpoint
from holdfast.engine.outcome import PendingCheckpoint
from holdfast.engine.prefetch import wait_for_prefetches
from holdfast.engine.provenance import Provenance
from holdfast.engine.restoring import Choice, Loaded, MakePlan, restore_session
from holdfast.engine.session import Session
from holdfast.engine.snapshots import Snapshot, close_snapshots

__all__ = ["Restorer"]

# The first step after a restore comes before memory for the next snapshot, unless that is asked for earlier.
_AFTER_RESTORE_S = 2.0
_TOUCHED = "the state in memory was partly overwritten and must not be used"


class Restorer:
    """One per Checkpointer. Called with its lock held."""

    def __init__(
        self,
        session: Session,
        stager: Stager | None,
        recall: Recall | None,
        *,
        random: bool,
        provenance: Provenance,
        hyperparameters: object,
        before_choosing: Callable[[], None] = lambda: None,
    ) -> None:
        """`before_choosing` is called when nothing is on its way any more."""
        self._session = session
        self._stager = stager
        self._recall = recall
        self._random = random
        self._provenance = provenance
        self._hyperparameters = hyperparameters
        self._before_choosing = before_choosing
        self._is_touched = False
        self.is_restoring = False
        """Whether one is under way: there is nothing then that could be lost."""

    def check_whole(self) -> None:
        """StateError where a restore has failed half-way, and none has made that good."""
        if self._is_touched:
            raise StateError(
                "a restore failed half-way, so the state in memory is neither old nor new; it is not saved",
                hint="restore another checkpoint, or start the program again",
            )

    def restore(self, choice: Choice, make_plan: MakePlan) -> tuple[Loaded | None, PendingCheckpoint | None]:
        """What was loaded, and where it was in memory only, the checkpoint that is being made of it."""
        with self._restoring():
            wait_for_prefetches()
            if self._stager is not None:
                self._stager.settle()
            self._before_choosing()
            snapshots = {} if self._recall is None else self._recall.find()
            try:
                loaded = restore_session(
                    self._session,
                    choice,
                    make_plan,
                    with_random=self._random,
                    provenance=self._provenance,
                    hyperparameters=self._hyperparameters,
                    is_touched=lambda: self._is_touched,
                    on_touch=self._note_touch,
                    snapshots=snapshots,
                )
                adopted = None if loaded is None else self._follow_up(loaded.checkpoint, snapshots)
            except (RestoreError, UnsupportedError) as error:
                if not self._is_touched:
                    raise
                raise RestoreError(
                    f"{error.message}\n{_TOUCHED}",
                    hint=error.hint,
                ) from error
            except BaseException as error:
                if self._is_touched:
                    error.add_note(_TOUCHED)
                raise
            finally:
                close_snapshots(snapshots)
            self._is_touched = False
            return loaded, adopted

    @contextmanager
    def _restoring(self) -> Iterator[None]:
        self.is_restoring = True
        try:
            yield
        finally:
            self.is_restoring = False

    def _follow_up(self, restored: Checkpoint, snapshots: Mapping[str, Snapshot]) -> PendingCheckpoint | None:
        """What exists in memory only becomes durable; memory for the next snapshot is made ready."""
        if self._stager is None or self._recall is None:
            return None
        adopted = self._recall.follow_up(restored, snapshots)
        if adopted is None and DISK in restored.where:
            self._stager.prepare(restored.size_bytes, after_s=_AFTER_RESTORE_S)
        return adopted

    def _note_touch(self) -> None:
        self._is_touched = True
