"""How much slower a real training gets by checkpointing its whole state, with a core to spare and without."""

import json
import math
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from benchmarks.background import Begun, Save
from benchmarks.limits import RawWrite
from benchmarks.measure import in_turn, timed
from benchmarks.peers import BACKGROUND, present
from benchmarks.results import Check, Row, Section, at_most, noise, percent, row, slow_downs
from benchmarks.setting import Setting, cores
from benchmarks.states import TorchState, transformer_state

__all__ = ["run"]

_NONE = "none"  # the same loop without checkpoints
_NONE_NAME = "no checkpoints"
_MODEL = {"layers": 8, "width": 640, "vocabulary": 8_000}
_QUICK_MODEL = {"layers": 1, "width": 64, "vocabulary": 500}
_TOKENS = 128
_WARM_STEPS = 2
_LEAST_CHECKPOINTS = 6
_LEAST_RUN_S = 8.0
_RATE_S = 1.0
_MOST_OF_BEST_PEER = 0.25


class Result(msgspec.Struct):
    """What one training found."""

    step_s: float
    """Of one step, on average, with all that checkpoints added to it."""
    stall_s: list[float]
    """Of each checkpoint: the call that begins it, and what the next update waits for."""
    waited_s: float
    """For checkpoints that were not durable when the next one was due."""
    losses: list[float]


class Plan(msgspec.Struct):
    """What a child process is to train."""

    word: str
    directory: str
    threads: int
    steps: int
    every: int
    model: dict[str, int]


def run(setting: Setting) -> Section:
    """The time of a step, by who checkpoints, at a rate that is the same for all."""
    found, notes = present()
    # Twice in a round: how far the same loop differs from itself is the noise of all rows.
    words = [_NONE, *found, *([] if setting.quick else [_NONE])]
    names = {_NONE: _NONE_NAME, **{word: contender.name for word, contender in found.items()}}
    rows: list[Row] = []
    checks: list[Check] = []
    for group, threads, fastest in (("a core to spare", 1, True), ("all cores computing", cores(), False)):
        plan = _plan(setting, threads, fastest=fastest)
        results: dict[str, list[Result]] = {}

        def measure(word: str, plan: Plan = plan, results: dict[str, list[Result]] = results) -> None:
            results.setdefault(word, []).append(_train(setting, msgspec.structs.replace(plan, word=word)))

        in_turn(words, setting.repeat // 2 + 1, measure)
        _check_same_training(results)
        steps = slow_downs([_step_row(group, word, names[word], results[word]) for word in (_NONE, *found)])
        rows += steps
        rows += [_stall_row(f"{group}, stall", word, names[word], results[word]) for word in found]
        noisy = noise([result.step_s for result in results[_NONE]])
        checks += _checks(group, steps, noisy, spare=fastest)
        notes += _notes(group, plan, steps, noisy, {names[word]: results[word] for word in found})
    return Section(
        name="training", title=f"A training step, {_describe(setting)}", rows=rows, checks=checks, notes=notes
    )


def _plan(setting: Setting, threads: int, *, fastest: bool) -> Plan:
    """A checkpoint every so many steps: as fast as the disk can take them, or one a second."""
    plan = Plan(_NONE, "", threads, 4, 1, _QUICK_MODEL if setting.quick else _MODEL)
    if setting.quick:
        return plan
    step_s = _train(setting, plan).step_s
    if fastest:
        with RawWrite(1).saving(transformer_state(**plan.model), setting.directory / "raw") as call:
            every = max(1, math.ceil(timed(call).wall_s / step_s))
    else:
        every = max(1, round(_RATE_S / step_s))
    steps = max(_LEAST_CHECKPOINTS, math.ceil(_LEAST_RUN_S / step_s / every)) * every
    return msgspec.structs.replace(plan, steps=steps, every=every)


def _train(setting: Setting, plan: Plan) -> Result:
    """In a process of its own: nothing that the others started or allocated disturbs it."""
    directory = setting.directory / "training"
    plan = msgspec.structs.replace(plan, directory=str(directory))
    if setting.quick and plan.word != _NONE:
        # Two dozen times importing torch would not be quick, and nothing is measured anyway.
        result = _child(plan)
        shutil.rmtree(directory, ignore_errors=True)
        return result
    command = [sys.executable, "-m", __spec__.name, msgspec.json.encode(plan).decode()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    shutil.rmtree(directory, ignore_errors=True)
    if done.returncode:
        raise RuntimeError(f"the training with {plan.word} failed:\n{done.stderr}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Result)


def _child(plan: Plan) -> Result:
    before = torch.get_num_threads()
    torch.set_num_threads(plan.threads)
    try:
        return _trained(plan)
    finally:
        torch.set_num_threads(before)


def _trained(plan: Plan) -> Result:
    state = transformer_state(**plan.model)
    if plan.word == _NONE:
        return _loop(state, plan, None)
    with BACKGROUND[plan.word]().opening(state, Path(plan.directory)) as save:
        return _loop(state, plan, save)


def _loop(state: TorchState, plan: Plan, save: Save | None) -> Result:
    model, optimizer = state.objects["model"], state.objects["optimizer"]
    generator = torch.Generator().manual_seed(5)
    result = Result(0.0, [], 0.0, [])
    begun: Begun | None = None
    begin_s = 0.0
    for step in range(-_WARM_STEPS, plan.steps):
        if step == 0:
            if save is not None:
                save(0).wait()
            begin_s = time.perf_counter()
        tokens = torch.randint(plan.model["vocabulary"], (1, _TOKENS + 1), generator=generator)
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1])[0], tokens[0, 1:])
        loss.backward()
        if begun is not None and len(result.stall_s):
            before_s = time.perf_counter()
            begun.before_update()
            result.stall_s[-1] += time.perf_counter() - before_s
        optimizer.step()
        optimizer.zero_grad()
        result.losses.append(loss.item())
        if save is not None and step >= 0 and (step + 1) % plan.every == 0:
            before_s = time.perf_counter()
            if begun is not None:
                begun.wait()
            free_s = time.perf_counter()
            begun = save(step + 1)
            result.stall_s.append(time.perf_counter() - free_s)
            result.waited_s += free_s - before_s
    result.step_s = (time.perf_counter() - begin_s) / plan.steps
    if begun is not None:
        begun.before_update()
        begun.wait()
    return result


