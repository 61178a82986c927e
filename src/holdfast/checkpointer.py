"""The front class: says what to save, where, and what stays. It wires and names; the engine does the work."""

import errno
import logging
import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from os import PathLike
from types import TracebackType
from typing import Literal, Self, get_args

from holdfast.agent.estimate import expected_bytes
from holdfast.agent.exiting import finish_at_exit, is_finished
from holdfast.agent.recall import Recall
from holdfast.agent.staging import CaptureMode, Stager, Status
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
from holdfast.core.interrupts import interrupts_deferred
from holdfast.core.values import DISK, Checkpoint
from holdfast.engine.adapters import check_restorable
from holdfast.engine.collector import collector_paused
from holdfast.engine.commit import pin
from holdfast.engine.documents import check_count, check_hyperparameters, check_metrics, check_note, check_tags
from holdfast.engine.laying import Laid, Layouts
from holdfast.engine.loading import TREE_NAME, unwrap_tree
from holdfast.engine.matching import match_state
from holdfast.engine.outcome import PendingCheckpoint, Restored
from holdfast.engine.prefetch import wait_for_prefetches
from holdfast.engine.provenance import begin_provenance
from holdfast.engine.randomness import current_random
from holdfast.engine.restoring import Choice, Loaded, Plan, TreePlan, restore_session
from holdfast.engine.saving import Document, save_in_foreground
from holdfast.engine.session import Session, default_workers
from holdfast.engine.snapshots import Snapshot, close_snapshots
from holdfast.engine.writing import plan_run, prune_run
from holdfast.format.arrays import LeafInfo
from holdfast.format.carriers import ToHost
from holdfast.format.decode import build
from holdfast.format.encode import Encoded, encode_again, encode_state
from holdfast.format.footprint import Footprint
from holdfast.format.manifest import Body
from holdfast.policy.keep import Keep, Verdict, keep
from holdfast.policy.lineage import choose, in_order
from holdfast.storage.files import Files
from holdfast.storage.posix import PosixStore
from holdfast.tiers.finding import reclaim

__all__ = ["Checkpointer"]

