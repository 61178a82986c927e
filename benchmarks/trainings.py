"""Starts the trainings of `benchmarks.paced`, listens to them, and kills them where that is asked for."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import msgspec

from benchmarks.paced import Done, Plan

__all__ = ["Life", "Trainings", "disk_loaded", "trainings"]

_SILENCE_S = 300.0


class Life(NamedTuple):
    """Of a training that was killed."""

    begun: int
    """The step that it went on from."""
    last: int
    """The last one that it made."""
    stamps_s: dict[int, float]
    """When it had made each, and when it was ready to go on."""
    killed_s: float


class Trainings:
    """One at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._said: SimpleQueue[list[Any]] = SimpleQueue()
        # A thread: a training that tells of every step must not wait until somebody has the time to listen.
        threading.Thread(target=self._listen, daemon=True).start()

    def train(self, plan: Plan, *, loads: Path | None = None) -> Done:
        """A training that comes to its end; from the step `says_at` on beside a job that writes to that directory."""
        self._start(plan)
        done: Done | None = None
        with disk_loaded(loads) as load:
            for word, *rest in self._until_ended():
                if word == "half":
                    load()
                elif word == "done":
                    done = msgspec.convert(rest[0], Done)
        if done is None:
            raise RuntimeError(f"a training with {plan.who} failed; what it said is above")
        return done

    def live_and_die(self, plan: Plan, steps: float) -> Life:
        """A training that is killed after so many steps; a fraction is one of the step that it is at by then."""
        self._start(plan)
        pid = begun = 0
        killed_s = 0.0
        stamps_s: dict[int, float] = {}
        for word, *rest in self._until_ended():
            if word == "ready":
                pid, begun, stamps_s[rest[1]] = rest
            elif word == "step":
                stamps_s[rest[0]] = rest[1]
                if not killed_s and rest[0] >= begun + int(steps):
                    step_s = (rest[1] - stamps_s[begun]) / (rest[0] - begun)
                    time.sleep(steps % 1 * step_s)
                    killed_s = time.monotonic()
                    os.kill(pid, signal.SIGKILL)
        if not killed_s:
            raise RuntimeError(f"a training with {plan.who} failed; what it said is above")
        return Life(begun, max(stamps_s), stamps_s, killed_s)

    def _start(self, plan: Plan) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(plan).decode() + "\n")
        self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.put(json.loads(line))

    def _next(self) -> list[Any]:
        return self._said.get(timeout=_SILENCE_S)

    def _until_ended(self) -> Iterator[list[Any]]:
        while (said := self._next())[0] != "ended":
            yield said


@contextmanager
def trainings() -> Iterator[Trainings]:
    """The process that forks them."""
    command = [sys.executable, "-m", "benchmarks.paced"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Trainings(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()  # it ends, when the training that runs has ended


@contextmanager
def disk_loaded(directory: Path | None) -> Iterator[Any]:
    """Gives a function that starts the job; it ends with the block."""
    started: list[subprocess.Popen[str]] = []

    def load() -> None:
        command = [sys.executable, "-m", "benchmarks.disk_load", str(directory)]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, text=True))

    try:
        yield load
    finally:
        for process in started:
            process.communicate()
