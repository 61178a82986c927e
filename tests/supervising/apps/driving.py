"""The least that a supervisor does: starts the app's command, looks, and tells it of the end."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.supervising.app import App, Ending

__all__ = ["attempt", "until_done"]

_DEADLINE_S = 120.0
_PAUSE_S = 0.05


def attempt(
    app: App, folder: Path, *, meanwhile: Callable[[int], bool] | None = None, env: dict[str, str] | None = None
) -> Ending:
    """One start of the program. `meanwhile` is called with its number after every look, until that is True."""
    command = list(app.begin())
    with open(folder.parent / f"{folder.name}-said.txt", "ab") as said:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True, env=env
        )
    try:
        end_s = time.monotonic() + _DEADLINE_S
        while process.poll() is None:
            assert time.monotonic() < end_s, f"{command} does not end"
            app.look(process.pid)
            if meanwhile is not None and meanwhile(process.pid):
                meanwhile = None
            time.sleep(_PAUSE_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    status = process.returncode
    return app.end(status if status >= 0 else 128 - status)


def until_done(app: App, folder: Path, *, attempts: int = 20) -> list[Ending]:
    """As often as it takes."""
    endings = []
    for _ in range(attempts):
        endings.append(attempt(app, folder))
        if endings[-1].outcome != "again":
            break
    return endings