_log = logging.getLogger("holdfast")
_DEFAULT_KEEP = keep(last=3)
_VARIABLE = "HOLDFAST_BACKGROUND"
# The first step after a restore comes before memory for the next snapshot, unless that is asked for earlier.
_AFTER_RESTORE_S = 2.0


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
        every: int | None = None,
        keep: Keep = _DEFAULT_KEEP,
        on_error: Literal["warn", "raise"] = "warn",
        random: bool = True,
        pickle: bool = False,
        hyperparameters: Mapping[str, object] | None = None,
        tags: Iterable[str] = (),
        takeover: bool = False,
        fresh: bool = False,
        suspect_after: int | None = 3,
        background: Literal["process", "thread", "off"] | None = None,
        capture: CaptureMode = "now",
        memory_bytes: int | None = None,
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
        if every is not None and check_count("every", every) < 1:
            raise UsageError("every is 0, expected None or at least 1", hint="every=500 saves every 500 steps")
        if capture not in get_args(CaptureMode):
            raise UsageError(f"capture is {capture!r}, expected one of {', '.join(map(repr, get_args(CaptureMode)))}")
        if memory_bytes is not None:
            check_count("memory_bytes", memory_bytes)
        kind = _background_kind(background, files)
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
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._closed = False
        self._touched = False
        self._every = every
        self._steps = 0
        # Compared with the count at every step; larger than any count where nothing is ever due.
        self._due_at: float = math.inf if every is None else every
        self._last: PendingCheckpoint | None = None
        self._layouts = Layouts()
        self._background_error: HoldfastError | None = None
        real_clock = clock or SystemClock()
        store = PosixStore(run, create=True, files=files, clock=real_clock)
        try:
            self._session = Session(
                store, real_clock, takeover=takeover, fresh=fresh, workers=workers or default_workers()
            )
        except BaseException:
            store.close()
            raise
        self._provenance = begin_provenance()
        self._stager: Stager | None = None
        self._recall: Recall | None = None
        if kind != "off":
            self._start_background(kind, capture, memory_bytes, files)
        finish_at_exit(self._finish)

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
        self._check_owner()
        # In the foreground a save may take long, and what it leaves behind is no more than after a crash.
        deferred = nullcontext() if self._stager is None else interrupts_deferred()
        with deferred, self._lock, collector_paused():
            self._check_usable()
            document = Document(
                step=check_count("step", step),
                epoch=None if epoch is None else check_count("epoch", epoch),
                metrics=check_metrics(metrics),
                note=check_note(note),
                tags=check_tags((*self._tags, *check_tags(tags))),
                hyperparameters=self._hyperparameters,
                provenance=self._provenance(),
            )
            self._session.check_step(document.step)
            self._raise_background_error()
            pending = PendingCheckpoint(document.step)
            try:
                if self._stager is not None:
                    self._session.check_continues()
                    self._stager.save(
                        lambda to_host, footprint: self._encode(tree, to_host, footprint), document, pending
                    )
                else:
                    laid = self._layouts.take(lambda footprint: self._encode(tree, None, footprint))
                    self._save_synchronously(laid, document, pending)
            except (FencedError, UsageError, StateError):
                raise
            except HoldfastError as error:
                self._report_failure(pending, error)
            except (MemoryError, OSError) as error:
                if not isinstance(error, MemoryError) and error.errno != errno.ENOMEM:
                    raise
                self._report_failure(pending, SaveFailedError(f"there is not enough memory to save: {error}"))
            self._last = pending
            return pending

    def step(self, *, epoch: int | None = None, **metrics: object) -> PendingCheckpoint | None:
        """Count a step of the training, and save when one is due (`every`); the save, or None.

        A save that is due while two are still on their way to the disk is skipped and counted: the training does not
        wait for the storage.
        """
        self._steps += 1
        if self._steps < self._due_at:
            return None
        assert self._every is not None
        self._check_owner()
        self._due_at = self._steps + self._every
        if self._stager is not None and self._stager.skips():
            return None
        return self.save(step=self._steps, epoch=epoch, metrics=metrics)

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
        self._check_owner()
        with self._lock:
            self._check_usable(restoring=True)
            return in_order(self._session.catalog().checkpoints)

    def updating(self) -> AbstractContextManager[None]:
        """Around code that changes parameters or moments outside of `optimizer.step()`; waits for a running capture."""
        return nullcontext() if self._stager is None else self._stager.updating()

    def status(self) -> Status:
        """What is durable, what it cost, and what is being written; `str()` gives a line for a terminal."""
        self._check_owner()
        if self._stager is None:
            step = self._last.step if self._last is not None and self._last.durable else None
            return Status(step, step, 0.0, self._session.seq, 0, 0, "saving in the foreground")
        return self._stager.status()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the last save is durable; raises what went wrong."""
        self._check_owner()
        if self._last is not None:
            self._last.wait(timeout_s)

    def pin(self, which: str | int = "latest", *, note: str = "") -> str:
        """Keep a checkpoint whatever retention says; its id. `holdfast unpin` undoes it."""
        self._check_owner()
        with self._lock:
            self._check_usable(restoring=True)
            chosen = choose(self._session.catalog().checkpoints, which)[0]
            pin(self._session.store, chosen.id, reason=check_note(note), clock=self._session.clock)
            return chosen.id

    def prune(self, *, dry_run: bool = False) -> list[Verdict]:
        """Remove what retention gives up, as after every save; what is kept and removed, and why."""
        self._check_owner()
        with self._lock:
            self._check_usable(restoring=True)
            verdicts = plan_run(self._session, self._keep)
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

    def _finish(self) -> None:
        """At the end of a program that did not close it: nobody knows whether the attempt ended as it should."""
        self._close(clean=False)

    def _close(self, *, clean: bool) -> None:
        if os.getpid() != self._pid:
            return  # it is the parent's, and so may be the lock
        with self._lock:
            if self._stager is not None and not self._closed:
                self._stager.settle()  # what takes its time can be interrupted, and close() called again
        with interrupts_deferred(), self._lock:
            if self._closed:
                return
            self._closed = True
            is_finished(self._finish)
            # Where the storage hangs, whoever touches it does not come back, and the process could not end either.
            if self._stager is None or self._stager.close():
                if self._recall is not None:
                    self._recall.remove_old_arenas()
                self._session.journal.record("closed", clean=clean)
            self._session.close()
            self._provenance()  # no child process stays behind
            if self._last is not None and self._last.error is not None:
                raise SaveFailedError(
                    f"the last checkpoint (step {self._last.step}) did not become durable: {self._last.error.message}",
                    hint=self._last.error.hint,
                ) from self._last.error

    def _restore(self, choice: Choice, make_plan: Callable[[Body, Sequence[LeafInfo]], Plan]) -> Loaded | None:
        self._check_owner()
        with self._lock, collector_paused():
            self._check_usable(restoring=True)
            wait_for_prefetches()
            if self._stager is not None:
                self._stager.settle()
            snapshots = {} if self._recall is None else self._recall.find()
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
                    snapshots=snapshots,
                )
                if loaded is not None:
                    self._follow_up(loaded.checkpoint, snapshots)
            except (RestoreError, UnsupportedError) as error:
                if not self._touched:
                    raise
                raise RestoreError(
                    f"{error.message}\nthe state in memory was partly overwritten and must not be used",
                    hint=error.hint,
                ) from error
            finally:
                close_snapshots(snapshots)
            self._touched = False
        if loaded is not None:
            self._steps = loaded.checkpoint.step
            if self._every is not None:
                self._due_at = (self._steps // self._every + 1) * self._every
        for drift in loaded.drift if loaded is not None else ():
            _log.info("since the checkpoint was saved: %s", drift)
        return loaded

    def _start_background(self, kind: str, capture: CaptureMode, memory_bytes: int | None, files: Files | None) -> None:
        try:
            reclaim(keep_run_id=self._session.run_id)
            self._stager = Stager(
                self._session,
                self._state,
                self._keep,
                process=kind == "process",
                mode=capture,
                memory_bytes=memory_bytes,
                files=files,
                on_failure=self._report_background_failure,
            )
        except HoldfastError as error:
            _log.warning("checkpoints are saved in the foreground: %s", error)
            return
        self._recall = Recall(self._session, self._stager.background)
        # What there is to restore comes first: memory for the next snapshot is not made ready beside that.
        if self._session.starts_over or not self._has_something(self._recall):
            self._stager.prepare(expected_bytes(self._state))

    def _has_something(self, recall: Recall) -> bool:
        """Whether there may be something to restore."""
        try:
            snapshots = recall.find()
            close_snapshots(snapshots)
            return bool(snapshots or self._session.catalog().checkpoints)
        except HoldfastError:
            return True

    def _follow_up(self, restored: Checkpoint, snapshots: Mapping[str, Snapshot]) -> None:
        """After a restore: what exists in memory only becomes durable; memory for the next snapshot is made ready."""
        if self._stager is None or self._recall is None:
            return
        adopted = self._recall.follow_up(restored, snapshots)
        if adopted is not None:
            self._last = adopted
        elif DISK in restored.where:
            self._stager.prepare(restored.size_bytes, after_s=_AFTER_RESTORE_S)

    def _save_synchronously(self, laid: Laid, document: Document, pending: PendingCheckpoint) -> None:
        # It reads the catalogue, and a storage that fails there must not end the job either (I7).
        self._session.check_continues()
        save_in_foreground(
            self._session, laid, document, self._keep, lambda checkpoint: pending.note_durable(checkpoint.id)
        )

    def _encode(self, tree: object, to_host: ToHost | None, footprint: Footprint | None) -> Encoded:
        state = dict(self._state)
        if tree is not None:
            state[TREE_NAME] = tree
        if not state:
            raise UsageError("there is nothing to save", hint="give Checkpointer a state, or save(tree=...)")
        random = current_random() if self._random else None
        if footprint is not None:
            return encode_again(footprint, state, random=random, allow_pickle=self._pickle, to_host=to_host)
        return encode_state(state, random=random, allow_pickle=self._pickle, to_host=to_host, again=True)

    def _report_failure(self, pending: PendingCheckpoint, error: HoldfastError) -> None:
        if self._on_error == "raise":
            raise error
        pending.note_failed(error)
        if self._stager is not None:
            self._stager.failed += 1
        _log.warning("the checkpoint of step %d was not saved: %s", pending.step, error)
        note = self._session.journal.record if self._stager is None else self._stager.background.note
        note("save_failed", step=pending.step, error=error.message)

    def _report_background_failure(self, pending: PendingCheckpoint, error: HoldfastError) -> None:
        """From the thread that listens to the agent: raised at the next save, if errors are to be raised."""
        _log.warning("the checkpoint of step %d was not saved: %s", pending.step, error)
        self._background_error = error

    def _raise_background_error(self) -> None:
        error = self._background_error
        if not isinstance(error, FencedError):  # which stays true
            self._background_error = None
        if error is not None and (self._on_error == "raise" or isinstance(error, FencedError)):
            raise error

    def _note_touch(self) -> None:
        self._touched = True

    def _check_usable(self, *, restoring: bool = False) -> None:
        if self._closed:
            raise UsageError("this Checkpointer is closed", hint="make a new one")
        if self._touched and not restoring:
            raise StateError(
                "a restore failed half-way, so the state in memory is neither old nor new; it is not saved",
                hint="restore another checkpoint, or start the program again",
            )

    def _check_owner(self) -> None:
        """To be asked before a lock: one that another thread had at the time of a fork is never released in a child."""
        if os.getpid() != self._pid:
            raise UsageError(
                f"this Checkpointer belongs to process {self._pid}, not to its forked child {os.getpid()}",
                hint="save in the process that made it",
            )


def _background_kind(wanted: str | None, files: Files | None) -> str:
    """The process is the default; storage that only this process can reach is written by this process."""
    if wanted is None:
        return "off" if files is not None else _check_kind(os.environ.get(_VARIABLE) or "process", _VARIABLE)
    kind = _check_kind(wanted, "background")
    if kind == "process" and files is not None:
        raise UsageError("background='process' cannot use files= of this process", hint="background='thread' can")
    return kind


def _check_kind(kind: str, what: str) -> str:
    if kind not in ("process", "thread", "off"):
        raise UsageError(f"{what} is {kind!r}, expected 'process', 'thread' or 'off'")
    return kind


def _mapping(what: str, given: Mapping[str, object] | None) -> dict[str, object]:
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(f"{what} is {type(given).__name__}, expected a mapping", hint='for example {"model": model}')
    return dict(given or {})


def _refuse_unknown(what: str, unknown: Mapping[str, object]) -> None:
    if unknown:
        raise UsageError(
            f"{what} has no option {', '.join(map(repr, unknown))}", hint=f"help({what}) lists the options"
        )