def _check_same_training(results: dict[str, list[Result]]) -> None:
    """A checkpoint must not change what is computed."""
    expected = results[_NONE][0].losses
    changed = [word for word, found in results.items() for result in found if result.losses != expected]
    if changed:
        raise RuntimeError(f"the training took another course with {', '.join(sorted(set(changed)))}")


def _step_row(group: str, word: str, name: str, results: Sequence[Result]) -> Row:
    role: Any = "limit" if word == _NONE else BACKGROUND[word]().role
    return row(group, name, role, [result.step_s for result in results])


def _stall_row(group: str, word: str, name: str, results: Sequence[Result]) -> Row:
    return row(group, name, BACKGROUND[word]().role, [statistics.median(result.stall_s) for result in results])


def _checks(group: str, rows: Sequence[Row], noisy: float, *, spare: bool) -> list[Check]:
    ours = [found for found in rows if found.role == "holdfast"]
    best = min((found for found in rows if found.role == "peer"), key=lambda found: found.slowdown_median or 0)
    if spare:
        return [
            at_most(
                f"{group}: slow-down by {found.name}, at most the noise",
                percent(noisy),
                percent(found.slowdown_median),
                "%",
            )
            for found in ours
        ]
    return [
        at_most(
            f"{group}: slow-down by {found.name}, at most {_MOST_OF_BEST_PEER:g} of {best.name}'s or the noise",
            max(percent(noisy), percent(best.slowdown_median) * _MOST_OF_BEST_PEER),
            percent(found.slowdown_median),
            "%",
        )
        for found in ours
    ]


def _notes(group: str, plan: Plan, rows: Sequence[Row], noisy: float, results: dict[str, list[Result]]) -> list[str]:
    base_s = rows[0].median_s
    waited = [
        f"{name} {statistics.median(result.waited_s for result in found) / (plan.steps // plan.every) * 1000:,.0f} ms"
        for name, found in results.items()
    ]
    rate = f"a checkpoint every {plan.every} steps, {plan.every * base_s:.2f} s of undisturbed training"
    return [
        f"{group}: {plan.threads} torch threads, {plan.steps} steps, {rate}; noise ± {noisy:.1%}",
        f"{group}: waited for the checkpoint before, per checkpoint: {', '.join(waited)}",
    ]


def _describe(setting: Setting) -> str:
    state = transformer_state(**(_QUICK_MODEL if setting.quick else _MODEL))
    return f"transformer with {state.size_bytes / 1e6:,.0f} MB of state"


if __name__ == "__main__":
    print(json.dumps(msgspec.to_builtins(_child(msgspec.json.decode(sys.argv[1], type=Plan)))))
