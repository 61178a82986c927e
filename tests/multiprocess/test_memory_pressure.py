"""A job that is killed because its memory is used up loses less when it looks at its memory."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "memory_pressure.py"
# The sensor tells a trend after four looks, ten seconds apart; until then, half of the memory must last.
LIFE_S = "60"
PATIENCE_S = 600


@pytest.mark.slow
def test_the_memory_sensor_saves_work_from_a_job_that_leaks_until_it_is_killed():
    if not sys.platform.startswith("linux"):
        pytest.skip("RLIMIT_AS and /proc are Linux's")

    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--life-s", LIFE_S],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    lost = {who: int(steps) for who, steps in re.findall(r"^(with|without) .* (\d+) steps lost", done.stdout, re.M)}
    assert 2 * lost["with"] < lost["without"], done.stdout
