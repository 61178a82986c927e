"""Sends a program the signal of the plan at the moment of the plan: a real one, from itself, once."""

import os
import signal
import threading
import time
from collections.abc import Callable

from holdfast.engine.evidence import Interruption

__all__ = ["Striker"]

_FIRST_SAVE_S = 0.005
_FIRST_STEP_S = 0.02


class Striker:
    """Of one process. What the program makes of a signal that it can survive is its own affair."""

    def __init__(self, planned: Interruption | None, tell: Callable[[Interruption], bool]) -> None:
        """`tell` is called right before the signal is sent, and may say that it is not to be."""
        self._planned = planned
        self._tell = tell
        self._lock = threading.RLock()  # a handler of the program may run while it is held, and save
        self._is_to_come = planned is not None
        self._in_save: threading.Thread | None = None
        self._armed_for: int | None = None

    def is_time(self, when: str, step: int) -> bool:
        """Whether the signal, which was not sent yet, is to come now."""
        planned = self._planned
        return self._is_to_come and planned is not None and planned.when == when and planned.step == step

    def strike_at(self, when: str, step: int) -> None:
        """Now, if it is time."""
        if self.is_time(when, step):
            self._strike()

    def begin_step(self, step: int, usual_s: float) -> None:
        """Of the one after that step: in the middle of it, if it is the one to be struck."""
        if self.is_time("in step", step):
            self._armed_for = step
            self._strike_later(usual_s or _FIRST_STEP_S)

    def end_step(self, step: int) -> None:
        """A step that was shorter than thought is struck at its end."""
        if self._armed_for is not None and self._armed_for < step:
            self._strike()

    def begin_save(self, step: int, usual_s: float) -> None:
        """In the middle of it, if it is the one to be struck."""
        if self.is_time("in save", step):
            self._in_save = self._strike_later(usual_s or _FIRST_SAVE_S)

    def end_save(self, step: int) -> None:
        """Nobody gets away: neither a save that was shorter than thought, nor one that did not come after all."""
        if self._in_save is not None:
            self._in_save.join()
            self._in_save = None
        else:
            self.strike_at("in save", step)

    def _strike_later(self, usual_s: float) -> threading.Thread:
        share = 0.0 if self._planned is None else self._planned.share

        def strike() -> None:
            time.sleep(share * usual_s)
            self._strike()

        thread = threading.Thread(target=strike, name="holdfast-prove", daemon=True)
        thread.start()
        return thread

    def _strike(self) -> None:
        # Held until the signal is sent: whoever comes to the end of the step meanwhile is not to go on.
        with self._lock:
            planned = self._planned if self._is_to_come else None
            self._is_to_come = False
            if planned is not None and self._tell(planned):
                os.kill(os.getpid(), signal.Signals[planned.signal])
