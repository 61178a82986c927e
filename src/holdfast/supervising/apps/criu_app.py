"""Any program, as a whole: CRIU writes its memory and open files from time to time, and brings it back from there."""

import contextlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from holdfast.core.clock import Clock, SystemClock
from holdfast.core.errors import FencedError, HoldfastError, StateError, UsageError
from holdfast.engine.file_state import put_files
from holdfast.engine.process_tree import read_arguments
from holdfast.policy.durations import seconds_of
from holdfast.storage.translate import Boundary
from holdfast.supervising import launcher
from holdfast.supervising.app import Ending
from holdfast.supervising.apps import criu_process
from holdfast.supervising.apps.file_run import FileRun, Saved
from holdfast.supervising.apps.process_tree import (
    child_of,
    continue_tree,
    has_ended,
    kill_tree,
    stamp_of,
    written_files,
)

__all__ = ["CRIU_VARIABLE", "EVERY_VARIABLE", "CriuApp"]

_log = logging.getLogger("holdfast")

CRIU_VARIABLE = "HOLDFAST_CRIU"
"""The program, where it is not in PATH."""
EVERY_VARIABLE = "HOLDFAST_CRIU_EVERY"
"""How often the process is dumped while it runs."""
_DEFAULT_EVERY = "10 min"
_KEEP = 2
_WORK = ".holdfast-criu"
_IMAGES, _OUTPUTS = "images", "outputs"
_OUTPUT_NAME = "output.txt"
_DEADLINE_S = 600.0
_ERRORS_SHOWN = 3
_MAX_STAMP_CHARS = 100
_REAPED_S, _PAUSE_S = 30.0, 0.05


