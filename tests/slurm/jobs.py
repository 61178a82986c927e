"""Jobs that `holdfast submit slurm` makes on a Slurm of the tests, and waiting for what becomes of them."""

import contextlib
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.slurm.cluster import Slurm
from tests.slurm.long_training import digest, train

__all__ = ["Job", "Jobs", "result_of", "wait_for"]

_DEADLINE_S = 900
_PAUSE_S = 0.2
# A job that starts again within the second in which its last start was revoked is refused by the node: credentials
# count seconds. That is one reason why Slurm itself waits for two minutes.
_RELEASE_S = 3.0
_TRAINING = Path(__file__).parent / "long_training.py"
_SOURCE = Path(__file__).parents[2] / "src"


class Job(NamedTuple):
    """One that was submitted, and the directory it works in."""

    number: str
    folder: Path

    @property
    def output(self) -> str:
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.out")))

    @property
    def results(self) -> list[str]:
        """What programs that came to their end have written, in order."""
        path = self.folder / "results"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def has_checkpoint(self) -> bool:
        return any(self.folder.glob("runs/*/*/manifest.json"))

    def events(self, kind: str) -> list[dict[str, object]]:
        """Of the run's journal."""
        lines = [line for path in self.folder.glob("runs/*/journal.jsonl") for line in path.read_text().splitlines()]
        return [event for event in map(json.loads, lines) if event["event"] == kind]


class Jobs:
    """Submits, and releases what was requeued from the two minutes that it would wait."""

    def __init__(self, slurm: Slurm, root: Path) -> None:
        self.slurm = slurm
        self._root = root
        self._is_over = threading.Event()

    @contextlib.contextmanager
    def releasing(self) -> Iterator[None]:
        thread = threading.Thread(target=self._release, name="release")
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()

    def submit(self, name: str, *words: str, path: str | None = None, **variables: str) -> Job:
        """`holdfast submit slurm WORDS…` in a new directory; `path` is the job's PATH."""
        folder = self._root / name
        folder.mkdir()
        environ = {**self.slurm.environ, "PYTHONPATH": str(_SOURCE), **variables}
        # As users have it; tests in one process save in the foreground.
        environ.pop("HOLDFAST_BACKGROUND", None)
        program = [sys.executable, "-m", "holdfast", "submit", "slurm", "--json"]
        given = [f"--export=ALL,PATH={path}"] if path is not None else []
        done = subprocess.run(
            [*program, *given, *words],
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return Job(json.loads(done.stdout)["job"], folder)

    def train(self, name: str, *options: str, steps: int, pause_s: float, before: Sequence[str] = ()) -> Job:
        """Submit the training, with these words before its command."""
        command = (sys.executable, str(_TRAINING), "runs/long-{job}", str(steps), str(pause_s))
        return self.submit(name, *options, "--", *before, *command)

    def state(self, job: Job) -> str:
        return self.slurm.state(job.number)

    def story(self, job: Job) -> str:
        """All that is known of it, for whoever reads a failure."""
        logs = [line for log in self.slurm.root.glob("slurm*.log") for line in log.read_text().splitlines()]
        told = [line for line in logs if re.search(rf"\bJobId={job.number}\b|\b[Jj]ob {job.number}\b", line)]
        return "\n".join([str(self.slurm.shown(job.number)), *told[-40:], job.output])

    def wait_for_state(self, job: Job, *states: str) -> None:
        wait_for(lambda: self.state(job) in states, lambda: f"{states}\n{self.story(job)}")

    def wait_for_end(self, job: Job) -> None:
        """Until it has ended for good."""
        self.wait_for_state(job, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")

    def wait_for_tasks(self, job: Job) -> None:
        """Until all tasks of an array have ended."""
        going = {"PENDING", "RUNNING", "COMPLETING"}
        wait_for(lambda: not going & set(self.tasks(job).values()), lambda: f"{self.tasks(job)}\n{job.output}")

    def tasks(self, job: Job) -> dict[int, str]:
        """The state of each task of an array; those that were cancelled before they began are one, of no number."""
        states = {}
        for line in self.slurm.run("scontrol", "--oneliner", "show", "job", job.number).splitlines():
            fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
            for task in _numbers(fields["ArrayTaskId"]):
                states[task] = fields["JobState"]
        return states

    def _release(self) -> None:
        since_s: dict[str, float] = {}
        while not self._is_over.wait(1.0):
            waiting = self.slurm.run("squeue", "--noheader", "--states=PENDING", "--format=%A %r")
            held = [line.split()[0] for line in waiting.splitlines() if line.endswith(" BeginTime")]
            since_s = {number: since_s.get(number, time.monotonic()) for number in held}
            for number, first_s in since_s.items():
                if time.monotonic() - first_s > _RELEASE_S:
                    # It may have begun, or have been cancelled, in between.
                    with contextlib.suppress(AssertionError):
                        self.slurm.run("scontrol", "update", f"jobid={number}", "StartTime=now")


def _numbers(tasks: str) -> Iterator[int]:
    """`3` or `3-5%1` or `1,4-5`."""
    for part in tasks.split("%")[0].split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def result_of(steps: int) -> str:
    """What the training comes to if nobody disturbs it."""
    weights, random = np.zeros(1000), np.random.default_rng(7)
    for _ in range(steps):
        train(weights, random)
    return digest(weights)


def wait_for(holds: Callable[[], bool], what: Callable[[], str]) -> None:
    give_up_s = time.monotonic() + _DEADLINE_S
    while not holds():
        assert time.monotonic() < give_up_s, f"waited for {what()}"
        time.sleep(_PAUSE_S)
