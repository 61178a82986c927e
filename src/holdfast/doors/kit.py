"""The Checkpointer of KIT (Eppelt, Schnepf, De Pietro, Quast) on holdfast's engine: scripts change their import only.

A file that a function of the user writes is the checkpoint; here it is written whole or not at all, verified before it
is restored, and kept in a run beside it, which `holdfast ls`, `verify` and `show` know.
"""

import inspect
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from holdfast.agent.exiting import finish_at_exit
from holdfast.core.calls import public_call
from holdfast.core.errors import FormatError, HoldfastError, RunError, SaveFailedError, UsageError
from holdfast.doors.kit_catalogue import Catalogue
from holdfast.doors.kit_files import (
    Note,
    aside,
    check_written,
    digest_of,
    put_in_place,
    remove_leftovers,
    remove_local,
    write_note,
)
from holdfast.doors.kit_finding import bring_local
from holdfast.doors.kit_signals import is_asked, leave_if_asked, leave_now, watch
from holdfast.doors.kit_transfer import MODES, choose_transfer, condor_settings
from holdfast.engine.beats import BEATS_VARIABLE, Beat, Beats
from holdfast.engine.documents import check_count
from holdfast.engine.jobs import restart_status
from holdfast.engine.options import check_choice
from holdfast.policy.durations import seconds_of

__all__ = ["Checkpointer"]

_log = logging.getLogger("holdfast")

# Schedulers give tens of seconds, and the checkpoint still has to be made.
_PATIENCE_S = 5.0
_LEAST_PATIENCE_S = 0.5


