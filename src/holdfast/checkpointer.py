"""The front class: says what to save, where, and what stays. It wires and names; the engine does the work."""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Literal, Self

from holdfast.core.clock import Clock, SystemClock
from holdfast.core.errors import (
    FencedError,
    HoldfastError,
    RestoreError,
    SaveFailedError,
    StateError,
    UnsupportedError,
    UsageError,
)
from holdfast.core.values import Checkpoint
from holdfast.engine.adapters import check_restorable
from holdfast.engine.collector import collector_paused
from holdfast.engine.commit import pin
from holdfast.engine.documents import check_count, check_hyperparameters, check_metrics, check_note, check_tags
from holdfast.engine.loading import TREE_NAME, unwrap_tree
from holdfast.engine.matching import match_state
from holdfast.engine.outcome import PendingCheckpoint, Restored
from holdfast.engine.provenance import collect_provenance
from holdfast.engine.randomness import current_random
from holdfast.engine.restoring import Choice, Loaded, Plan, TreePlan, restore_session
from holdfast.engine.saving import Document, plan_session, prune_run, save_encoded
from holdfast.engine.session import Session, default_workers
from holdfast.format.arrays import LeafInfo
from holdfast.format.decode import build
from holdfast.format.encode import Encoded, encode_state
from holdfast.format.manifest import Body
from holdfast.policy.keep import Keep, Verdict, keep
from holdfast.policy.lineage import choose, in_order
from holdfast.storage.files import Files
from holdfast.storage.posix import PosixStore

__all__ = ["Checkpointer"]

_log = logging.getLogger("holdfast")
_DEFAULT_KEEP = keep(last=3)


