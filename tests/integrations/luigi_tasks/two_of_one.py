"""What a worker does that has forgotten a task: starts a second process for it while the first one runs."""

import multiprocessing
import time
from pathlib import Path

from luigi_tasks import Train

_DEADLINE_S = 120


if __name__ == "__main__":
    first = multiprocessing.Process(target=Train(name="one", faults=["hang"]).run)
    second = multiprocessing.Process(target=Train(name="one").run)
    first.start()
    give_up_s = time.monotonic() + _DEADLINE_S
    while "pid" not in (Path("notes.txt").read_text() if Path("notes.txt").exists() else ""):
        assert time.monotonic() < give_up_s
        time.sleep(0.05)

    second.start()

    second.join(_DEADLINE_S)
    assert not first.is_alive()
    assert second.exitcode == 0
