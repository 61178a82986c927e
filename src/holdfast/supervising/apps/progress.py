"""How far a program is, and how an attempt of it ended, as its log, its files and its status say."""

import itertools
import os
import re
import subprocess
import threading

from holdfast.supervising.app import Ending
from holdfast.supervising.apps.command_line import CommandLine
from holdfast.supervising.apps.following import Follower
from holdfast.supervising.apps.recipe import Recipe

__all__ = ["NO_PROGRESS_STATUS", "Progress"]

NO_PROGRESS_STATUS = 75
"""Of a program that says all is well, is not done, and has not moved: started again, it would do the same for ever."""
_STEP, _CHECKPOINT, _TOTAL, _DONE, _AGAIN = "step", "checkpoint", "total", "done", "again"
_MAX_DIGITS = 15
_MAX_LINES = 10_000
_ASK_DEADLINE_S = 30.0
# Above are those of signals.
_MAX_OWN_STATUS = 128


class Progress:
    """Of one program."""

    def __init__(self, recipe: Recipe, line: CommandLine, *, folder: str) -> None:
        rules = recipe.progress
        self._end = recipe.end
        self._total = rules.total if isinstance(rules.total, int) else None
        self._line, self._folder = line, folder
        self._command = recipe.checkpoint.step_command
        self._output = re.compile(recipe.checkpoint.step_output)
        self._in_name = re.compile(recipe.checkpoint.step_in_name) if recipe.checkpoint.step_in_name else None
        patterns = {
            _STEP: rules.step,
            _CHECKPOINT: rules.checkpoint,
            _TOTAL: rules.total if isinstance(rules.total, str) else "",
        }
        marks = {_DONE: recipe.end.done, _AGAIN: recipe.end.again}
        name = (line.names([rules.file]) if rules.file else []) or [os.devnull]
        self._log = Follower(os.path.join(folder, name[0]), patterns, marks=marks, anew=rules.anew)
        self._saved: int | None = None
        self._began: int | None = None

    def begin(self) -> None:
        """A new attempt."""
        self._log.begin()

    def start_from(self, step: int | None) -> None:
        """Of the checkpoint that the attempt goes on from."""
        self._began = self._saved = step

    def read(self) -> None:
        """Look what the program has written since."""
        self._log.read()

    def end(self, status: int) -> None:
        """It has ended with that status: look at all that it has written."""
        self._log.read(whole=True, is_torn=status > _MAX_OWN_STATUS)

    @property
    def step(self) -> int | None:
        """How far it is, where that is known."""
        known = [step for step in (self._number(_STEP), self._number(_CHECKPOINT), self._saved) if step is not None]
        return max(known, default=None)

    @property
    def total(self) -> int | None:
        """How many steps make it done, where that is known."""
        return self._total if self._total is not None else self._number(_TOTAL)

    def step_of(self, name: str) -> int | None:
        """Of a checkpoint that is whole now, in a file of that name; what that says goes before what the log does."""
        found = self._in_name.search(name) if self._in_name is not None else None
        step = _whole(found[1]) if found is not None else None
        if step is None and self._command:
            step = self._asked(os.path.join(self._folder, name))
        if step is None:
            self._log.read()
            step = self._number(_CHECKPOINT)
            step = self._number(_STEP) if step is None else step
        return step

    def note_saved(self, step: int) -> None:
        """The checkpoint of that step is durable. Where the program tells no steps, checkpoints are counted."""
        self._saved = step

    def is_orderly(self, status: int, *, restart_status: int) -> bool:
        """Whether the program has ended itself, with all its files whole."""
        if status in self._end.statuses or status == restart_status:
            return True
        # Some say that they were stopped by another status than 0, which then is that of errors, too.
        return status <= _MAX_OWN_STATUS and self._log.is_new(_AGAIN)

    def judge(self, status: int, *, restart_status: int, is_asked: bool) -> Ending:
        """What its end means."""
        return self._judge(status, restart_status, is_asked=is_asked)._replace(from_step=self._began or 0)

    def _judge(self, status: int, restart_status: int, *, is_asked: bool) -> Ending:
        step, total = self.step, self.total
        where = "" if step is None or total is None else f"step {step} of {total}"
        if status == restart_status:
            return Ending("again", status, step, where)
        if not self.is_orderly(status, restart_status=restart_status):
            if is_asked and status > _MAX_OWN_STATUS:
                return Ending("again", restart_status, step, where)
            return Ending("failed", status, step, where)
        # One that was asked to stop, and tells no steps, may have done so or be done: it is done if it says so again.
        is_open = is_asked and not self._end.done and (step is None or total is None)
        if status in self._end.statuses and not is_open and self._is_done(step, total):
            return Ending("done", 0, step, where)
        if not is_asked and step is not None and step == self._began:
            return Ending("failed", NO_PROGRESS_STATUS, step, "it has come no further, and is not done")
        return Ending("again", restart_status, step, where)

    def _is_done(self, step: int | None, total: int | None) -> bool:
        # Before all else, since a step may count from elsewhere than the total. One that was stopped at its very last
        # step is done the next time.
        if self._log.is_new(_AGAIN):
            return False
        if total is not None and step is not None:
            return step >= total
        return self._log.is_new(_DONE) if self._end.done else True

    def _asked(self, path: str) -> int | None:
        """What the program's own tool says; it is ended as soon as it has said it, since it may go on for long."""
        command = self._line.fill_all(self._command, {"file": path})
        if command is None:
            return None
        try:
            tool = subprocess.Popen(  # noqa: S603  a list, from the recipe of the user
                command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
            )
        except OSError:
            return None
        timer = threading.Timer(_ASK_DEADLINE_S, tool.kill)
        timer.start()
        try:
            lines = itertools.islice(tool.stdout or (), _MAX_LINES)
            found = next(filter(None, map(self._output.search, lines)), None)
        finally:
            timer.cancel()
            tool.kill()
            with tool:  # closes the pipe, and waits
                pass
        return None if found is None else _whole(found[1])

    def _number(self, name: str) -> int | None:
        text = self._log.last(name)
        return None if text is None else _whole(text)


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None
