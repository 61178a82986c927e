"""Tasks of law that are disturbed: one by itself, and a workflow with two branches."""

import os
import signal

import law
import luigi
import numpy as np
from training import advance, note

import holdfast
from holdfast.integrations.luigi_task import CheckpointedTask


def train(task, seed):
    """Sixty steps; the first attempt is killed, the second one stops, the third one fails."""
    weights, rng = np.zeros(100), np.random.default_rng(seed)
    with task.checkpointer({"weights": weights, "rng": rng}, every=holdfast.every(steps=5)) as ckpt:
        restored = ckpt.restore()
        done = restored.step if restored else 0
        note(f"begins {done}")
        for step in range(done + 1, 61):
            advance(weights, rng)
            if step == done + 12 and ckpt.attempt == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if step == done + 12 and ckpt.attempt == 2:
                ckpt.stop("of the test")
            if step == done + 12 and ckpt.attempt == 3:
                raise RuntimeError("of the test")
            ckpt.step()
    with task.output().localize("w") as target, target.open("wb") as file:
        file.write(weights.tobytes())


class LawTrain(CheckpointedTask, law.Task):
    seed = luigi.IntParameter(default=1)

    def output(self):
        return law.LocalFileTarget(os.path.abspath("one.model"))

    @law.decorator.log
    def run(self):
        train(self, self.seed)


class LawBranches(CheckpointedTask, law.LocalWorkflow):
    def create_branch_map(self):
        return {0: 1, 1: 2}

    def output(self):
        return law.LocalFileTarget(os.path.abspath(f"branch-{self.branch}.model"))

    def run(self):
        train(self, self.branch_data)
