"""What all sections share: where to write, how often to repeat, how large."""

import os
from pathlib import Path
from typing import NamedTuple

__all__ = ["Setting", "cores"]


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


class Setting(NamedTuple):
    """The options of one run. The directory is empty at the start of each section, and removed afterwards."""

    directory: Path
    repeat: int
    quick: bool

    @property
    def threads(self) -> int:
        """For the raw parallel limits: one per core."""
        return max(2, cores())