class Checkpointer:
    """Saves and restores the state of a run, as one writer at a time.

    `run` is a directory of its own (made if needed); `state` maps names to what is saved and restored in place:
    anything with state_dict/load_state_dict, arrays and tensors, random generators, mutable containers of plain values.
    """

    def __init__(
        self,
        run: str | PathLike[str],
        state: Mapping[str, object] | None = None,
        *,
        keep: Keep = _DEFAULT_KEEP,
        on_error: Literal["warn", "raise"] = "warn",
        random: bool = True,
        pickle: bool = False,
        hyperparameters: Mapping[str, object] | None = None,
        tags: Iterable[str] = (),
        takeover: bool = False,
        fresh: bool = False,
        suspect_after: int | None = 3,
        workers: int | None = None,
        files: Files | None = None,
        clock: Clock | None = None,
        **unknown: object,
    ) -> None:
        _refuse_unknown("holdfast.Checkpointer", unknown)
        if not isinstance(keep, Keep):
            raise UsageError(f"keep is {keep!r}, expected keep(...) or KEEP_ALL", hint="keep=holdfast.keep(last=3)")
        if on_error not in ("warn", "raise"):
            raise UsageError(f"on_error is {on_error!r}, expected 'warn' or 'raise'")
        if suspect_after is not None and check_count("suspect_after", suspect_after) < 1:
            raise UsageError("suspect_after is 0, expected None or at least 1")
        if workers is not None and check_count("workers", workers) < 1:
            raise UsageError("workers is 0, expected None or at least 1")
        self._state = _mapping("state", state)
        check_restorable(self._state)
        if TREE_NAME in self._state:
            raise UsageError(f"the name {TREE_NAME!r} is taken: it is where save(tree=...) goes", hint="rename it")
        self._keep = keep
        self._on_error = on_error
        self._random = random
        self._pickle = pickle
        self._hyperparameters = check_hyperparameters(_mapping("hyperparameters", hyperparameters))
        self._tags = check_tags(tags)
        self._suspect_after = suspect_after
        self._provenance = collect_provenance()
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._closed = False
        self._touched = False
        self._last: PendingCheckpoint | None = None
        real_clock = clock or SystemClock()
        store = PosixStore(run, create=True, files=files, clock=real_clock)
        try:
            self._session = Session(
                store, real_clock, takeover=takeover, fresh=fresh, workers=workers or default_workers()
            )
        except BaseException:
            store.close()
            raise

    @property
    def attempt(self) -> int:
        """The number of this attempt; it rises with every start of the job, and with every rollback."""
        return self._session.attempt

    def save(
        self,
        *,
        step: int,
        epoch: int | None = None,
        metrics: Mapping[str, object] | None = None,
        note: str = "",
        tags: Iterable[str] = (),
        tree: object = None,
        **unknown: object,
    ) -> PendingCheckpoint:
        """Save now. Bad input raises; a storage that fails is a warning and `.error`, unless on_error="raise" (I7)."""
        _refuse_unknown("holdfast.Checkpointer.save", unknown)
        with self._lock, collector_paused():
            self._check_usable()
            document = Document(
                step=check_count("step", step),
                epoch=None if epoch is None else check_count("epoch", epoch),
                metrics=check_metrics(metrics),
                note=check_note(note),
                tags=check_tags((*self._tags, *check_tags(tags))),
                hyperparameters=self._hyperparameters,
                provenance=self._provenance,
            )
            self._session.check_step(document.step)
            pending = PendingCheckpoint(document.step)
            encoded = self._encode(tree)
            try:
                # Inside: it reads the catalogue, and a storage that fails there must not end the job either (I7).
                self._session.check_continues()
                checkpoint = save_encoded(self._session, encoded, document, self._keep)
            except (FencedError, UsageError, StateError):
                raise
            except HoldfastError as error:
                self._report_failure(pending, error)
            else:
                pending.id = checkpoint.id
                self._session.journal.record(
                    "committed", id=checkpoint.id, step=checkpoint.step, size_bytes=checkpoint.size_bytes
                )
                self._prune()
            self._last = pending
            return pending

    def restore(
        self,
        which: str | int = "latest",
        *,
        strict: bool = True,
        rename: Mapping[str, str] | None = None,
        by: str | None = None,
        mode: str = "min",
        **unknown: object,
    ) -> Restored | None:
        """Load a checkpoint into the state, in place; None where the run has none yet.

        `which` is "latest", "best" (by a metric), a step, or an id. Damaged checkpoints are quarantined and the next
        older good one is used; RestoreError where none is left (I12), StateMismatchError where the program's state
        differs, before anything is touched.
        """
        _refuse_unknown("holdfast.Checkpointer.restore", unknown)

        def match(body: Body, leaves: Sequence[LeafInfo]) -> Plan:
            return match_state(body.tree, leaves, self._state, strict=strict, rename=rename, allow_pickle=self._pickle)

        loaded = self._restore(Choice(which, by, mode, self._suspect_after if which == "latest" else None), match)
        return None if loaded is None else Restored(loaded)

    def load(
        self,
        which: str | int = "latest",
        *,
        like: object = None,
        by: str | None = None,
        mode: str = "min",
        **unknown: object,
    ) -> object:
        """The tree that `save(tree=...)` was given, in new memory; None where the run has no checkpoint yet.

        The training goes on from it, as after `restore`. `like` is a tree of the same shape whose classes are used.
        """
        _refuse_unknown("holdfast.Checkpointer.load", unknown)

        def plan(body: Body, leaves: Sequence[LeafInfo]) -> Plan:
            given = None if like is None else {TREE_NAME: like}
            return TreePlan(build(body.tree, leaves, like=given, allow_pickle=self._pickle))

        loaded = self._restore(Choice(which, by, mode, self._suspect_after if which == "latest" else None), plan)
        return None if loaded is None else unwrap_tree(loaded.value)

    def checkpoints(self) -> list[Checkpoint]:
        """What the run holds, oldest first, damaged ones included (`quarantined` says why)."""
        with self._lock:
            self._check_usable(restoring=True)
            return in_order(self._session.catalog().checkpoints)

    def pin(self, which: str | int = "latest", *, note: str = "") -> str:
        """Keep a checkpoint whatever retention says; its id. `holdfast unpin` undoes it."""
        with self._lock:
            self._check_usable(restoring=True)
            chosen = choose(self._session.catalog().checkpoints, which)[0]
            pin(self._session.store, chosen.id, reason=check_note(note), clock=self._session.clock)
            return chosen.id

    def prune(self, *, dry_run: bool = False) -> list[Verdict]:
        """Remove what retention gives up, as after every save; what is kept and removed, and why."""
        with self._lock:
            self._check_usable(restoring=True)
            verdicts = plan_session(self._session, self._keep)
            if not dry_run:
                prune_run(self._session, self._keep)
            return verdicts

    def close(self) -> None:
        """Let the run go; SaveFailedError where the last checkpoint did not become durable (I8)."""
        self._close(clean=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._close(clean=error is None)
        except SaveFailedError as failure:
            if error is None:
                raise
            # The program's own exception matters more; this one is said, not lost (I8).
            _log.error("%s", failure)

    def _close(self, *, clean: bool) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if os.getpid() == self._pid:
                self._session.journal.record("closed", clean=clean)
                self._session.close()
            if self._last is not None and self._last.error is not None:
                raise SaveFailedError(
                    f"the last checkpoint (step {self._last.step}) did not become durable: {self._last.error.message}",
                    hint=self._last.error.hint,
                ) from self._last.error

    def _restore(self, choice: Choice, make_plan: Callable[[Body, Sequence[LeafInfo]], Plan]) -> Loaded | None:
        with self._lock, collector_paused():
            self._check_usable(restoring=True)
            try:
                loaded = restore_session(
                    self._session,
                    choice,
                    make_plan,
                    with_random=self._random,
                    provenance=self._provenance,
                    hyperparameters=self._hyperparameters,
                    is_touched=lambda: self._touched,
                    on_touch=self._note_touch,
                )
            except (RestoreError, UnsupportedError) as error:
                if not self._touched:
                    raise
                raise RestoreError(
                    f"{error.message}\nthe state in memory was partly overwritten and must not be used",
                    hint=error.hint,
                ) from error
            self._touched = False
        for drift in loaded.drift if loaded is not None else ():
            _log.info("since the checkpoint was saved: %s", drift)
        return loaded

    def _encode(self, tree: object) -> Encoded:
        state = dict(self._state)
        if tree is not None:
            state[TREE_NAME] = tree
        if not state:
            raise UsageError("there is nothing to save", hint="give Checkpointer a state, or save(tree=...)")
        return encode_state(state, random=current_random() if self._random else None, allow_pickle=self._pickle)

    def _prune(self) -> None:
        try:
            prune_run(self._session, self._keep)
        except FencedError:
            raise
        except HoldfastError as error:
            _log.warning("old checkpoints could not be removed: %s", error.message)
            self._session.journal.record("prune_failed", error=error.message)

    def _report_failure(self, pending: PendingCheckpoint, error: HoldfastError) -> None:
        if self._on_error == "raise":
            raise error
        pending.error = error
        _log.warning("the checkpoint of step %d was not saved: %s", pending.step, error)
        self._session.journal.record("save_failed", step=pending.step, error=error.message)

    def _note_touch(self) -> None:
        self._touched = True

    def _check_usable(self, *, restoring: bool = False) -> None:
        if self._closed:
            raise UsageError("this Checkpointer is closed", hint="make a new one")
        if os.getpid() != self._pid:
            raise UsageError(
                f"this Checkpointer belongs to process {self._pid}, not to its forked child {os.getpid()}",
                hint="save in the process that made it",
            )
        if self._touched and not restoring:
            raise StateError(
                "a restore failed half-way, so the state in memory is neither old nor new; it is not saved",
                hint="restore another checkpoint, or start the program again",
            )


def _mapping(what: str, given: Mapping[str, object] | None) -> dict[str, object]:
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(f"{what} is {type(given).__name__}, expected a mapping", hint='for example {"model": model}')
    return dict(given or {})


def _refuse_unknown(what: str, unknown: Mapping[str, object]) -> None:
    if unknown:
        raise UsageError(
            f"{what} has no option {', '.join(map(repr, unknown))}", hint=f"help({what}) lists the options"
        )
