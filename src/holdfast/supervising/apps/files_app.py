"""A program that writes checkpoints of its own: they are noticed, copied into the run, and brought back when needed."""

import logging
import os
import shutil
from collections.abc import Mapping, Sequence

from holdfast.core.clock import Clock, SystemClock
from holdfast.core.errors import FencedError, HoldfastError, UsageError
from holdfast.engine.time_left import TimeLeft, find_time_left
from holdfast.supervising.app import Ending
from holdfast.supervising.apps.asking import ask
from holdfast.supervising.apps.command_line import CommandLine
from holdfast.supervising.apps.file_run import FileRun
from holdfast.supervising.apps.found_files import Found, FoundFiles
from holdfast.supervising.apps.progress import Progress
from holdfast.supervising.apps.recipe import Recipe
from holdfast.supervising.apps.returning import choose_files

__all__ = ["SAVE_FAILED_STATUS", "FilesApp"]

_log = logging.getLogger("holdfast")

SAVE_FAILED_STATUS = 74
"""Of a program that came to its end, and whose last checkpoint did not get into the run."""
_HOURS_LEFT = "hours_left"
_RETRY_S = 30.0
# Before the end of the job's time, for the program's last checkpoint and our copy of it.
_MARGIN_S = 60.0
_MARGIN_SHARE = 0.03


class FilesApp:
    """What `holdfast run` does for such a program, as a recipe says."""

    def __init__(
        self,
        recipe: Recipe,
        command: Sequence[str],
        *,
        name: str,
        run: str,
        folder: str,
        restart_status: int,
        clock: Clock | None = None,
    ) -> None:
        """UsageError where the recipe does not fit the command, or a program that it needs is missing."""
        for program in recipe.needs:
            if shutil.which(program) is None:
                raise UsageError(f"--app {name}: there is no {program} in PATH", hint=f"install {name}, or load it")
        self._clock = clock or SystemClock()
        self._recipe = recipe
        self._folder = folder
        self._restart_status = restart_status
        self._line = CommandLine(command, recipe, folder=folder, name=name)
        self._files = FoundFiles(recipe.checkpoint, self._line, folder=folder, clock=self._clock)
        self._run = FileRun(run, keep_last=recipe.checkpoint.keep, clock=self._clock, label=name)
        self._progress = Progress(recipe, self._line, folder=folder)
        is_asked_for = any(_HOURS_LEFT in word for group in recipe.start.add for word in group)
        self._time_left: TimeLeft | None = find_time_left(None, os.environ, self._clock) if is_asked_for else None
        # Unchanged since: nothing to save. Known to be whole: a restart may go on from it.
        self._saved: Found | None = None
        self._whole: Found | None = None
        self._doubted: Found | None = None
        self._is_asked = self._is_done = self._has_failed = False
        self._copied_s = self._asked_s = self._clock.monotonic_s()

    def begin(self) -> Sequence[str]:
        saved = self._run.begin()
        chosen = choose_files(
            self._run, saved, self._files, folder=self._folder, trusted=self._whole, doubted=self._doubted
        )
        self._progress.begin()  # the log may be among what was brought back
        self._is_asked = self._has_failed = False
        self._copied_s = self._asked_s = self._clock.monotonic_s()
        self._saved = self._whole = chosen.found
        if chosen.found is None:
            self._progress.start_from(None)
            return self._line.start(self._words())
        if not chosen.is_saved:
            self._save(chosen.found)
        self._progress.start_from(self._run.last_step)
        return self._line.restart(chosen.found.names, self._words())

    def look(self, pid: int) -> int | None:
        self._progress.read()
        found = self._files.settled()
        pause_s = max(self._recipe.checkpoint.pause_s, _RETRY_S if self._has_failed else 0.0)
        is_early = self._clock.monotonic_s() - self._copied_s < pause_s
        if found is not None and found != self._saved and not is_early:
            self._save(found)
        rule = self._recipe.ask
        since_s = self._clock.monotonic_s() - max(self._copied_s, self._asked_s)
        if rule is not None and rule.every_s and since_s >= rule.every_s:
            self._asked_s = self._clock.monotonic_s()
            if ask(rule, self._line, pid=pid, folder=self._folder, known=self._words()) and rule.commands:
                self._save_new()  # the command has come back: they are whole
        return self._progress.step

    def ask_to_stop(self, pid: int) -> bool:
        self._is_asked = True
        rule = self._recipe.stop
        if rule is None:
            return False
        is_told = ask(rule, self._line, pid=pid, folder=self._folder, known=self._words())
        if is_told and rule.commands:
            self._save_new()  # as above
        return is_told

    def end(self, status: int) -> Ending:
        self._progress.end(status)
        is_orderly = self._progress.is_orderly(status, restart_status=self._restart_status)
        found = self._files.now()
        if found is not None and not is_orderly and not self._files.is_sound(found):
            self._doubted = found  # killed in the middle of writing, perhaps
            found = self._files.settled()
        if found is not None and found != self._saved:
            self._save(found)
        ending = self._progress.judge(status, restart_status=self._restart_status, is_asked=self._is_asked)
        if self._is_asked:
            self._run.note_stop("asked to stop")
        self._is_done = ending.outcome == "done" and not self._has_failed
        if ending.outcome == "done" and self._has_failed:
            # I8: whoever relies on the run must hear of it.
            return ending._replace(status=SAVE_FAILED_STATUS, why="done, but the last checkpoint could not be saved")
        return ending

    def close(self) -> None:
        if self._time_left is not None:
            self._time_left.close()
        self._run.close(clean=self._is_done)

    def _save_new(self) -> None:
        found = self._files.now()
        if found is not None and found != self._saved:
            self._save(found)

    def _save(self, found: Found) -> None:
        """Copy them into the run. A failure is told, and does not stop the program (I7)."""
        self._saved = self._whole = found
        self._copied_s = self._clock.monotonic_s()
        beside, left_out = self._files.beside()
        note = f"without {', '.join(left_out)}"[:200] if left_out else ""
        try:
            step = self._run.save(
                self._folder,
                [*found.names, *(name for name in beside if name not in found.names)],
                step=self._progress.step_of(found.names[0]),
                growing=self._files.growing(),
                note=note,
            )
        except FencedError:
            raise
        except HoldfastError as error:
            self._has_failed = True
            self._saved = None  # tried again later, and at the end
            _log.error("%s could not be saved: %s", ", ".join(found.names), error)
        else:
            self._has_failed = False
            self._progress.note_saved(step)

    def _words(self) -> Mapping[str, str]:
        left_s = self._time_left.left_s() if self._time_left is not None else None
        if left_s is None or left_s == float("inf"):
            return {}
        usable_s = left_s - _MARGIN_S if left_s > 10 * _MARGIN_S else left_s * 0.9
        return {_HOURS_LEFT: f"{max(usable_s * (1 - _MARGIN_SHARE), 1.0) / 3600:.6f}"}