class CriuApp:
    """One program in one folder. What it writes there goes with each checkpoint, as it was at that moment."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        run: str,
        folder: str,
        restart_status: int,
        clock: Clock | None = None,
    ) -> None:
        """UsageError where CRIU is missing, or may not be used."""
        self._criu = _find_criu()
        self._command = list(command)
        self._folder = os.path.abspath(folder)
        self._work = os.path.join(self._folder, _WORK)
        self._stopped = os.path.join(self._work, "stopped")
        self._restart_status = restart_status
        self._clock = clock or SystemClock()
        self._every_s = seconds_of(os.environ.get(EVERY_VARIABLE) or _DEFAULT_EVERY, EVERY_VARIABLE)
        self._run = FileRun(run, keep_last=_KEEP, clock=self._clock, label="criu")
        self._dumped_s = self._clock.monotonic_s()
        self._is_restored = self._is_stopped = self._is_done = False

    def begin(self) -> Sequence[str]:
        saved = self._run.begin()
        self._dumped_s = self._clock.monotonic_s()
        self._is_restored, self._is_stopped = saved is not None, False
        self._end_left_over()
        with Boundary("clearing", self._work):
            shutil.rmtree(self._work, ignore_errors=True)
            os.makedirs(self._work, mode=0o700)
        waiter = [sys.executable, "-m", criu_process.__name__]
        if saved is None:
            _log.warning("what it prints goes to %s", os.path.join(self._folder, _OUTPUT_NAME))
            return [*waiter, "start", os.path.join(self._folder, _OUTPUT_NAME), *self._command]
        self._bring_back(saved)
        return [*waiter, "restore", self._criu, os.path.join(self._work, _IMAGES)]

    def look(self, pid: int) -> int | None:
        if self._clock.monotonic_s() - self._dumped_s >= self._every_s:
            self._dumped_s = self._clock.monotonic_s()
            target = self._target(pid)
            if target is not None:
                self._checkpoint(target, stop=False)
        return self._run.last_step

    def ask_to_stop(self, pid: int) -> bool:
        target = self._target(pid)
        if target is not None and self._checkpoint(target, stop=True):
            self._is_stopped = True
        return self._is_stopped

    def end(self, status: int) -> Ending:
        step = self._run.last_step
        if self._is_stopped:
            self._run.note_stop("asked to stop")
            return Ending("again", self._restart_status, step, "dumped before it was stopped")
        if status == 0:
            self._is_done = True
            return Ending("done", 0, step)
        if self._is_restored and status == criu_process.RESTORE_FAILED_STATUS:
            why = _errors_in(os.path.join(self._work, _IMAGES, criu_process.RESTORE_LOG))
            return Ending("failed", status, step, f"CRIU could not bring it back: {why}")
        return Ending("again" if status == self._restart_status else "failed", status, step)

    def close(self) -> None:
        shutil.rmtree(self._work, ignore_errors=True)
        self._run.close(clean=self._is_done)

    def _target(self, pid: int) -> int | None:
        """The process to dump: the supervisor's child is the program itself, or waits for it."""
        if not self._is_restored:
            # Before it has become the program, there is nothing of it to keep.
            return None if _is_waiter(pid) else pid
        return child_of(pid)

    def _checkpoint(self, target: int, *, stop: bool) -> bool:
        """Whether it is durable; if so, and it is to stop, the process is gone. Else it goes on (I7)."""
        work = os.path.join(self._work, "dump")
        try:
            with Boundary("dumping", work):
                shutil.rmtree(work, ignore_errors=True)
                os.makedirs(os.path.join(work, _IMAGES))
                with open(self._stopped, "w", encoding="ascii") as file:
                    file.write(stamp_of(target))
            try:
                self._dump(target, os.path.join(work, _IMAGES))
                names = self._copy_outputs(target, work)
            finally:
                if not stop:
                    self._let_go_on(target)
            images = sorted(os.path.join(_IMAGES, name) for name in os.listdir(os.path.join(work, _IMAGES)))
            self._run.save(work, [*images, *names], step=None, growing=(), note=f"process {target}")
        except FencedError:
            self._let_go_on(target)
            raise
        except HoldfastError as error:
            self._let_go_on(target)
            if has_ended(target):
                _log.info("process %d ended while it was dumped", target)
            else:
                _log.error("process %d could not be saved: %s", target, error)
            return False
        finally:
            shutil.rmtree(work, ignore_errors=True)
        if stop:
            kill_tree(target)
        return True

    def _end_left_over(self) -> None:
        """A supervisor that was killed during a dump has left the program stopped, which nobody else will end."""
        try:
            with open(self._stopped, encoding="ascii") as file:
                stamp = file.read(_MAX_STAMP_CHARS)
            pid = int(stamp.partition(" ")[0])
        except (OSError, ValueError):
            return
        if stamp_of(pid) == stamp and not has_ended(pid):
            _log.warning("process %d was left stopped by a supervisor that was killed, and is ended", pid)
            kill_tree(pid)
            end_s = self._clock.monotonic_s() + _REAPED_S
            # Its number has to be free before it can be had again.
            while stamp_of(pid) and self._clock.monotonic_s() < end_s:
                self._clock.sleep(_PAUSE_S)

    def _let_go_on(self, target: int) -> None:
        continue_tree(target)
        with contextlib.suppress(OSError):
            os.unlink(self._stopped)

    def _dump(self, target: int, images: str) -> None:
        """It is left stopped, so that the files that it writes can be copied as they were."""
        command = [self._criu, "dump", "--tree", str(target), "--images-dir", images, "--log-file", "dump.log"]
        command += ["--shell-job", "--file-locks", "--leave-stopped"]
        try:
            done = subprocess.run(  # noqa: S603  a list, nothing from outside
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_DEADLINE_S, check=False
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise StateError(f"{self._criu} cannot be run: {error}") from error
        if done.returncode != 0:
            raise StateError(
                f"CRIU cannot dump process {target}: {_errors_in(os.path.join(images, 'dump.log'))}",
                hint="it must not hold connections, pipes to others, or devices; `criu check` tests the kernel",
            )

    def _copy_outputs(self, target: int, work: str) -> list[str]:
        names = []
        for name in written_files(target, self._folder):
            copy = os.path.join(work, _OUTPUTS, name)
            with Boundary("copying", copy):
                os.makedirs(os.path.dirname(copy), exist_ok=True)
                shutil.copy2(os.path.join(self._folder, name), copy)
            names.append(os.path.join(_OUTPUTS, name))
        return names

    def _bring_back(self, saved: Saved) -> None:
        """The images to the work directory, and the program's outputs to their places: CRIU wants them as they were."""
        images = [name for name in saved.files if name.startswith(f"{_IMAGES}/")]
        if not images:
            raise UsageError(
                f"{self._run.path} holds no images of CRIU", hint="give the command a run of its own: --run"
            )
        self._run.put_back(saved, self._work, images)
        for name, file in saved.files.items():
            if name.startswith(f"{_OUTPUTS}/"):
                own = name.removeprefix(f"{_OUTPUTS}/")
                _log.warning("%s is as it was at checkpoint %d again", own, saved.checkpoint.step)
                put_files({own: file}, self._folder)


def _find_criu() -> str:
    given = os.environ.get(CRIU_VARIABLE)
    found = shutil.which(given or "criu", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if found is None:
        raise UsageError(
            f"--app criu: there is no {given or 'criu in PATH'}",
            hint=f"install CRIU 4 or newer, or set {CRIU_VARIABLE}",
        )
    if os.geteuid() != 0:
        raise UsageError("--app criu: only root may dump and restore processes", hint="run it as root")
    return found


def _is_waiter(pid: int) -> bool:
    arguments = read_arguments(pid)
    return not arguments or criu_process.__name__ in arguments or launcher.__file__ in arguments


def _errors_in(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            # That it may not raise its own limit on open files, it says always.
            errors = [line.strip() for line in file if "Error" in line and "RLIMIT_NOFILE" not in line]
    except OSError:
        return "it wrote no log"
    return "; ".join(errors[:_ERRORS_SHOWN]) or "its log tells of no error"