class Checkpointer:
    """Keeps one file, the checkpoint, through the ends of a job.

    On SIGTERM, SIGUSR1 and SIGINT the last value of `step` is checkpointed and transferred, and the program ends with
    `checkpoint_exit_code`, or with 74 where that failed: then the local file stays.
    """

    @public_call("holdfast.doors.kit.Checkpointer")
    def __init__(
        self,
        local_checkpoint_file: str | os.PathLike[str],
        checkpoint_function: Callable[..., object],
        restore_function: Callable[[Path], Any] | None,
        checkpoint_transfer_mode: str | None = "None",
        checkpoint_transfer_target: str | os.PathLike[str] | None = None,
        xrootd_server_name: str | None = None,
        checkpoint_transfer_callback: Callable[..., object] | None = None,
        checkpoint_transfer_callback_kwargs: Mapping[str, Any] | None = None,
        checkpoint_every: int = 10,
        on_SIGTERM_prehook: Callable[..., object] | None = None,  # noqa: N803  the name that scripts use
        on_SIGTERM_prehook_kwargs: Mapping[str, Any] | None = None,  # noqa: N803
        *,
        checkpoint_exit_code: int | None = None,
        transfer_timeout_s: float = 300.0,
    ) -> None:
        self.local_checkpoint_file = _path_of(local_checkpoint_file)
        _check_callable("checkpoint_function", checkpoint_function)
        _check_callable("restore_function", restore_function, optional=True)
        _check_callable("on_SIGTERM_prehook", on_SIGTERM_prehook, optional=True)
        mode = "None" if checkpoint_transfer_mode is None else checkpoint_transfer_mode
        check_choice("checkpoint_transfer_mode", mode, MODES)
        if check_count("checkpoint_every", checkpoint_every) < 1:
            raise UsageError(f"checkpoint_every is {checkpoint_every}, expected at least 1")
        self.checkpoint_function = checkpoint_function
        self.restore_function = restore_function
        self.checkpoint_transfer_mode = mode
        self.checkpoint_transfer_target = checkpoint_transfer_target
        self.xrootd_server_name = xrootd_server_name
        self.checkpoint_every = checkpoint_every
        self.on_SIGTERM_prehook = on_SIGTERM_prehook
        self.on_SIGTERM_prehook_kwargs = dict(on_SIGTERM_prehook_kwargs or {})
        self.checkpoint_exit_code = restart_status(checkpoint_exit_code, {})
        self.checkpoint_value: Any = None
        self.step_counter = 0
        # Where the program goes to another directory meanwhile, the file does not.
        self._file = Path(os.path.abspath(self.local_checkpoint_file))
        self._transfer = choose_transfer(
            mode,
            self._file,
            target=checkpoint_transfer_target,
            server=xrootd_server_name,
            callback=checkpoint_transfer_callback,
            kwargs=checkpoint_transfer_callback_kwargs,
            timeout_s=seconds_of(transfer_timeout_s, "transfer_timeout_s"),
        )
        self._catalogue = self._transfer.catalogue or Catalogue(self._file)
        if mode == "htcondor":
            self.checkpoint_transfer_target, self.checkpoint_exit_code = condor_settings(self._file, os.environ)
        self.is_busy = False
        self._last_step_s: float | None = None
        self._step_took_s = 0.0
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._is_begun = False
        self._is_sent: bool | None = None  # the local file; None while nothing is known of it
        self._is_tidy = False
        self._is_beating = False
        self._failure: Exception | None = None
        self._progress = _Progress()
        self._beats = Beats(os.environ.get(BEATS_VARIABLE), partial(_beat, self._catalogue, self._progress))
        finish_at_exit(self._finish)
        for close in (self._beats.close, self._catalogue.close):
            weakref.finalize(self, close).atexit = False
        watch(self)

    def step(self, value: Any, *more: Any) -> None:
        """Remember the value; at the first call and every `checkpoint_every`-th after it, checkpoint and transfer it.

        A storage that fails is a warning, and the exit status 74 if it stays so until the end. Of `step(i, model)`, all
        goes to a checkpoint_function that takes it; to one that takes a path and a value, the last.
        """
        with self._working():
            self.checkpoint_value = _values(value, more)
            self._is_begun = True
            self._note_time()
            is_due = self.step_counter % self.checkpoint_every == 0
            self.step_counter += 1
            self._progress.step += 1
            if is_due and not is_asked():
                self._try_to_keep()

    def checkpoint(self, value: Any = None, *more: Any) -> None:
        """Write the checkpoint, of the last value where none is given. It is not transferred."""
        with self._working():
            if value is not None or more:
                self.checkpoint_value = _values(value, more)
            self._is_begun = True
            if self._last_step_s is None:
                self._progress.step += 1
            self._write()

    def restore(self, default: Any = None) -> Any:
        """What `restore_function` reads from the newest checkpoint; the default where there is none.

        IntegrityError or RestoreError where there are some, and all are damaged; StorageError where the storage does
        not say: nobody starts from scratch by mistake (I12).
        """
        with self._working():
            self._bring_local()
            if self.restore_function is None or not self._file.exists():
                return default
            return self.restore_function(self._file)

    def transfer_checkpoint(self) -> None:
        """Have the checkpoint in the configured storage; HoldfastError where that failed."""
        with self._working():
            self._send()

    def transfer_checkpoint_files(self) -> None:
        """The same, as the published code calls it."""
        self.transfer_checkpoint()

    def get_checkpoint(self) -> None:
        """Fetch the newest checkpoint from the configured storage, and verify the local file."""
        with self._working():
            self._bring_local()

    @property
    def checkpoint_exists(self) -> bool:
        """Whether `restore` would find something. In manual mode only by fetching it."""
        with self._working():
            is_there = self._transfer.has_any()
            if is_there is None:
                with aside(self._file) as folder:
                    is_there = self._transfer.fetch(folder / self._file.name)
            is_local = self._file.exists() or (self._transfer.removes_local is False and self._catalogue.has_any())
            return is_there or is_local

    def clean_up_local_checkpoint_files(self) -> None:
        """Remove the local file, where the checkpoint was transferred to somewhere else."""
        if self._transfer.removes_local:
            remove_local(self._file)

    def on_SIGTERM(self, signalNumber: int, frame: FrameType | None = None) -> NoReturn:  # noqa: N802, N803
        """End the program now as a signal would."""
        del frame
        leave_now(signalNumber)

    @property
    def step_within_s(self) -> float:
        """How long to wait for the next `step` when the end is announced: then the value is whole."""
        if self._last_step_s is None or self._step_took_s > _PATIENCE_S:
            return 0.0
        return min(_PATIENCE_S, _LEAST_PATIENCE_S + 2 * self._step_took_s)

    def leave(self, number: int) -> int | None:
        """Before the program ends: called by the signal's handler, or by the step that follows it."""
        self._progress.stopping = f"signal {number}"
        self._run_prehook()
        try:
            with self._lock:
                self._keep_last()
        except Exception as error:  # noqa: BLE001  whatever it is, the status must not be that of a kept checkpoint (I8)
            self._failure = error
            _log.error("no checkpoint of step %d could be kept: %s", self._progress.step, error)
            _log.error("%s stays; the status is not %d", self._file, self.checkpoint_exit_code)
            return None
        self._failure = None
        step, status = self._progress.step, self.checkpoint_exit_code
        # A warning, so that it is seen: a program that ends without a word looks like one that crashed.
        _log.warning("stopping at step %d, on signal %d; status %d", step, number, status)
        return status

    def _keep_last(self) -> None:
        if self._is_begun or self.checkpoint_value is not None:
            self._write()
        if self._is_sent is False:
            self._send()
        if self._is_sent:
            self.clean_up_local_checkpoint_files()

    def _note_time(self) -> None:
        now_s = time.monotonic()
        if self._last_step_s is not None:
            self._step_took_s = now_s - self._last_step_s
        self._last_step_s = now_s

    def _run_prehook(self) -> None:
        if self.on_SIGTERM_prehook is None:
            return
        try:
            self.on_SIGTERM_prehook(**self.on_SIGTERM_prehook_kwargs)
        except (Exception, SystemExit):  # noqa: BLE001  the checkpoint matters more
            _log.exception("on_SIGTERM_prehook failed")

    def _try_to_keep(self) -> None:
        try:
            self._write()
            self._send()
            self._failure = None
        except (OSError, FormatError) as error:
            if isinstance(error, RunError) and self._progress.kept_step is None:
                raise  # it never worked, and will not get better by itself
            self._failure = error
            _log.warning("the checkpoint of step %d is not kept: %s", self._progress.step, error)

    def _write(self) -> None:
        """The local file: complete, durable and with a known digest before it has its name."""
        if not self._is_tidy:
            remove_leftovers(self._file)
            self._is_tidy = True
        with aside(self._file) as folder:
            new = folder / self._file.name
            self.checkpoint_function(new, *_arguments(self.checkpoint_function, self.checkpoint_value))
            check_written(new, "checkpoint_function")
            digest = digest_of(new)
            # Before it has its name: a crash in between leaves the older file, and a run that knows the newer one.
            if self._transfer.catalogue is None:
                self._catalogue.save(new, digest, step=self._progress.step)
            else:
                write_note(self._file, Note(digest, after=self._catalogue.digest))
            put_in_place(new, self._file)
        self._is_sent = False
        if not self._transfer.removes_local:
            self._progress.kept_step = self._progress.step

    def _send(self) -> None:
        if self._file.exists():
            is_away = self._transfer.removes_local and self._transfer.catalogue is None
            digest = digest_of(self._file) if is_away else ""  # before it is sent: a callback may move it
            self._transfer.send(self._file, step=self._progress.step)
            if is_away:
                # The run forgets it after two more; those say that they were made after it.
                self._catalogue.transferred = digest
            self._is_sent = True
            self._progress.kept_step = self._progress.step

    def _bring_local(self) -> None:
        self._is_sent = bring_local(self._file, self._catalogue, self._transfer)
        self._progress.step = self._progress.from_step = self._catalogue.step

    @contextmanager
    def _working(self) -> Iterator[None]:
        if os.getpid() != self._pid:
            raise UsageError(
                f"this Checkpointer belongs to process {self._pid}, not to its forked child {os.getpid()}",
                hint="checkpoint in the process that made it",
            )
        is_inner = False
        try:
            with self._lock:
                is_inner, self.is_busy = self.is_busy, True
                try:
                    yield
                finally:
                    self.is_busy = is_inner
                if self._catalogue.attempt and not self._is_beating:
                    self._is_beating = True
                    self._beats.start()
        except Exception:
            if not is_inner:
                leave_if_asked()  # what was asked for counts more than what the same signal may have made fail
            raise
        if not is_inner:
            leave_if_asked()

    def _finish(self) -> None:
        if os.getpid() != self._pid:
            return
        self._beats.close()
        self._catalogue.close()
        if self._failure is not None:
            message = self._failure.message if isinstance(self._failure, HoldfastError) else str(self._failure)
            raise SaveFailedError(f"the last checkpoint of {self._file} was not kept: {message}") from self._failure


