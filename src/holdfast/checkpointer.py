"""The front class: says what to save, where, and what stays. It wires and names; the engine does the work."""

import logging
import math
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Self, get_args

from holdfast.agent.exiting import (
    finish_at_exit,
    finish_dropped,
    is_finished,
    restart_after_error,
    wait_for_dropped,
)
from holdfast.agent.recall import Recall
from holdfast.agent.restorer import Restorer
from holdfast.agent.saver import Saver
from holdfast.agent.staging import CaptureMode, Stager, Status
from holdfast.agent.starting import start_background
from holdfast.core.calls import public_call
from holdfast.core.clock import Clock, SystemClock
from holdfast.core.errors import (
    HoldfastError,
    SaveFailedError,
    StateError,
    Stopped,
    UsageError,
)
from holdfast.core.interrupts import interrupts_deferred
from holdfast.core.values import Checkpoint
from holdfast.engine.beats import Beat
from holdfast.engine.collector import collector_paused
from holdfast.engine.commit import pin
from holdfast.engine.determinism import warn_of_nondeterminism
from holdfast.engine.documents import (
    check_count,
    check_hyperparameters,
    check_kinds,
    check_metrics,
    check_note,
    check_tags,
    usable_epoch,
    usable_metrics,
)
from holdfast.engine.failures import Failures
from holdfast.engine.hearing import SignalsOption
from holdfast.engine.jobs import fill_in_job
from holdfast.engine.leaving import (
    LEAST_PATIENCE_S,
    end_at_once,
    end_in_step,
    leave,
    quit_at_once,
    save_on_error,
    stop,
    wait_for_lock,
)
from holdfast.engine.ledger import Ledger
from holdfast.engine.loading import TREE_NAME, unwrap_tree
from holdfast.engine.matching import match_state
from holdfast.engine.options import (
    Every,
    background_kind,
    check_choice,
    check_keep,
    check_least,
    check_mapping,
    check_state,
    trigger_of,
)
from holdfast.engine.outcome import PendingCheckpoint, Restored
from holdfast.engine.over import Loop
from holdfast.engine.pace import Limit, Pace
from holdfast.engine.pacing import Look, saved
from holdfast.engine.provenance import begin_provenance
from holdfast.engine.restoring import Choice, Loaded, MakePlan, Plan, TreePlan
from holdfast.engine.saving import Document
from holdfast.engine.sensors.finding import Wanted
from holdfast.engine.session import Session, default_workers
from holdfast.engine.signs import Signs
from holdfast.engine.stops import OnStop, Stops
from holdfast.engine.time_left import TimeLeftOption
from holdfast.engine.unwatched import witness_or_nobody
from holdfast.engine.updates import Updates
from holdfast.engine.writing import plan_run, prune_run
from holdfast.format.arrays import LeafInfo
from holdfast.format.decode import build
from holdfast.format.manifest import Manifest
from holdfast.policy.durations import seconds_of
from holdfast.policy.keep import Keep, Verdict, keep
from holdfast.policy.lineage import choose, in_order
from holdfast.policy.moment import Decision
from holdfast.storage.files import Files
from holdfast.storage.posix import PosixStore

__all__ = ["Checkpointer"]

_log = logging.getLogger("holdfast")
_DEFAULT_KEEP = keep(last=3)
# For the journal to be told what was decided last.
_TELL_S = 5.0
# For what the program has let go, and not closed, to be durable, before the next one begins.
_DROPPED_S = 10.0


