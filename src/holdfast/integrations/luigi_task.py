"""Tasks of luigi that go on where they were, however they ended: `class Train(CheckpointedTask)`.

Only the finished result is the task's output; what is on the way to it lies in a run of the task's own.
"""

import hashlib
import logging
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeGuard

from holdfast.checkpointer import Checkpointer
from holdfast.core.clock import SystemClock
from holdfast.core.errors import HoldfastError, Interrupted, RunBusyError, Stopped
from holdfast.core.names import is_valid_name
from holdfast.engine.catalog import read_catalog
from holdfast.engine.commit import remove_checkpoint
from holdfast.engine.identity import identify
from holdfast.engine.jobs import find_job, restart_status
from holdfast.engine.journal import Journal
from holdfast.integrations.luigi_worker import end_forgotten, ends_with_worker, has_own_process, phase_out_worker
from holdfast.storage.posix import PosixStore

try:
    import luigi
    import luigi.worker
except ModuleNotFoundError as missing:
    if missing.name != "luigi":
        raise  # luigi is there, and lacks something itself
    raise ImportError(
        "holdfast.integrations.luigi_task needs luigi, which is not installed: pip install 'holdfast[luigi]'",
        name="luigi",
    ) from None

__all__ = ["CheckpointedTask", "TaskStoppedError", "run_name"]

_log = logging.getLogger("holdfast")
# 31 years: luigi gives a process of its own to a task that has any timeout.
_NO_TIMEOUT_S = 1_000_000_000
_UNSAFE = re.compile(r"[^A-Za-z0-9_]")
_READABLE_CHARS = 100


class TaskStoppedError(Stopped):
    """The task was asked to end before it was done, and has saved; for luigi a failure, so that it is run again."""


class CheckpointedTask(luigi.Task):  # type: ignore[misc]  # luigi is optional, and Any to the type checker
    """A task whose `run` goes on from its last checkpoint: `with self.checkpointer(state) as ckpt:`."""

    checkpoint_directory: str = "checkpoints"
    """Where the runs of tasks are; may be a parameter. All workers that may run the task have to see the same."""
    keep_checkpoints: bool = True
    """Whether they stay once the task is complete."""
    own_process: bool = True
    """Whether the task has a process of its own, also with one worker: if it is killed, luigi goes on."""
    # More than the time limits of jobs need, and few enough that a task with a bug does not go on for weeks.
    retry_count = 50
    disable_window = 86_400

    @property
    def worker_timeout(self) -> int | None:
        """As luigi is configured; for a process of its own there has to be one."""
        if not self.own_process:
            return None
        configured: int = luigi.worker.worker().timeout
        return configured or _NO_TIMEOUT_S

    @property
    def checkpoint_run(self) -> str:
        """The run of this task: the same in every attempt, another one for other (significant) parameters."""
        return os.path.join(self.checkpoint_directory, run_name(self.task_id))

    @contextmanager
    def checkpointer(self, state: Mapping[str, object] | None = None, **options: Any) -> Iterator[Checkpointer]:
        """A Checkpointer on the task's run, closed at the end of the block; options are those of Checkpointer.

        Where it stops the program (a signal, the end of the job's time), that is a TaskStoppedError.
        """
        shut_down = signal.getsignal(signal.SIGUSR1)  # before the Checkpointer has one
        ckpt = None
        try:
            with ends_with_worker(), self._open(state, options) as ckpt:
                yield ckpt
        except Interrupted:
            raise  # Ctrl-C is meant for the worker, too
        except (Stopped, SystemExit) as ending:
            status = restart_status(options.get("exit_code"), os.environ)
            if ckpt is None or (isinstance(ending, SystemExit) and ending.code != status):
                raise
            if _is_of_luigi(shut_down) and (not has_own_process() or _is_in_batch_job()):
                # It is the worker that was asked to end, or its job that does: it would begin anew with seconds left.
                phase_out_worker(shut_down)
            raise _stopped(self.task_id, ckpt.status().durable_step, status) from None

    def _open(self, state: Mapping[str, object] | None, options: Mapping[str, Any]) -> Checkpointer:
        run = self.checkpoint_run
        try:
            return Checkpointer(run, state, **options)
        except RunBusyError:
            # Only in a run that is no other task's.
            if os.path.basename(run) != run_name(self.task_id) or not end_forgotten(run):
                raise
            _log.warning("%s: luigi has forgotten a process of this task, which was still running; it was ended", run)
            return Checkpointer(run, state, **options)

    def on_failure(self, exception: BaseException) -> object:
        if isinstance(exception, TaskStoppedError):
            return str(exception)
        return super().on_failure(exception)

    def on_success(self) -> object:
        # Luigi does not ask whether there is an output: without one, the checkpoints are all there is.
        if not self.keep_checkpoints and self.complete():
            try:
                _remove_checkpoints(self.checkpoint_run)
            except HoldfastError as error:
                # The task is done; as a failure it would be run once more.
                _log.warning("%s: the checkpoints could not be removed: %s", self.task_id, error)
        return super().on_success()


def run_name(task_id: str) -> str:
    """The id that luigi gives a task, as the name of one directory."""
    if is_valid_name(task_id):
        return task_id
    # Names of classes may have any letters, and any length.
    digest = hashlib.sha256(task_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{_UNSAFE.sub('_', task_id[:_READABLE_CHARS])}_{digest}"


def _is_of_luigi(handler: object) -> TypeGuard[Callable[[int, None], object]]:
    """Where the worker has another one, the signal might kill it before it knows how the task ended."""
    return isinstance(getattr(handler, "__self__", None), luigi.worker.Worker)


def _is_in_batch_job() -> bool:
    job = find_job(os.environ)
    return job is not None and bool(job.scheduler)


def _stopped(task_id: str, durable_step: int | None, status: int) -> TaskStoppedError:
    saved = "nothing new was saved" if durable_step is None else f"step {durable_step} is saved"
    return TaskStoppedError(
        f"{task_id} was stopped before it was done; {saved}",
        hint="luigi runs it again, if its worker waits for that ([worker] keep_alive = true), or when it is started",
        status=status,
    )


def _remove_checkpoints(run: str) -> None:
    """All but those that are pinned."""
    if not os.path.isdir(run):
        return
    store = PosixStore(run)
    try:
        doomed = [found.id for found in read_catalog(store, identify(store)).checkpoints if not found.pinned]
        for checkpoint_id in doomed:
            remove_checkpoint(store, checkpoint_id, attempt=None)
        Journal(store, SystemClock(), 0).record("removed", by="a complete luigi task", removed=doomed)
    finally:
        store.close()
