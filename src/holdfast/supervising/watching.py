"""How far the program is, as it tells by its beats or as its app sees it."""

import os
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple

from holdfast.engine.beats import read_beats

__all__ = ["Progress", "Watch"]

_SAMPLES = 20


class Progress(NamedTuple):
    """At one moment of an attempt; None where that is not known."""

    from_step: int | None = None
    step: int | None = None
    durable_step: int | None = None
    total_steps: int | None = None
    steps_per_s: float | None = None
    run: str = ""
    stopping: str = ""
    """Why a process of it has ended with the status that asks for a restart, or is about to."""


class Watch:
    """Of one attempt, whose beats go into a directory of their own."""

    def __init__(self, folder: str, now_s: float) -> None:
        self.folder = folder
        self._make_folder()
        self.progress = Progress()
        self.moved_s = now_s
        """When it made its last step, or was started, or was woken."""
        self._steps = deque[tuple[float, int]](maxlen=_SAMPLES)

    def _make_folder(self) -> None:
        with suppress(OSError):  # on a full disk there are no beats, and the program is started all the same
            os.makedirs(self.folder, mode=0o700, exist_ok=True)

    def read_beating(self) -> list[int]:
        """The processes that have told something until now."""
        return [beat.pid for beat in read_beats(self.folder)]

    def look(self, now_s: float, step_of_app: int | None = None) -> None:
        """See how far it is now."""
        self._make_folder()  # again, where somebody clears up temporary files: the program would seem to hang
        beats = read_beats(self.folder)
        furthest = max(beats, key=lambda beat: beat.step, default=None)
        if furthest is not None:
            self.progress = self.progress._replace(
                from_step=furthest.from_step,
                durable_step=furthest.durable_step,
                total_steps=furthest.total_steps,
                run=furthest.run,
            )
            stopping = next((beat.stopping for beat in beats if beat.stopping), "")
            self.progress = self.progress._replace(stopping=stopping)
        step = step_of_app if step_of_app is not None else furthest.step if furthest is not None else None
        if step is not None and step != self.progress.step:
            self._note(step, now_s)
            if self.progress.from_step is None:
                self.progress = self.progress._replace(from_step=step)

    def is_stopping(self, pids: Collection[int]) -> bool:
        """Whether all of these that tell something say that they are about to end."""
        beats = [beat for beat in read_beats(self.folder) if beat.pid in pids]
        return bool(beats) and {beat.pid for beat in beats} == {beat.pid for beat in beats if beat.stopping}

    def woken(self, now_s: float) -> None:
        """It was halted until now: that is no time in which it could have made a step."""
        self.moved_s = now_s
        self._steps.clear()

    def _note(self, step: int, now_s: float) -> None:
        before = self.progress
        self.moved_s = now_s
        self._steps.append((now_s, step))
        first_s, first = self._steps[0]
        rate = (step - first) / (now_s - first_s) if now_s > first_s and step > first else before.steps_per_s
        self.progress = before._replace(step=step, steps_per_s=rate)
