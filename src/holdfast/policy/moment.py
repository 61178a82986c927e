"""What a decision about a checkpoint is made on, and the decision itself. Values only."""

import math
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Decision", "Moment"]


class Moment(NamedTuple):
    """The program at the end of a step. All times are monotonic."""

    step: int
    now_s: float
    began_s: float
    """When this attempt began."""
    began_step: int = 0
    """The step that it began at: 0, or the one that was restored."""
    epoch: int | None = None
    saved_step: int | None = None
    """Of the last checkpoint that was begun, or restored; None before the first."""
    saved_s: float | None = None
    saved_epoch: int | None = None
    step_s: float | None = None
    """What a step takes, as far as that is known."""
    interval_steps: int | None = None
    """How many steps there are from one automatic checkpoint to the next, as the tuner has it now."""
    metrics: Mapping[str, float] = {}
    """Those of this step."""
    lowest: Mapping[str, float] = {}
    """Of each metric, over the steps before this one; also those of the checkpoint that was restored."""
    highest: Mapping[str, float] = {}
    stop: str = ""
    """Why the program is asked to stop; empty while it is not."""
    error: str = ""
    """The exception that leaves the loop; empty while there is none."""

    @property
    def since_step(self) -> int:
        """The step of the last checkpoint, or the one that the attempt began at."""
        return self.began_step if self.saved_step is None else self.saved_step

    @property
    def since_s(self) -> float:
        """When the last checkpoint was begun, or the attempt."""
        return self.began_s if self.saved_s is None else self.saved_s


class Decision(NamedTuple):
    """Whether a checkpoint is due, and why or why not, in words."""

    due: bool
    reason: str
    ask_at: float = math.inf
    """Where it is not due: the first step at which the answer may be another one, however fast the steps come."""
