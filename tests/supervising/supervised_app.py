"""Runs a program that knows nothing of holdfast by an app of its own: asked to stop by a file, its step is in another.

`python supervised_app.py [fails|late]`: with `fails`, the app cannot look after three times; with `late`, the program
has ended by itself, and has more to do, when the supervisor is told to stop.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.core.clock import SystemClock
from holdfast.core.errors import StateError
from holdfast.supervising.app import Ending
from holdfast.supervising.arrivals import Arrivals
from holdfast.supervising.deciding import Rules
from holdfast.supervising.supervisor import Plan, Supervisor
from holdfast.supervising.telling import Teller

PROGRAM = "echo $$ > program; n=0; while [ ! -e please-stop ]; do n=$((n+1)); echo $n > step; sleep 0.02; done; exit 3"
ONE_STEP = "echo $(($(cat step || echo 0) + 1)) > next; mv next step; exit 3"
IS_LATE = sys.argv[1:] == ["late"]


class Asking:
    looks = 0

    def begin(self) -> Sequence[str]:
        Path("please-stop").unlink(missing_ok=True)
        print("begun", flush=True) if IS_LATE else None
        return [
            "bash",
            "-c",
            "echo $(($(cat step || echo 0) + 1)) > next; mv next step; exit 3" if IS_LATE else PROGRAM,
        ]

    def look(self, pid: int) -> int | None:
        self.looks += 1
        if sys.argv[1:] == ["fails"] and self.looks == 3:
            raise StateError("the files make no sense")
        return self._step()

    def ask_to_stop(self, pid: int) -> bool:
        print("asked", flush=True)
        Path("please-stop").touch()
        return True

    def end(self, status: int) -> Ending:
        if IS_LATE:
            os.kill(os.getpid(), signal.SIGTERM)
            return Ending("again", 85, self._step(), from_step=0)
        return Ending("again" if status == 3 else "failed", 85 if status == 3 else status, self._step(), "as asked")

    def close(self) -> None:
        print("closed", flush=True)

    def _step(self) -> int | None:
        text = Path("step").read_text().strip() if os.path.exists("step") else ""
        return int(text) if text else None


def main() -> int:
    arrivals, clock, app = Arrivals(), SystemClock(), Asking()
    teller = Teller(log="run.log", as_json=False, quiet=False, plain=True, unicode=True, clock=clock)
    plan = Plan(Rules(), restart_status=85, grace_s=10.0)
    try:
        return Supervisor(app, plan, arrivals=arrivals, telling=teller, clock=clock).run(os.environ)
    except StateError as error:
        print(error.message, flush=True)
        return 4
    finally:
        app.close()
        teller.close()


if __name__ == "__main__":
    sys.exit(main())