class Checkpointer:
    """Saves and restores the state of a run, as one writer at a time.

    `run` is a directory of its own (made if needed); `state` maps names to what is saved and restored in place:
    anything with state_dict/load_state_dict, arrays and tensors, random generators, mutable containers of plain values.
    """

    @public_call("holdfast.Checkpointer")
    def __init__(
        self,
        run: str | PathLike[str],
        state: Mapping[str, object] | None = None,
        *,
        every: Every = "auto",
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
        time_left: TimeLeftOption = None,
        total_steps: int | None = None,
        sensors: Wanted = "auto",
        health: str | None = None,
        ledger: bool = True,
        signals: SignalsOption = "auto",
        grace: float | str | timedelta | None = None,
        exit_code: int | None = None,
        on_stop: OnStop | None = None,
        workers: int | None = None,
        files: Files | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_keep(keep)
        check_choice("on_error", on_error, ("warn", "raise"))
        check_choice("capture", capture, get_args(CaptureMode))
        check_least("suspect_after", suspect_after, 1)
        check_least("workers", workers, 1)
        check_least("memory_bytes", memory_bytes, 0)
        check_least("total_steps", total_steps, 0)
        trigger = trigger_of(every)
        # Tests that bring their own files or clock end their processes as they like.
        is_simulated = files is not None or clock is not None
        if is_simulated and signals == "auto":
            signals = None
        self._stops = Stops(signals=signals, grace=grace, exit_code=exit_code, on_stop=on_stop)
        if isinstance(run, str | PathLike) and isinstance(
            path := os.fspath(run), str
        ):  # else the store says what it is
            run = fill_in_job(path, os.environ)
        self._signs = Signs(sensors, health)
        self._follows_loss = self._signs.follows_loss  # asked at every step
        kind = background_kind(background, files)
        self._state = check_state(state)
        self._keep = keep
        self._pickle = pickle
        self._hyperparameters = check_hyperparameters(check_mapping("hyperparameters", hyperparameters))
        self._tags = check_tags(tags)
        self._suspect_after = suspect_after
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._closed = False
        self._is_training = False
        self._is_done = False
        self._steps = 0
        # Those of the last step, for the checkpoint of the end.
        self._metrics: Mapping[str, object] = {}
        self._epoch: object = None
        # Compared with the count at every step: before that one, nothing can be due.
        self._ask_at: float = 0
        self._last: PendingCheckpoint | None = None
        self._ledger = Ledger() if ledger else None
        self._loop = Loop(self._state, random=random)
        self._updates = Updates()
        self._failures = failures = Failures(on_error)
        real_clock = clock or SystemClock()
        limit = Limit(time_left, real_clock, total_steps=total_steps)
        self._witness = witness_or_nobody()
        wait_for_dropped(_DROPPED_S)  # it may be the same run
        store = PosixStore(self._witness.place(run), create=True, files=files, clock=real_clock)
        try:
            self._session = Session(
                store, real_clock, takeover=takeover, fresh=fresh, workers=workers or default_workers()
            )
        except BaseException:
            store.close()
            raise
        self._provenance = begin_provenance()
        self._signs.attach(self._session)
        self._pace = Pace(trigger, self._session, limit=limit, note=self._session.tell, signs=self._signs)
        # Not by itself: one that a program drops is let go at once.
        end = weakref.WeakMethod(self._end_in_step)
        self._pace.end_in_step = lambda: (call := end()) is not None and call()
        self._stager: Stager | None
        self._recall: Recall | None
        self._stager, self._recall = start_background(
            self._session,
            self._state,
            keep,
            kind=kind,
            capture=capture,
            memory_bytes=memory_bytes,
            files=files,
            on_failure=failures.report_background,
        )
        self._saver = Saver(
            self._session, self._state, self._stager, keep=keep, random=random, pickle=pickle, failures=failures
        )
        self._restorer = Restorer(
            self._session,
            self._stager,
            self._recall,
            random=random,
            provenance=self._provenance,
            hyperparameters=self._hyperparameters,
            before_choosing=self._signs.mark,
        )
        finish_at_exit(self._finish)
        self._is_dropped_finished = not is_simulated
        self._pace.watch_limit()
        self._asked = _Asked(self)
        self._stops.attach(self._asked)
        self._witness.attach(run, self._saver.encode, self._state, close=self._finish)

    @property
    def attempt(self) -> int:
        """The number of this attempt; it rises with every start of the job, and with every rollback."""
        return self._session.attempt

    @public_call("holdfast.Checkpointer.save")
    def save(
        self,
        *,
        step: int | None = None,
        epoch: int | None = None,
        metrics: Mapping[str, object] | None = None,
        note: str = "",
        tags: Iterable[str] = (),
        tree: object = None,
    ) -> PendingCheckpoint:
        """Save now. Bad input raises; a storage that fails is a warning and `.error`, unless on_error="raise" (I7).

        Where `step()` counts, `step` is by default what it has counted.
        """
        self._check_owner()
        if step is None:
            step = self._loop.step_of(self._steps)
        if self._loop.open:
            self._take(check_count("step", step))
        pending = self._save(step, epoch, metrics, note=note, tags=tags, tree=tree)
        self._is_training = True
        if self._pace.is_asked_to_stop:
            with self._lock:
                self._stop(saved(self._pace.why_stopping), step, epoch, {})
        return pending

    def _save(
        self,
        step: int,
        epoch: int | None,
        metrics: Mapping[str, object] | None,
        *,
        note: str,
        tags: Iterable[str] = (),
        tree: object = None,
        is_last: bool = False,
    ) -> PendingCheckpoint:
        epoch = self._loop.completed if epoch is None else check_count("epoch", epoch)
        # In the foreground a save may take long, and what it leaves behind is no more than after a crash.
        deferred = nullcontext() if self._stager is None else interrupts_deferred()
        with deferred, self._lock, collector_paused():
            self._check_usable()
            warn_of_nondeterminism()
            numbers = check_metrics(metrics)
            self._signs.note_loss(check_count("step", step), numbers, fetch=True)
            self._signs.note_metrics(step, numbers)
            self._session.safe_before = self._signs.safe_before
            document = Document(
                step=check_count("step", step),
                epoch=epoch,
                metrics=numbers,
                suspect=self._signs.suspect,
                note=check_note(note),
                tags=check_tags((*self._tags, *check_tags(tags))),
                hyperparameters=self._hyperparameters,
                provenance=self._provenance(),
                ledger=None if self._ledger is None else self._ledger.plain(),
            )
            if is_last and self._stager is not None and self._is_full():
                self._stager.settle(self._pace.wait_s())  # nobody comes back for this one: it is not left out
            # Not before: to wait for others is no cost of this one, which the next attempt would go by.
            began_s = self._session.clock.monotonic_s()
            encode = None if tree is None else lambda: self._saver.encode(tree)
            with self._witness.saving(document.step, epoch, numbers, encode):
                self._last = pending = self._saver.save(document, tree, is_last=is_last)
            self._pace.note_saved(pending, self._session.clock.monotonic_s() - began_s, epoch=epoch)
            if not self._witness.is_in_step:
                self._witness.leave(document.step, pending)
            return pending

    def step(self, *, epoch: int | None = None, **metrics: object) -> PendingCheckpoint | None:
        """Count a step of the training, and save when one is due (`every`); the save, or None.

        A save that is due while two are still on their way to the disk is skipped and counted: the training does not
        wait for the storage. Where the job's time is nearly over, saves, waits for that, and ends the program with the
        status 85, which asks for a restart.
        """
        self._steps += 1
        self._metrics = metrics
        self._epoch = epoch
        if self._loop.open:
            self._take(self._steps)
        if self._follows_loss:
            self._signs.note_loss(self._steps, metrics, fetch=False)
        if self._steps < self._ask_at:
            return None
        return self._look(self._loop.completed if epoch is None else check_count("epoch", epoch), metrics)

    @public_call("holdfast.Checkpointer.over")
    def over(self, data: object, *, epochs: int) -> Iterator[Any]:
        """The batches of `data` that are left, until that many epochs are complete; each sample once per epoch.

        `data` is one of `holdfast.data`, and in the state. `step` and `save` know the epoch from it: how many are
        complete.
        """
        self._check_owner()
        self._check_usable()
        self._stops.reason = ""
        return self._loop.over(data, epochs)

    @public_call("holdfast.Checkpointer.stop")
    def stop(self, reason: str = "the program said so", *, grace_s: float | None = None) -> None:
        """Have the next `step` save and end the program with the status 85. May be called by a signal handler.

        `grace_s` is when the program will be killed. Where no step ends before that, what was copied last is made
        durable, and the program is ended in the middle of the step.
        """
        self._check_owner()
        if grace_s is not None:
            grace_s = seconds_of(grace_s, "grace_s")
        self._asked.ask_to_stop(check_note(reason) or "the program said so", grace_s, None)

    @property
    def stopped(self) -> str:
        """Why the training was to stop, where that has happened with on_stop="return"; empty where it has not."""
        return self._stops.reason

    def due(self, *, epoch: int | None = None, **metrics: object) -> Decision:
        """Whether `step` would save if it were called now, and why or why not."""
        self._check_owner()
        with self._lock:
            self._check_usable()
            epoch = self._loop.completed if epoch is None else check_count("epoch", epoch)
            decision = self._pace.peek(self._steps + 1, epoch, metrics)
        if decision.due:
            self._ask_at = 0  # that step must not find later that it was too early to ask
        return decision

    @public_call("holdfast.Checkpointer.restore")
    def restore(
        self,
        which: str | int = "latest",
        *,
        strict: bool = True,
        rename: Mapping[str, str] | None = None,
        by: str | None = None,
        mode: str = "min",
    ) -> Restored | None:
        """Load a checkpoint into the state, in place; None where the run has none yet.

        `which` is "latest", "best" (by a metric), a step, or an id. Damaged checkpoints are quarantined and the next
        older good one is used; RestoreError where none is left (I12), StateMismatchError where the program's state
        differs, before anything is touched.
        """

        def match(manifest: Manifest, leaves: Sequence[LeafInfo]) -> Plan:
            return match_state(
                manifest.body.tree,
                leaves,
                self._state,
                strict=strict,
                rename=rename,
                allow_pickle=self._pickle,
                what=f"step {manifest.checkpoint.step} of {self._session.store.location}",
            )

        loaded = self._restore(Choice(which, by, mode, self._suspect_after if which == "latest" else None), match)
        return None if loaded is None else Restored(loaded)

    @public_call("holdfast.Checkpointer.load")
    def load(
        self,
        which: str | int = "latest",
        *,
        like: object = None,
        by: str | None = None,
        mode: str = "min",
    ) -> object:
        """The tree that `save(tree=...)` was given, in new memory; None where the run has no checkpoint yet.

        The training goes on from it, as after `restore`. `like` is a tree of the same shape whose classes are used.
        """

        def plan(manifest: Manifest, leaves: Sequence[LeafInfo]) -> Plan:
            given = None if like is None else {TREE_NAME: like}
            return TreePlan(build(manifest.body.tree, leaves, like=given, allow_pickle=self._pickle))

        choice = Choice(which, by, mode, self._suspect_after if which == "latest" else None)
        loaded = self._restore(choice, plan, tree_of=lambda found: unwrap_tree(found.value))
        return None if loaded is None else unwrap_tree(loaded.value)

    def checkpoints(self) -> list[Checkpoint]:
        """What the run holds, oldest first, damaged ones included (`quarantined` or `damaged` says why)."""
        self._check_owner()
        with self._lock:
            self._check_usable(restoring=True)
            return in_order(self._session.catalog().checkpoints)

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Around code that changes parameters or moments outside of `optimizer.step()`; waits for a running capture."""
        with nullcontext() if self._stager is None else self._stager.updating(), self._updates.announced():
            yield

    def status(self) -> Status:
        """What is durable, what it cost, and what is being written; `str()` gives a line for a terminal."""
        self._check_owner()
        if self._stager is None:
            step = self._last.step if self._last is not None and self._last.durable else None
            return Status(step, step, 0.0, self._session.seq, 0, 0, "saving in the foreground")
        return self._stager.status()

    @public_call("holdfast.Checkpointer.wait")
    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the last save is durable; raises what went wrong."""
        self._check_owner()
        if self._last is not None:
            self._last.wait(timeout_s)

    @public_call("holdfast.Checkpointer.pin")
    def pin(self, which: str | int = "latest", *, note: str = "") -> str:
        """Keep a checkpoint whatever retention says; its id. `holdfast unpin` undoes it."""
        self._check_owner()
        with self._lock:
            self._check_usable(restoring=True)
            chosen = choose(self._session.catalog().checkpoints, which, where=self._session.store.location)[0]
            pin(self._session.store, chosen.id, reason=check_note(note), clock=self._session.clock)
            return chosen.id

    @public_call("holdfast.Checkpointer.prune")
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
        if isinstance(error, Exception) and not isinstance(error, Stopped) and self._is_open_here():
            self._note_error()
            save_on_error(
                error,
                self._steps,
                self._pace,
                self._updates,
                self._save_at_error,
            )
        try:
            # Ctrl-C and sys.exit() are wanted.
            self._close(clean=error is None, error=type(error).__name__ if isinstance(error, Exception) else "")
        except SaveFailedError as failure:
            if error is None:
                raise
            # The program's own exception matters more; this one is said, not lost (I8).
            _log.error("%s", failure)

    def _finish(self) -> None:
        """At the end of a program that did not close it: nobody knows whether the attempt ended as it should.

        Only an exception that nobody caught, which Python keeps for debuggers, tells that it did not.
        """
        raised: type[BaseException] | None = getattr(sys, "last_type", None)
        self._note_error()
        self._close(clean=False, error=raised.__name__ if raised is not None and issubclass(raised, Exception) else "")

    def __del__(self) -> None:
        # Before it is set, a constructor has raised, and has let go what it had.
        if not getattr(self, "_is_dropped_finished", False) or not self._is_open_here():
            return
        # No lock is taken: this may be a thread of our own, in the middle of something that holds it.
        try:
            self._pace.end_last_call()
            if self._pace.is_asked_to_stop:
                self._stops.leave_unanswered()
            # Now: only here may this be the thread that can put handlers back.
            self._stops.let_signals_go()
        finally:
            finish_dropped(self._finish)

    def _failure_of_last(self) -> SaveFailedError | None:
        if self._last is None or (error := self._last.error) is None:
            return None
        failure = SaveFailedError(
            f"the last checkpoint (step {self._last.step}) did not become durable: {error.message}", hint=error.hint
        )
        failure.__cause__ = error
        return failure

    def _note_error(self) -> None:
        """Of a program that was asked to stop: should it end because of that, it wants to be started again."""
        if self._pace.is_asked_to_stop:
            restart_after_error(self._stops.status)

    def _is_open_here(self) -> bool:
        return not self._closed and os.getpid() == self._pid

    def _look(self, epoch: int | None, metrics: Mapping[str, object]) -> PendingCheckpoint | None:
        """At the end of a step: save if that is due, and stop if the job's time is over."""
        self._check_owner()
        metrics = {name: value for name, value in metrics.items() if value is not None}  # None: there is none
        if "step" in metrics:
            raise UsageError("step() counts by itself; step= is no metric", hint="save(step=...) takes a number")
        with self._lock:
            self._check_usable()
            self._witness.note_step(self._steps, epoch, metrics)
            look = self._pace.look(self._steps, epoch, metrics, writing=self._is_writing())
            if not (self._is_training or look.stops):
                check_kinds(metrics)  # whoever is told at the first step loses nothing; a stop saves in any case
            is_wanted = self._witness.wants_save(self._steps) or self._pace.is_asked_to_save
            pending = None
            self._is_training = True
            if look.stops:
                self._stop(look, self._steps, epoch, metrics)
                pending = self._last
            elif look.decision.due and not is_wanted and self._is_full():
                assert self._stager is not None
                self._stager.skipped += self._pace.note_skipped()
            elif look.decision.due or is_wanted:
                pending = self._save(self._steps, epoch, metrics, note="")
            self._pace.leave(writing=self._is_writing())
            self._ask_at = self._pace.ask_at
            self._witness.leave(self._steps, pending)
            # Looked at last: it may be asked to stop at any moment.
            if self._pace.is_asked_to_stop or self._pace.is_asked_to_save or self._witness.sees_every_step:
                self._ask_at = 0
            return pending

    def _stop(self, look: Look, step: int, epoch: int | None, metrics: Mapping[str, object]) -> None:
        """Save, wait for that, and end the program; or come back, where the program does that by itself."""
        reason = self._pace.why_stopping or look.why

        def finish(said: str) -> None:
            if self._stops.on_stop == "exit":
                wait_s = self._pace.wait_s() if look.waits else 0.0
                status = self._stops.status
                restart_after_error(status)  # should that be caught, and the program fail since it is closed
                leave(
                    said,
                    self._pace,
                    close=lambda: self._close(clean=False, within_s=wait_s),
                    depart=lambda left_s: self._stops.depart(left_s, lambda: end_at_once(step, status=status)),
                    status=status,
                )
            self._pace.go_on()
            self._loop.is_stopped = True
            self._ask_at = 0
            self._stops.stopped(said, reason)

        stop(
            look,
            step,
            self._pace,
            save=lambda *, with_metrics: self._save(
                step, epoch, metrics if with_metrics else None, note="", is_last=True
            ),
            note=self._session.tell,
            finish=finish,
        )

    def _end_in_step(self) -> bool:
        """By another thread, when the time is over; whether to call it again.

        Where a step has just ended, that is for the step to do, as long as there is time for it.
        """
        is_held = wait_for_lock(self._lock, self._pace, is_restoring=self._restorer.is_restoring)
        try:
            if not self._pace.is_ending:
                end_in_step(
                    self._steps,
                    self._pace,
                    note=self._session.tell,
                    flush=self._session.flush,
                    status=self._stops.status,
                )
        finally:
            if is_held:
                self._lock.release()
        if self._pace.quits:
            quit_at_once(self._steps, self._pace)
        if self._pace.is_over():
            end_at_once(self._steps, status=self._stops.status)
        return True

    def _close(self, *, clean: bool, error: str = "", within_s: float = math.inf) -> None:
        if os.getpid() != self._pid:
            return  # it is the parent's, and so may be the lock
        failure: HoldfastError | None = None
        with self._lock:
            if clean and not self._closed:
                failure = self._save_the_end()
            if self._stager is not None and not self._closed:
                self._stager.settle(within_s)  # what takes its time can be interrupted, and close() called again
        with interrupts_deferred(), self._lock:
            if self._closed:
                return
            self._closed = True
            self._ask_at = 0
            is_finished(self._finish)
            self._pace.close()
            # Where the storage hangs, whoever touches it does not come back, and the process could not end either.
            is_written = self._stager is None or self._stager.close(within_s)
            if is_written and self._session.flush(max(LEAST_PATIENCE_S, min(within_s, _TELL_S))):
                if self._recall is not None:
                    self._recall.remove_old_arenas()
                self._session.journal.record("closed", clean=clean, error=error)
            self._signs.close()
            self._is_done = clean
            try:
                self._session.close()
                self._provenance()  # no child process stays behind
                self._pace.release()
            finally:
                if clean and self._pace.is_asked_to_stop:
                    self._stops.leave_unanswered()
                self._stops.close()  # from here on, Ctrl-C interrupts
            if failure is not None:
                raise failure
            if (of_last := self._failure_of_last()) is not None:
                raise of_last

    def _save_the_end(self) -> HoldfastError | None:
        """Where that is left to us; why it could not be, for the run is closed all the same."""
        try:
            with self._loop.put_back() as is_whole:
                is_complete = self._loop.is_complete
                if self._pace.due_at_end(self._steps, is_complete=is_complete, is_whole=is_whole).due:
                    epoch, metrics = usable_epoch(self._epoch), usable_metrics(self._metrics)
                    self._save(self._steps, epoch, metrics, note="the end of the program", is_last=True)
                    self._failures.raise_background()
        except HoldfastError as error:
            return error
        return None

    def _save_at_error(self, note: str) -> None:
        """What is consistent: the state after the last step."""
        with self._loop.put_back() as is_whole:
            if not is_whole:
                raise StateError("batches were used since the last step(), and the data cannot go back")
            self._save(self._steps, usable_epoch(self._epoch), None, note=note, tags=("error",), is_last=True)

    def _restore(
        self,
        choice: Choice,
        make_plan: MakePlan,
        *,
        tree_of: Callable[[Loaded], object] = lambda _: None,
    ) -> Loaded | None:
        self._check_owner()
        with self._lock, collector_paused():
            self._check_usable(restoring=True)
            loaded, adopted = self._restorer.restore(choice, make_plan)
            if adopted is not None:
                self._last = adopted
        if loaded is not None:
            self._steps = loaded.checkpoint.step
            self._loop.open.clear()
            if self._ledger is not None:
                self._ledger = Ledger.restored(loaded.ledger)
            self._pace.note_restored(loaded.checkpoint)
            self._stops.tell()
            self._signs.note_restored(self._steps)
            warn_of_nondeterminism()
            self._ask_at = 0
            tree = tree_of(loaded)
            self._witness.note_restored(self._steps, None if tree is None else lambda: self._saver.encode(tree))
            _log.info("goes on from step %d, restored from %s", self._steps, loaded.where)
        else:
            self._witness.note_nothing()
        for drift in loaded.drift if loaded is not None else ():
            _log.info("since the checkpoint was saved: %s", drift)
        return loaded

    def _take(self, step: int) -> None:
        """What was handed out belongs to that step."""
        if self._ledger is not None:
            for name, _, handed, facts in self._loop.open:
                self._ledger.note(name, attempt=self._session.attempt, step=step, handed=handed, facts=facts)
        self._loop.open.clear()

    def _is_writing(self) -> bool:
        return self._stager is not None and self._stager.background.is_busy()

    def _is_full(self) -> bool:
        return self._stager is not None and self._stager.background.is_full()

    def _check_usable(self, *, restoring: bool = False) -> None:
        if self._closed:
            raise UsageError("this Checkpointer is closed", hint="make a new one")
        if not restoring:
            self._restorer.check_whole()

    def _check_owner(self) -> None:
        """To be asked before a lock: one that another thread had at the time of a fork is never released in a child."""
        if os.getpid() != self._pid:
            raise UsageError(
                f"this Checkpointer belongs to process {self._pid}, not to its forked child {os.getpid()}",
                hint="save in the process that made it",
            )


class _Asked:
    """A Checkpointer in the eyes of signals and supervisors, who do not keep it alive."""

    def __init__(self, checkpointer: Checkpointer) -> None:
        self._there = weakref.ref(checkpointer)
        self._pace = checkpointer._pace
        self._run = os.path.abspath(checkpointer._session.store.location)

    def begin_cell(self) -> None:
        """Of a notebook: it is not known yet whether this one trains."""
        there = self._there()
        if there is not None:
            there._is_training, there._ask_at = False, 0
            if self._pace.is_asked_to_stop:
                self._pace.go_on()  # that was meant for a cell before

    def is_training(self) -> bool:
        there = self._there()
        return there is not None and there._is_training and not there._closed

    def ask_to_stop(self, reason: str, sure_s: float | None, likely_s: float | None) -> None:
        self._pace.ask_to_stop(reason, sure_s, likely_s)
        self._look_again()

    def ask_to_save(self) -> None:
        self._pace.ask_to_save()
        self._look_again()

    def ask_to_quit(self) -> None:
        self._pace.ask_to_quit()

    def tell(self, event: str, **details: object) -> None:
        there = self._there()
        if there is not None:
            there._session.tell(event, **details)

    def beat(self) -> Beat | None:
        there = self._there()
        if there is None:
            return None
        return Beat(
            pid=os.getpid(),
            run=self._run,
            attempt=there._session.attempt,
            step=there._steps,
            durable_step=self._pace.durable_step(),
            total_steps=self._pace.total_steps,
            # A signal that comes after the last step does not end a program that has nothing more to do.
            stopping="" if there._is_done else self._pace.why_stopping,
            from_step=self._pace.from_step(),
        )

    def _look_again(self) -> None:
        there = self._there()
        if there is not None:
            there._ask_at = 0
