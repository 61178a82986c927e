"""Saves that failed: said, remembered, and raised where the user wants that (I7, I8)."""

import logging
from typing import Literal

from holdfast.core.errors import FencedError, HoldfastError
from holdfast.engine.outcome import PendingCheckpoint

__all__ = ["Failures"]

_log = logging.getLogger("holdfast")


class Failures:
    """What became of saves that did not become durable."""

    def __init__(self, on_error: Literal["warn", "raise"]) -> None:
        self._raises = on_error == "raise"
        self._background: HoldfastError | None = None

    def report(self, pending: PendingCheckpoint, error: HoldfastError) -> None:
        """A save failed while its caller waits."""
        if self._raises:
            raise error
        pending.note_failed(error)
        _log.warning("the checkpoint of step %d was not saved: %s", pending.step, error)

    def report_background(self, pending: PendingCheckpoint, error: HoldfastError) -> None:
        """From the thread that listens to the agent: raised at the next save, if errors are to be raised."""
        _log.warning("the checkpoint of step %d was not saved: %s", pending.step, error)
        self._background = error

    def raise_background(self) -> None:
        """What was reported since the last save."""
        self.raise_fenced()  # which stays true
        error, self._background = self._background, None
        if error is not None and self._raises:
            raise error

    def raise_fenced(self) -> None:
        """Only if nothing can be saved any more: another attempt has the run."""
        if isinstance(self._background, FencedError):
            raise self._background
