"""`python -m benchmarks.paced`: trainings that are told when to checkpoint, or find out; each is a process of its own.

Imports once, then forks a process for each plan that comes on stdin: twenty processes that are killed one after the
other start without importing torch twenty times. What they say goes to stdout, one JSON array a line.
"""

import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import msgspec
import torch

import holdfast
from benchmarks.contenders import sync_files
from benchmarks.states import TorchState, transformer_state
from holdfast.policy.auto import auto

__all__ = ["OVERHEAD", "Done", "Plan"]

OVERHEAD = 0.035
_WARM_STEPS = 2
_PATIENCE_S = 60.0


class Plan(msgspec.Struct):
    """What a process is to train."""

    who: str
    directory: str
    threads: int
    model: dict[str, int]
    tokens: int
    seconds: float = 0.0
    """How long to train; 0 counts steps instead."""
    saves: int = 0
    """How many checkpoints to make by then; where they are not there yet, it goes on for a while."""
    steps: int = 0
    """How many steps to make; 0 goes on until the kill."""
    every: int = 1
    """Steps from one checkpoint to the next, for whoever does not find out."""
    resumes: bool = False
    """Goes on where the last process was killed, and tells of every step."""
    stretch: int = 0
    """So many steps with checkpoints, then as many without, and so on; 0 is always with."""
    says_at: int = 0
    """The step at which the half is told of."""


class Done(msgspec.Struct):
    """What a process found that was not killed."""

    stamps_s: list[float]
    """When each step ended; the first one is when the loop began."""
    losses: list[float]
    stalls_s: list[float]
    """Of each checkpoint: what the call that may save took."""
    with_s: list[float]
    """Of each stretch with checkpoints, and each without: what a step took on average."""
    without_s: list[float]


AfterStep = Callable[[int], bool]
"""Told of a step that was made; whether it began a checkpoint. Step 0: wait until the last one is durable."""


def main() -> None:
    """Fork a process for each plan, one after the other."""
    for line in sys.stdin:
        plan = msgspec.json.decode(line, type=Plan)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                _train(plan)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)  # the loop above is the parent's
        _say("ended", os.waitpid(pid, 0)[1])


def _say(*words: object) -> None:
    # One write: a process that is killed says a line or does not.
    os.write(sys.stdout.fileno(), json.dumps(words).encode() + b"\n")


def _train(plan: Plan) -> None:
    torch.set_num_threads(plan.threads)
    state = transformer_state(**plan.model)
    with _WHO[plan.who](plan, state) as (begun, after_step):
        _say("ready", os.getpid(), begun, time.monotonic())
        _say("done", msgspec.to_builtins(_loop(plan, state, begun, after_step)))


def _loop(plan: Plan, state: TorchState, begun: int, after_step: AfterStep) -> Done:
    model, optimizer = state.objects["model"], state.objects["optimizer"]
    generator = torch.Generator().manual_seed(5 + begun)
    done = Done([], [], [], [], [])

    def train_step() -> None:
        tokens = torch.randint(plan.model["vocabulary"], (1, plan.tokens + 1), generator=generator)
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1])[0], tokens[0, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        done.losses.append(loss.item())

    for _ in range(0 if plan.resumes else _WARM_STEPS):
        train_step()
    done.stamps_s.append(time.monotonic())
    end_s = done.stamps_s[0] + plan.seconds
    stretch_s = done.stamps_s[0]
    step = begun

    def is_over() -> bool:
        if plan.steps:
            return step >= plan.steps
        late_s = time.monotonic() - end_s
        return plan.seconds > 0 and late_s > (0 if len(done.stalls_s) >= plan.saves else _PATIENCE_S)

    while not is_over():
        train_step()
        step += 1
        if plan.resumes:
            _say("step", step, time.monotonic())  # it is made; whether it is saved, the next process will see
        if step == plan.says_at:
            _say("half")
        before_s = time.monotonic()
        saved = not (plan.stretch and (step - 1) // plan.stretch % 2) and after_step(step)
        done.stamps_s.append(time.monotonic())
        if saved:
            done.stalls_s.append(done.stamps_s[-1] - before_s)
        if plan.stretch and step % plan.stretch == 0:
            stretches = done.without_s if (step - 1) // plan.stretch % 2 else done.with_s
            stretches.append((done.stamps_s[-1] - stretch_s) / plan.stretch)
            after_step(0)
            stretch_s = time.monotonic()
    return done


@contextmanager
def _nobody(plan: Plan, state: TorchState) -> Iterator[tuple[int, AfterStep]]:
    yield 0, lambda _: False


@contextmanager
def _holdfast(plan: Plan, state: TorchState) -> Iterator[tuple[int, AfterStep]]:
    # As often as the overhead allows it: with fewer checkpoints than that, the limit would be no test.
    every = auto(overhead=OVERHEAD, lose_at_most=None, at_least_every_steps=1)
    with holdfast.Checkpointer(
        plan.directory, state.objects, every=every, keep=holdfast.keep(last=1), fresh=not plan.resumes
    ) as ckpt:
        restored = ckpt.restore() if plan.resumes else None

        def after_step(step: int) -> bool:
            if not step:
                ckpt.wait(_PATIENCE_S)
                # As if the steps without checkpoints were none: they would count as a long pause of the training.
                ckpt._pace.leave(writing=False)
                return False
            return ckpt.step() is not None

        yield 0 if restored is None else restored.step, after_step


@contextmanager
def _torch_save(plan: Plan, state: TorchState) -> Iterator[tuple[int, AfterStep]]:
    """As a careful user writes it: to another name, fsync, rename, fsync; on the training thread."""
    directory = Path(plan.directory)
    directory.mkdir(exist_ok=True)
    path, unfinished = directory / "state.pt", directory / "state.pt.new"
    begun = made = 0
    if plan.resumes:
        with contextlib.suppress(FileNotFoundError):  # killed before the first one
            loaded = torch.load(path, weights_only=True)
            begun = loaded.pop("step")
            for name, part in loaded.items():
                state.objects[name].load_state_dict(part)

    def after_step(step: int) -> bool:
        nonlocal made
        made += bool(step)
        if not step or made % plan.every:
            return False
        parts = {name: part.state_dict() for name, part in state.objects.items()}
        torch.save({"step": step, **parts}, unfinished)
        sync_files(unfinished)
        unfinished.replace(path)
        sync_files(directory)
        return True

    yield begun, after_step


_WHO: dict[str, Callable[[Plan, TorchState], AbstractContextManager[tuple[int, AfterStep]]]] = {
    "none": _nobody,
    "holdfast": _holdfast,
    "torch": _torch_save,
}

if __name__ == "__main__":
    main()