@dataclass
class _Progress:
    """How far it is."""

    step: int = 0
    from_step: int = 0
    kept_step: int | None = None
    stopping: str = ""


class _Values(tuple[Any, ...]):
    """More than one value, of `step(i, model)`."""

    __slots__ = ()


def _values(value: Any, more: tuple[Any, ...]) -> Any:
    return _Values((value, *more)) if more else value


def _arguments(function: Callable[..., object], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, _Values):
        return (value,)
    try:
        inspect.signature(function).bind(None, *value)
    except TypeError:
        return (value[-1],)
    except ValueError:  # written in C, and does not say
        pass
    return tuple(value)


def _path_of(given: object) -> Path:
    if not isinstance(given, str | os.PathLike) or not os.fspath(given):
        raise UsageError(f"local_checkpoint_file is {given!r}, expected a path", hint='Path("checkpoint.pt")')
    return Path(given)


def _check_callable(what: str, given: object, *, optional: bool = False) -> None:
    if not callable(given) and not (optional and given is None):
        raise UsageError(f"{what} is {given!r}, expected a function", hint="see docs/reference/kit.md")


def _beat(catalogue: Catalogue, progress: _Progress) -> Beat:
    """Knows no Checkpointer: one that a program drops is let go at once."""
    return Beat(
        pid=os.getpid(),
        run=str(catalogue.path),
        attempt=catalogue.attempt,
        step=progress.step,
        durable_step=progress.kept_step,
        total_steps=None,
        stopping=progress.stopping,
        from_step=progress.from_step,
    )
