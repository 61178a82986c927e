"""Run inside of a job: writes down what is left, and when that was, again and again, until it is killed."""

import os
import sys
import time
from pathlib import Path

from holdfast.core.clock import SystemClock
from holdfast.engine import slurm_time_left
from holdfast.engine.time_left import find_time_left

# The controller is the test's own, and may be asked more often.
slurm_time_left._ASK_S = slurm_time_left._ASK_NEAR_S = 0.5

clock = SystemClock()
found = find_time_left(None, os.environ, clock)
assert found is not None
with Path(sys.argv[1]).open("a", buffering=1) as told:
    while True:
        left_s = found.left_s()
        if left_s is not None:
            told.write(f"{clock.utc_s() + left_s} {found.source}\n")
        time.sleep(0.05)
