"""How long a checkpoint of a large state stops the training thread, and when it is durable."""

import shutil
import time
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks.alone import alone
from benchmarks.background import Background, Begun, MemoryCopy, Save
from benchmarks.limits import RawWrite
from benchmarks.measure import in_turn, settle, timed
from benchmarks.peers import present
from benchmarks.results import Check, Row, Section, against_limits, at_least, at_most, faster_than_peers, row
from benchmarks.setting import Setting, cores
from benchmarks.states import TorchState, transformer_state

__all__ = ["run", "stalled"]

_MODEL = {"layers": 20, "width": 576}
_CHECKED_MODEL = {"layers": 8, "width": 640, "vocabulary": 8_000}  # large enough that a copy takes a while
_QUICK_MODEL = {"layers": 2, "width": 64, "vocabulary": 1000}
_COMPUTE_S = 0.7  # a forward and a backward pass of a model of that size
_QUICK_COMPUTE_S = 0.05
# A training makes hundreds; the first imports, starts threads and touches memory, the second finds all of it known.
_WARM_UPS = 2
_MOST_OF_COPY = {"holdfast, now": 1.3, "holdfast, overlapped": 0.05}
_LEAST_TIMES_LESS = {"holdfast, now": 2.0, "holdfast, overlapped": 20.0}
_MOST_OF_WRITE = 1.3
_GROUPS = ("stall", "durable")


def run(setting: Setting) -> Section:
    """The stall of one checkpoint while the training computes, and the time to durable while it does not."""
    model, checked = (_QUICK_MODEL, _QUICK_MODEL) if setting.quick else (_MODEL, _CHECKED_MODEL)
    compute_s = _QUICK_COMPUTE_S if setting.quick else _COMPUTE_S
    found, notes = present()
    contenders: list[Background | RawWrite] = [MemoryCopy(), RawWrite(1), RawWrite(2), *found.values()]
    times_s: dict[tuple[str, str], list[float]] = {}

    def runs_alone(contender: Background | RawWrite) -> bool:
        # A quick run is to see that all of it works: to start a dozen processes for the peers would take minutes.
        return not setting.quick or contender.role != "peer"

    for contender in contenders:
        if not isinstance(contender, RawWrite):
            check = partial(alone, _check_restores) if runs_alone(contender) else _check_restores
            check(contender, setting.directory / "check", checked)

    def measure(contender: Background | RawWrite) -> None:
        directory = setting.directory / "stall"
        measured = partial(alone, _measure) if runs_alone(contender) else _measure
        for group, time_s in measured(contender, directory, model, compute_s).items():
            times_s.setdefault((group, contender.name), []).append(time_s)
        shutil.rmtree(directory, ignore_errors=True)

    in_turn(contenders, setting.repeat, measure)
    rows = against_limits(
        [
            row(group, contender.name, contender.role, times_s[group, contender.name])
            for group in _GROUPS
            for contender in contenders
            if (group, contender.name) in times_s
        ]
    )
    overlapping = {contender.name for contender in found.values() if contender.overlaps}
    return Section(
        name="stall",
        title=f"Stall of the training thread by a checkpoint, {alone(_describe, model)}",
        rows=rows,
        checks=[*_checks(rows, overlapping), *faster_than_peers(rows, "durable")],
        notes=[
            "stall: the call that begins the checkpoint, and what the next weight update waits for",
            "durable: from that call until every byte is, with nothing else to do",
            "each contender has a process of its own, a new one each turn, without the libraries of the others",
            f"all but the raw write have made {_WARM_UPS} saves in their process before",
            *notes,
        ],
    )


def stalled(save: Save, step: int, compute_s: float) -> tuple[float, Begun]:
    """The stall of one checkpoint, which is still being written then; computes in between, as a training does."""
    settle()
    begin_s = time.perf_counter()
    begun = save(step)
    begun_s = time.perf_counter()
    _compute(compute_s)
    computed_s = time.perf_counter()
    begun.before_update()
    return begun_s - begin_s + time.perf_counter() - computed_s, begun


def _check_restores(contender: Background, directory: Path, model: dict[str, int]) -> None:
    """A contender that does not bring back what it was given, although the training went on, must not be timed."""
    state = _state(model)
    expected = state.digest()
    with contender.opening(state, directory) as save:
        begun = save(1)
        begun.before_update()
        state.wipe()
        begun.wait()
    contender.restore(state, directory)
    shutil.rmtree(directory, ignore_errors=True)
    if state.digest() != expected:
        raise RuntimeError(f"{contender.name} did not restore the state bit for bit")


def _measure(
    contender: Background | RawWrite, directory: Path, model: dict[str, int], compute_s: float
) -> dict[str, float]:
    """One time for each group that the contender takes part in."""
    state = _state(model)
    if isinstance(contender, RawWrite):
        with contender.saving(state, directory) as call:
            return {"durable": timed(call).wall_s}
    with contender.opening(state, directory) as save:
        for step in range(_WARM_UPS):
            save(step).wait()
        stall_s, begun = stalled(save, _WARM_UPS, compute_s)
        begun.wait()
        if isinstance(contender, MemoryCopy):
            return {"stall": stall_s}
        settle()
        begin_s = time.perf_counter()
        save(_WARM_UPS + 1).wait()
        return {"stall": stall_s, "durable": time.perf_counter() - begin_s}


def _state(model: dict[str, int]) -> TorchState:
    torch.set_num_threads(cores())  # torch's own default, which OMP_NUM_THREADS may have changed
    return transformer_state(**model)


def _describe(model: dict[str, int]) -> str:
    state = _state(model)
    return f"{state.size_bytes / 1e9:.2f} GB in {len(state.flat):,} tensors"


def _compute(seconds: float) -> None:
    """Keep one core busy, as a forward and a backward pass do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    left, right = torch.ones(256, 256), torch.ones(256, 256)
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        torch.mm(left, right)
    torch.set_num_threads(threads)


def _checks(rows: Sequence[Row], overlapping: Collection[str]) -> list[Check]:
    stalls = [found for found in rows if found.group == "stall"]
    ours = [found for found in stalls if found.role == "holdfast"]
    copy_s = next(found.median_s for found in stalls if found.role == "limit")
    copying, overlapped = (
        min((p for p in stalls if p.role == "peer" and (p.name in overlapping) is overlaps), key=lambda p: p.median_s)
        for overlaps in (False, True)
    )
    write_s = min(found.median_s for found in rows if found.group == "durable" and found.role == "limit")
    checks = [at_most(f"stall, {f.name} / the bare copy", _MOST_OF_COPY[f.name], f.median_s / copy_s) for f in ours]
    checks += [_times_less(found, copying, "copies at once", _LEAST_TIMES_LESS[found.name]) for found in ours]
    checks += [_times_less(found, overlapped, "overlaps", 1.0) for found in ours if found.name in overlapping]
    checks += [
        at_most(f"durable, {found.name} / raw direct write", _MOST_OF_WRITE, found.median_s / write_s)
        for found in rows
        if (found.group, found.role) == ("durable", "holdfast")
    ]
    return checks


def _times_less(ours: Row, peer: Row, kind: str, target: float) -> Check:
    what = f"stall, {ours.name}: times less than the best peer that {kind} ({peer.name})"
    return at_least(what, target, peer.median_s / ours.median_s)
