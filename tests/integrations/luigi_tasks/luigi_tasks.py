"""Tasks for tests of luigi: a training that may be disturbed, and two of them."""

import os
import random
import signal
import sys
import time

import luigi
import numpy as np
from training import advance, note

import holdfast
from holdfast.integrations.luigi_task import CheckpointedTask


class Train(CheckpointedTask):
    name = luigi.Parameter()
    seed = luigi.IntParameter(default=1)
    steps = luigi.IntParameter(default=60)
    # How its attempts end too early: the first in this way, the second in that; or one that is drawn, for ever.
    faults = luigi.ListParameter(default=[], significant=False)
    at_random = luigi.BoolParameter(default=False, significant=False)
    own_process = luigi.BoolParameter(default=True, significant=False, parsing=luigi.BoolParameter.EXPLICIT_PARSING)
    tries = luigi.IntParameter(default=50, significant=False)

    @property
    def retry_count(self):
        return self.tries

    def output(self):
        return luigi.LocalTarget(f"{self.name}.model", format=luigi.format.Nop)

    def run(self):
        weights, rng = np.zeros(100), np.random.default_rng(self.seed)
        with self.checkpointer({"weights": weights, "rng": rng}, every=holdfast.every(steps=5)) as ckpt:
            restored = ckpt.restore()
            done = restored.step if restored else 0
            note(f"{self.name} begins {done}")
            draw = random.Random(f"{self.seed} {ckpt.attempt}")
            in_turn = [*self.faults, *["none"] * ckpt.attempt][ckpt.attempt - 1]
            fault, at = draw.choice(self.faults) if self.at_random else in_turn, done + draw.randint(3, 20)
            for step in range(done + 1, self.steps + 1):
                advance(weights, rng)
                if step == at and fault != "none":
                    note(f"{self.name} {fault} {step}")
                    end(fault, ckpt)
                ckpt.step()
        with self.output().open("w") as file:
            file.write(weights.tobytes())


def end(fault, ckpt):
    """In that way; `stop` by the next step; `hang` does not, but waits until the test lets it go."""
    if fault == "raise":
        raise RuntimeError("a fault of the test")
    if fault == "exit":
        os._exit(85)
    if fault == "status":
        sys.exit(3)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "stop":
        ckpt.stop("a stop of the test")
    if fault == "hang":
        note(f"pid {os.getpid()}")
        while not os.path.exists("go"):
            time.sleep(0.05)


class Both(luigi.WrapperTask):
    seed = luigi.IntParameter(default=1)
    faults = luigi.ListParameter(default=[], significant=False)

    def requires(self):
        return [
            Train(name=name, seed=self.seed + i, faults=self.faults, at_random=True)
            for i, name in enumerate(["one", "two"])
        ]


@luigi.Task.event_handler(luigi.Event.FAILURE)
def note_failure(task, error):
    note(f"event failure {type(error).__name__}")


@luigi.Task.event_handler(luigi.Event.PROCESS_FAILURE)
def note_process_failure(task, message):
    note("event process_failure")


@luigi.Task.event_handler(luigi.Event.SUCCESS)
def note_success(task):
    note(f"event success {task.task_family}")
